"""Figure of chapter 2: which values live in which buffer, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from remat.figures.style import GRADIENT, GRID, INK, KEEP, MUTED, RECOMPUTE, SCRATCH, figure, finish
from remat.sharing import Assignment, overwrites, share
from remat.steps import Program, Value

_TITLES = {
    "none": "No sharing",
    "in place": "In place",
    "sharing": "Sharing by lifetime",
    "both": "In place and sharing",
}
_LABELS = {
    KEEP: "result that backward reads",
    SCRATCH: "result that only forward reads",
    RECOMPUTE: "recomputed copy",
    GRADIENT: "gradient",
}


def buffer_lifetimes(
    program: Program,
    policies: Sequence[str] = ("none", "both"),
    *,
    unit: float = 1e6,
    unit_name: str = "MB",
) -> Figure:
    """Draw the buffers of a program as bands, and the values that live in each from step to step.

    Args:
        program: the steps.
        policies: a panel for each; see ``remat.sharing.share``.
        unit: bytes in one unit of the vertical axis.
        unit_name: what that unit is called.

    Returns:
        Panels with one vertical scale: a band's height is the buffer's size, the top of the stack the
        memory needed. White in a band is memory that nothing uses at that step. A dark edge marks a value
        written over the one before it in place.

    Raises:
        ValueError: if a policy is unknown.
    """
    assignments = [share(program, policy) for policy in policies]
    fig, panels = figure(7.2, 4.2, columns=len(assignments), sharey=True)
    top = max(assignment.bytes for assignment in assignments) / unit
    for axes, assignment in zip(panels, assignments, strict=True):
        _panel(axes, program, assignment, unit, unit_name, top)
        title = "Both" if assignment.policy == "both" and len(panels) > 2 else _TITLES[assignment.policy]
        finish(axes, x="step", y="", title=title, grid="")
    panels[0].set_ylabel(f"memory, {unit_name}")
    drawn = {_color(program, value) for value in program.values}
    handles: list[Artist] = [Patch(color=color, label=_LABELS[color]) for color in _LABELS if color in drawn]
    if {"in place", "both"}.intersection(policies):
        edge = Line2D([], [], color=INK, linestyle="none", marker="|", markersize=10, markeredgewidth=2.4)
        edge.set_label("written over the value before it")
        handles.append(edge)
    fig.legend(
        handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9,
        handlelength=1.2, columnspacing=1.4,
    )  # fmt: skip
    return fig


def _panel(
    axes: Axes, program: Program, assignment: Assignment, unit: float, unit_name: str, top: float
) -> None:
    over = overwrites(program, assignment.lives)
    end = len(program.steps)
    floors = [sum(assignment.sizes[:number]) / unit for number in range(len(assignment.sizes))]
    for floor, size in zip(floors, assignment.sizes, strict=True):
        band = Rectangle((0, floor), end, size / unit, facecolor="white", edgecolor=GRID, linewidth=0.8)
        axes.add_patch(band)
    for value in program.values:
        life, floor = assignment.lives[value.name], floors[assignment.buffer[value.name]]
        axes.add_patch(
            Rectangle(
                (life.first, floor), min(life.last + 1, end) - life.first, value.bytes / unit,
                facecolor=_color(program, value), edgecolor="white", linewidth=1.2,
            )
        )  # fmt: skip
    for name in over if assignment.policy in ("in place", "both") else ():
        number, first = assignment.buffer[name], assignment.lives[name].first
        low, high = floors[number], floors[number] + assignment.sizes[number] / unit
        axes.plot([first, first], [low, high], color=INK, linewidth=2.4, solid_capstyle="butt")
    for loss in (index for index, step in enumerate(program.steps) if step.phase == "loss"):
        axes.axvline(loss + 0.5, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
        for word, x in (("forward", loss / 2), ("backward", (loss + 1 + end) / 2)):
            axes.text(x, 1.13 * top, word, ha="center", va="top", fontsize=9, color=MUTED)
    axes.text(
        end / 2, assignment.bytes / unit + 0.012 * top,
        f"{len(assignment.sizes)} buffers, {assignment.bytes / unit:.4g} {unit_name}",
        ha="center", va="bottom", fontsize=9.5, color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
    )  # fmt: skip
    axes.set_xlim(0, end)
    axes.set_ylim(0, 1.14 * top)


def _color(program: Program, value: Value) -> str:
    if value.role == "gradient":
        return GRADIENT
    if value.role == "copy":
        return RECOMPUTE
    return KEEP if value in program.kept else SCRATCH
