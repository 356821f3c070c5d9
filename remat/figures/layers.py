"""Figures of chapters 3 and 5: what each choice inside a layer keeps, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log2

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from remat.choice import kept
from remat.choices import Choice, Choices
from remat.figures.style import INK, KEEP, MUTED, OFFLOAD, RECOMPUTE, figure, finish, legend_below
from remat.hardware import Link

# (whether it offloads, whether it recomputes) -> label, mark, face, edge
_LOOKS = {
    (True, False): ("offloads, recomputes nothing", "^", OFFLOAD, OFFLOAD),
    (True, True): ("offloads and recomputes", "^", RECOMPUTE, OFFLOAD),
    (False, True): ("recomputes only", "o", RECOMPUTE, RECOMPUTE),
    (False, False): ("keeps everything", "s", KEEP, KEEP),
}


def choice_frontiers(
    by_flops: Choices, by_time: Choices, *, unit: float | None = None, unit_name: str = "s·b·h",
    dots: bool = True, top: float | None = None,
) -> Figure:  # fmt: skip
    """Draw the frontier of keep and recompute under two costs, with every choice as a faint dot behind.

    Args:
        by_flops: all choices under FLOPs.
        by_time: all choices of the same layer under seconds.
        unit: bytes in one unit of the horizontal axis; the layer's unit if left out.
        unit_name: what that unit is called.
        dots: whether to draw the dots.
        top: percent at the top of the vertical axis; what the data need if left out.

    Returns:
        One panel with a logarithmic horizontal axis. Selective and full recompute are marked on both lines.
    """
    unit = by_time.layer.unit if unit is None else unit
    fig, (axes,) = figure(height=3.9)
    looks = (
        ("by time (roofline)", by_time, RECOMPUTE, "o", "-", (7, 5)),
        ("by FLOPs of matrix products", by_flops, MUTED, "s", (0, (4, 1.5)), (7, -13)),
    )
    for label, choices, color, mark, dashes, shift in looks:
        shares = 100 * choices.recompute / (3 * choices.forward or 1)
        if dots:
            axes.scatter(choices.kept / unit, shares, s=4, color=color, alpha=0.15, linewidths=0, zorder=1)
        heights = [100 * choice.share for choice in choices.frontier]
        axes.plot(
            *_stairs(choices.frontier, heights, choices, unit), color=color, linestyle=dashes, marker=None,
            label=label, zorder=3,
        )  # fmt: skip
        for word in ("selective", "full"):
            choice = choices.of(kept(choices.layer, recompute=word))
            at = choice.kept_bytes / unit, 100 * choice.share
            axes.plot(*at, mark, color=color, markersize=8, markeredgecolor="white", zorder=5)
            axes.annotate(
                f"{word}, {at[0]:g}: {at[1]:.2f} %", at, xytext=shift, textcoords="offset points", fontsize=9,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}, zorder=6,
            )  # fmt: skip
    axes.set_ylim(bottom=-2, top=top)
    if dots:
        axes.plot([], [], "o", color=MUTED, markersize=2.5, alpha=0.6, label="one choice (of either color)")
    _bytes_axis(axes, by_time, unit)
    finish(axes, x=f"kept per layer, {unit_name}", y="recompute, % of forward + backward", grid="both")
    legend_below(fig, axes, columns=3)
    return fig


def offload_frontiers(
    choices: Choices, links: Sequence[Link], *, unit: float | None = None, unit_name: str = "s·b·h"
) -> Figure:
    """Draw the frontier of keep, recompute and offload, a panel a link, beside that without offload.

    Args:
        choices: all choices with offload, under seconds.
        links: between device and host.
        unit: bytes in one unit of the horizontal axis; the layer's unit if left out.
        unit_name: what that unit is called.

    Returns:
        Panels with one vertical scale and a logarithmic horizontal axis. Triangles are choices that offload,
        filled orange if they recompute too; orange dots only recompute; a blue square keeps everything. The
        overhead is recompute and wait in the steady state of many layers; collectives are left out.
    """
    unit = choices.layer.unit if unit is None else unit
    fig, panels = figure(height=4.0, columns=len(links), sharey=True)
    plain = choices.frontier
    handles: dict[tuple[bool, bool], Line2D] = {}  # one of each look, for the legend
    for axes, link in zip(panels, links, strict=True):
        line = _stairs(plain, [100 * choice.share for choice in plain], choices, unit)
        axes.plot(
            *line, color=MUTED, linewidth=1.2, linestyle=(0, (4, 1.5)), label="frontier without offload"
        )
        points = choices.frontier_with(link)
        heights = [100 * choice.overhead(link) for choice in points]
        axes.plot(*_stairs(points, heights, choices, unit), color=INK, linewidth=1, zorder=2)
        for choice, height in zip(points, heights, strict=True):
            look = bool(choice.offloaded), choice.recompute > 0
            label, mark, face, edge = _LOOKS[look]
            (handles[look],) = axes.plot(
                choice.kept_bytes / unit, height, mark, color=face, markersize=6.5, markeredgecolor=edge,
                markeredgewidth=1, linestyle="none", label=label, zorder=4, clip_on=False,
            )  # fmt: skip
        axes.annotate(
            f"{points[0].kept_bytes / unit:g}: {heights[0]:.1f} %", (points[0].kept_bytes / unit, heights[0]),
            xytext=(7, 6), textcoords="offset points", fontsize=9, fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}, zorder=5,
        )  # fmt: skip
        axes.set_ylim(0, 105 * plain[0].share)
        _bytes_axis(axes, choices, unit)
        finish(
            axes, x=f"kept per layer, {unit_name}",
            y="overhead, % of forward + backward" if axes is panels[0] else "",
            title=f"{link.name}, {link.bandwidth / 1e9:g} GB/s", grid="both",
        )  # fmt: skip
    shown = [panels[0].lines[0], *(handles[look] for look in _LOOKS if look in handles)]
    fig.legend(handles=shown, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return fig


def _stairs(
    points: Sequence[Choice], heights: Sequence[float], choices: Choices, unit: float
) -> tuple[list[float], list[float]]:
    """Corners of the line "the least cost with so many bytes", up to keeping everything."""
    xs, ys = [], []
    ends = [*(choice.kept_bytes for choice in points[1:]), max(choices.kept.max(), points[-1].kept_bytes)]
    for choice, y, end in zip(points, heights, ends, strict=True):
        xs += [choice.kept_bytes / unit, end / unit]
        ys += [y, y]
    return xs, ys


def _bytes_axis(axes: Axes, choices: Choices, unit: float) -> None:
    sizes = choices.kept[choices.kept > 0] / unit
    low, high = (sizes.min(), sizes.max()) if len(sizes) else (1, 2)
    if choices.kept.min() > 0:
        axes.set_xscale("log", base=2)
        axes.set_xlim(0.9 * low, 1.12 * high)
    else:  # nothing at all may be kept, which a logarithm cannot show
        axes.set_xscale("symlog", base=2, linthresh=low)
        axes.set_xlim(-0.1 * low, 1.12 * high)
    powers = [2.0**k for k in range(ceil(log2(low)), floor(log2(high)) + 1)]
    ticks = powers[:: ceil(len(powers) / 6) or 1]
    axes.set_xticks(ticks if choices.kept.min() > 0 else [0, *ticks], minor=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
