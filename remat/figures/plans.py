"""Figures of measured chains: what each stage holds and costs, and plans beside other cuts at one peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from remat.chain import Chain
from remat.figures.style import KEEP, MUTED, RECOMPUTE, figure, finish


def profile_bars(chain: Chain) -> Figure:
    """Draw what each stage of a measured chain holds for backward, beside how long its forward takes.

    Args:
        chain: with needs="tape"; bytes and seconds.

    Returns:
        Left, output and saved bytes of each stage in MB; right, its forward in milliseconds.
    """
    fig, (left, right) = figure(height=1.1 + 0.27 * len(chain), columns=2, sharey=True)
    rows = range(1, len(chain) + 1)
    out, saved = ([getattr(stage, part) / 1e6 for stage in chain.stages] for part in ("out", "saved"))
    left.barh(rows, out, color=KEEP, height=0.68, label="its output")
    left.barh(rows, saved, left=out, color=KEEP, height=0.68, alpha=0.45, label="saved inside")
    right.barh(rows, [1e3 * stage.forward_s for stage in chain.stages], color=RECOMPUTE, height=0.68)
    left.set_yticks(list(rows), [f"{i}  {stage.name}" for i, stage in enumerate(chain.stages, start=1)])
    left.tick_params(axis="y", length=0)
    right.tick_params(axis="y", length=0)
    left.set_ylim(len(chain) + 0.6, 0.4)
    finish(left, x="held for backward, MB", y="stage", grid="x")
    finish(right, x="one forward, ms", y="", grid="x")
    left.legend(loc="lower right")
    return fig


@dataclass(frozen=True)
class Cut:
    """One way to cut a model, measured.

    Attributes:
        label: what it is called at its point.
        peak: bytes.
        time: over that of plain training; 1 is as fast.
    """

    label: str
    peak: float
    time: float


def cuts_at_one_peak(models: Mapping[str, Sequence[tuple[Cut, Cut]]]) -> Figure:
    """Draw, for each model, how long other cuts take and how long the plans that got their peak as a budget.

    Args:
        models: name of the model -> pairs of (the other cut, the plan).

    Returns:
        One row a pair: two points on one scale of time, and the two peaks in MB beside them.
    """
    rows = sum(map(len, models.values()))
    fig, (axes,) = figure(height=1.3 + 0.34 * rows + 0.2 * len(models))
    most = max(cut.time for pairs in models.values() for pair in pairs for cut in pair)
    y = 0.0
    ticks: list[float] = []
    labels: list[str] = []
    for name, pairs in models.items():
        axes.text(0.99, y - 0.62, name, fontweight="bold", fontsize=9.5, va="center")
        for index, (other, plan) in enumerate(pairs):
            first = not ticks
            axes.plot([other.time, plan.time], [y, y], color=MUTED, linewidth=1.4, zorder=1)
            axes.plot(
                other.time, y, "o", color=MUTED, markerfacecolor="white", markersize=8,
                label="checkpoint_sequential" if first else None,
            )  # fmt: skip
            axes.plot(plan.time, y, "o", color=RECOMPUTE, markersize=8, label="planned" if first else None)
            axes.text(
                1.03 * most, y, f"{other.peak / 1e6:.2f} and {plan.peak / 1e6:.2f} MB", va="center",
                fontsize=9, color=MUTED,
            )  # fmt: skip
            ticks.append(y)
            labels.append(other.label)
            y += 1 if index < len(pairs) - 1 else 1.9
    axes.axvline(1, color=KEEP, linewidth=1.4, label="plain training", zorder=0)
    axes.set_yticks(ticks, labels)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(ticks) + 0.6, -1)
    axes.set_xlim(0.98, 1.03 * most + 0.28 * (most - 0.98))
    finish(axes, x="time over plain training (peaks at the right)", y="", grid="x")
    handles, names = axes.get_legend_handles_labels()
    fig.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return fig
