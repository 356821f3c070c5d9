"""Figures of chapter 6: what each tool of PyTorch holds and costs, and what a compiler's budget gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from remat.figures.style import INK, KEEP, LIMIT, MUTED, RECOMPUTE, figure, finish, legend_below


def granularity_bars(
    held: Mapping[str, float], slower: Mapping[str, float], flops: Mapping[str, float], *, unit_name: str
) -> Figure:
    """Draw what several ways to checkpoint one layer hold, beside what they cost by clock and by FLOPs.

    Args:
        held: way -> what is held after forward, in units.
        slower: way -> measured time of a step over that of plain training, less 1.
        flops: way -> FLOPs of products run again, as a share of the step's.
        unit_name: what one unit is called.

    Returns:
        Two panels with the ways from top to bottom, in the order of ``held``. Blue is held, orange is time.
    """
    fig, (left, right) = figure(height=1.0 + 0.42 * len(held), columns=2, sharey=True)
    rows = range(len(held))
    left.barh(rows, list(held.values()), height=0.62, color=KEEP)
    right.barh(
        rows, [100 * slower[way] for way in held], height=0.62, color=RECOMPUTE, label="time, measured"
    )
    right.plot(
        [100 * flops[way] for way in held], rows, "D", color=INK, markersize=5.5, markeredgecolor="white",
        linestyle="none", label="FLOPs of products", zorder=4, clip_on=False,
    )  # fmt: skip
    left_end = max(held.values())
    right_end = 100 * max(*slower.values(), *flops.values(), 0.01)
    for row, way in enumerate(held):
        size = f"{held[way]:.1f}" if held[way] >= 1 else f"{held[way]:.2f}"
        left.text(held[way] + 0.015 * left_end, row, size, va="center", fontweight="bold")
        end = 100 * max(slower[way], flops[way], 0)
        right.text(end + 0.05 * right_end, row, f"{100 * slower[way]:+.0f} %", va="center", fontweight="bold")
    left.set_yticks(rows, list(held))
    left.invert_yaxis()
    left.set_xlim(0, 1.22 * left_end)
    right.set_xlim(min(0, 130 * min(slower.values())), 1.3 * right_end)
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
    finish(left, x=f"held after forward, {unit_name}", y="", grid="x")
    finish(right, x="more than plain training, %", y="", grid="x")
    legend_below(fig, right, columns=2)
    return fig


def budget_points(budgets: Sequence[float], held: Sequence[float], wrong: Sequence[bool]) -> Figure:
    """Draw what a compiled forward holds against the budget that it was given.

    Args:
        budgets: shares of what it holds by default, from 0 to 1.
        held: what it then holds, as a share of the same.
        wrong: whether the gradients came out wrong.

    Returns:
        One panel. The dashed line is the budget itself; blue dots are right, red crosses are wrong.
    """
    fig, (axes,) = figure(width=5.6, height=3.2)
    axes.plot([0, 100], [0, 100], color=MUTED, linewidth=1.2, linestyle=(0, (4, 1.5)), label="the budget")
    looks = (
        (False, "o", KEEP, "held, gradients right"),
        (True, "X", LIMIT, "held, gradients wrong"),
    )
    for is_wrong, mark, color, label in looks:
        points = [(100 * b, 100 * h) for b, h, w in zip(budgets, held, wrong, strict=True) if w is is_wrong]
        if points:
            axes.plot(
                *zip(*points, strict=True), mark, color=color, markersize=8, markeredgecolor="white",
                label=label, clip_on=False, zorder=4,
            )  # fmt: skip
    for budget, share in zip(budgets, held, strict=True):
        axes.annotate(
            f"{100 * share:.0f} %", (100 * budget, 100 * share), xytext=(8, -11),
            textcoords="offset points", fontsize=9, annotation_clip=False,
        )  # fmt: skip
    axes.set_xlim(-3, 106)
    axes.set_ylim(-8, 106)
    finish(axes, x="activation memory budget, % of the default", y="held, % of the default", grid="both")
    legend_below(fig, axes, columns=3)
    return fig


__all__ = ["budget_points", "granularity_bars"]
