"""Figures of chapter 2: peaks, frontiers and the memory over one training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from remat.chain import Forward
from remat.figures.style import (
    GRADIENT,
    INK,
    KEEP,
    LIMIT,
    MUTED,
    OFFLOAD,
    RECOMPUTE,
    SCRATCH,
    figure,
    finish,
    legend_below,
)
from remat.frontier import Point
from remat.replay import Replay

_MARKS = ["o", "s", "^", "D", "v", "P", "X"]


def spacing_curves(spacings: Sequence[int], replays: Sequence[Replay], *, stages: int) -> Figure:
    """Draw peak and forwards against the checkpoint spacing, and mark the least peak.

    Args:
        spacings: the k of each plan.
        replays: what replay counted for each.
        stages: the chain's length n.
    """
    fig, (left, right) = figure(height=3.1, columns=2)
    peaks = [counted.peak for counted in replays]
    least = int(np.argmin(peaks))
    left.plot(spacings, peaks, color=KEEP, marker="o", markersize=3.5)
    left.plot(spacings[least], peaks[least], "o", color=LIMIT, markersize=7, zorder=5)
    left.annotate(
        f"k = {spacings[least]}: peak {peaks[least]:g}", (spacings[least], peaks[least]),
        xytext=(0, 70), textcoords="offset points", ha="center", fontweight="bold", color=LIMIT,
        arrowprops={"arrowstyle": "-", "color": LIMIT},
    )  # fmt: skip
    left.set_yscale("log")
    finish(left, x="stages per checkpoint, k", y="peak, outputs of one stage", title="Memory")
    right.plot(
        spacings,
        [counted.forwards / stages for counted in replays],
        color=RECOMPUTE,
        marker="o",
        markersize=3.5,
    )
    right.set_ylim(0, 2.15)
    finish(right, x="stages per checkpoint, k", y="forwards per stage", title="Work")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return fig


def _frontier_line(axes: Axes, points: Sequence[Point], color: str, label: str, *, dots: bool) -> None:
    peaks, works = [point.peak for point in points], [point.work for point in points]
    axes.step(peaks, works, where="post", color=color, label=label, zorder=3)
    if dots:
        axes.plot(peaks, works, "o", color=color, markersize=4, zorder=3)


def frontier_panels(
    panels: Mapping[str, tuple[Sequence[Point], Mapping[str, Replay]]],
    *,
    unit: str = "outputs of one stage",
    work_unit: str = "forwards of one stage",
    dots: bool = True,
) -> Figure:
    """Draw exact frontiers, a panel each, with named plans as points on or above them.

    Args:
        panels: title -> (points of the frontier, name -> what replay counted for a plan).
        unit: what peaks are measured in.
        work_unit: what work is measured in.
        dots: whether to mark every point of the frontier.
    """
    fig, axes = figure(height=3.7, columns=len(panels))
    names = list(dict.fromkeys(name for _, plans in panels.values() for name in plans))
    colors = [RECOMPUTE, GRADIENT, OFFLOAD, LIMIT, SCRATCH, INK, MUTED]
    for panel, (title, (points, plans)) in zip(axes, panels.items(), strict=True):
        _frontier_line(panel, points, KEEP, "exact frontier", dots=dots)
        for name, counted in plans.items():
            at = names.index(name)
            panel.plot(
                counted.peak, counted.work, linestyle="none", marker=_MARKS[at % 7], color=colors[at % 7],
                markersize=8, markeredgecolor="white", label=name, zorder=5,
            )  # fmt: skip
        panel.set_ylim(bottom=min(0, panel.get_ylim()[0]))
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        finish(panel, x=f"peak, {unit}", y=f"work, {work_unit}", title=title, grid="both")
    entries = {
        label: handle
        for panel in axes
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    fig.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=min(4, len(entries)),
        frameon=False,
        fontsize=9,
    )
    return fig


def frontiers_compared(
    lines: Mapping[str, Sequence[Point]],
    *,
    unit: str = "outputs of one stage",
    work_unit: str = "forwards of one stage",
) -> Figure:
    """Draw several frontiers in one panel.

    Args:
        lines: name -> points.
        unit: what peaks are measured in.
        work_unit: what work is measured in.
    """
    fig, (axes,) = figure(height=3.3)
    for (name, points), color in zip(lines.items(), [KEEP, RECOMPUTE, OFFLOAD, GRADIENT], strict=False):
        _frontier_line(axes, points, color, name, dots=len(points) < 60)
    axes.legend()
    axes.set_ylim(bottom=0)
    finish(axes, x=f"peak, {unit}", y=f"work, {work_unit}", grid="both")
    return fig


def step_memory(replays: Mapping[str, Replay], *, unit: str = "outputs of one stage") -> Figure:
    """Draw the memory over one training step, a panel a plan, by what the bytes are there for.

    Args:
        replays: name of the plan -> what replay counted.
        unit: what memory is measured in.
    """
    fig, axes = figure(height=3.3, columns=len(replays), sharey=True)
    top = max(counted.peak for counted in replays.values())
    for panel, (name, counted) in zip(axes, replays.items(), strict=True):
        memory_panel(panel, counted, top=top)
        finish(
            panel, x="action", y=f"memory, {unit}" if panel is axes[0] else "",
            title=f"{name}, work {counted.work:g}",
        )  # fmt: skip
    legend_below(fig, axes[0], columns=4)
    return fig


def memory_panel(panel: Axes, counted: Replay, *, top: float) -> None:
    """Draw the memory over one training step into axes that reach a little above top."""
    # A clock of one tick an action reads better than seconds where backwards take twice a forward.
    parts = [
        ("kept from the first forward", KEEP, [event.during.kept for event in counted.events]),
        ("recomputed", RECOMPUTE, [event.during.recomputed for event in counted.events]),
        ("fetched from the host", OFFLOAD, [event.during.fetched for event in counted.events]),
        ("gradient", GRADIENT, [event.during.gradient for event in counted.events]),
        ("scratch", SCRATCH, [event.during.scratch for event in counted.events]),
    ]
    end, upper = len(counted.events), np.zeros(len(counted.events))
    for order, (label, color, values) in enumerate(parts):
        if any(values):
            upper = upper + values
            steps = np.flatnonzero(np.diff(upper, prepend=-1))  # where it changes
            panel.stairs(
                upper[steps], [*steps, end], fill=True, color=color, label=label, linewidth=0,
                zorder=1 - order / 10,  # what lies below in the stack covers what lies above
            )  # fmt: skip
    panel.axhline(counted.peak, color=LIMIT, linewidth=1.2, linestyle="--")
    panel.text(
        end, counted.peak + 0.02 * top, f"peak {counted.peak:.3g}", color=LIMIT, ha="right",
        va="bottom", fontweight="bold",
    )  # fmt: skip
    turn = 1 + next(
        i
        for i, event in enumerate(counted.events)
        if isinstance(event.action, Forward) and event.after.gradient
    )
    panel.axvline(turn, color=MUTED, linewidth=0.8, linestyle=":")
    panel.text(turn, top * 1.16, " loss", color=MUTED, fontsize=8, va="top")
    panel.set_ylim(0, top * 1.18)
    panel.set_xlim(0, end)


def predicted_and_measured(
    xs: Sequence[int], predicted: Sequence[float], measured: Sequence[float], *, x: str, y: str
) -> Figure:
    """Draw predicted peaks as a line and measured ones as points.

    Args:
        xs: the setting of each run.
        predicted: what replay counts.
        measured: what PyTorch allocated, in the same unit.
        x: what the setting is called.
        y: what was measured, with its unit.
    """
    fig, (axes,) = figure(height=3.2)
    axes.plot(xs, predicted, color=KEEP, label="predicted by replay", marker="o", markersize=3, zorder=2)
    axes.plot(
        xs, measured, linestyle="none", marker="x", color=LIMIT, markersize=8, markeredgewidth=2,
        label="measured in PyTorch", zorder=4,
    )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.legend()
    finish(axes, x=x, y=y, grid="both")
    return fig
