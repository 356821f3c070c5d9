"""Figures of chapter 6: replayed segments, the segment model beside what is measured, which API to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from remat.chain import Backward, Chain, Forward, Output
from remat.figures.boxes import arrow, box
from remat.figures.style import (
    GRADIENT,
    GRID,
    INK,
    KEEP,
    LIMIT,
    MUTED,
    OFFLOAD,
    RECOMPUTE,
    WAIT,
    figure,
    finish,
    legend_below,
)
from remat.machine import Machine
from remat.replay import Memory, replay
from remat.schedules import Schedule
from remat.segment_model import Estimate


@dataclass(frozen=True)
class _Moment:
    """What is there at one moment: outputs by stage, with the reason; whose gradient; replay's count."""

    title: str
    there: Mapping[int, str]
    gradient: int
    memory: Memory


def replay_snapshots(chain: Chain, plan: Schedule) -> Figure:
    """Draw which outputs are there after the forward, and when each segment has been replayed.

    Args:
        chain: the description, with needs="values".
        plan: a plan of segments.

    Returns:
        A row a moment, a box an output: blue if it was kept, orange if it was made again, empty if it is not
        there. The gradient's bar stands under the output that it belongs to, at the right what replay counts.

    Raises:
        ValueError: if the plan has no segments, or the chain needs tapes.
    """
    if not plan.segments:
        raise ValueError(f"plan must be one of segments, got {plan.name!r}")
    if chain.needs != "values":
        raise ValueError(f'chain must have needs="values", got {chain.needs!r}')
    moments, n = _moments(chain, plan), len(chain)
    ends = [sum(plan.lengths[: i + 1]) for i in range(len(plan.lengths))]
    at = [i + 0.4 * sum(end < i for end in [0, *ends]) for i in range(n + 1)]  # a gap before each segment
    fig, (axes,) = figure(height=0.9 + 0.52 * len(moments))
    axes.set_axis_off()

    def heading(x: float, words: str) -> None:
        axes.text(x, -0.68, words, ha="center", va="center", fontsize=9, color=MUTED)

    heading(at[0], "input")
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False), 1):
        heading((at[start + 1] + at[end]) / 2, f"segment {number}")
    heading(at[n] + 1.3, "alive")
    for row, moment in enumerate(moments):
        axes.text(-0.8, row, moment.title, ha="right", va="center", fontsize=9)
        axes.text(at[n] + 1.3, row, f"{moment.memory.total:g}", ha="center", va="center", fontweight="bold")
        for i in range(n + 1):
            purpose = moment.there.get(i)
            face = {"kept": KEEP, "recomputed": RECOMPUTE, None: "white"}[purpose]
            edge = face if purpose else GRID
            axes.add_patch(Rectangle((at[i] - 0.42, row - 0.34), 0.84, 0.6, facecolor=face, edgecolor=edge))
            ink = {"kept": "white", "recomputed": INK, None: MUTED}[purpose]
            axes.text(at[i], row - 0.05, str(i), ha="center", va="center", fontsize=8.5, color=ink)
        under = (at[moment.gradient] - 0.42, row + 0.29)
        axes.add_patch(Rectangle(under, 0.84, 0.13, facecolor=GRADIENT, linewidth=0))
    axes.set_xlim(-5.6, at[n] + 2)
    axes.set_ylim(len(moments) - 0.5, -0.9)
    looks = {"kept from the first forward": KEEP, "recomputed": RECOMPUTE, "gradient": GRADIENT}
    handles = [Rectangle((0, 0), 1, 1, facecolor=color, label=label) for label, color in looks.items()]
    handles.append(Rectangle((0, 0), 1, 1, facecolor="white", edgecolor=GRID, label="dropped"))
    fig.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return fig


def _moments(chain: Chain, plan: Schedule) -> list[_Moment]:
    """The moments after the loss, and before the first backward of each segment.

    What is there is asked of the machine that replay runs on.
    """
    events, machine = replay(chain, plan).events, Machine(chain, None)
    purpose: dict[int, str] = {0: "kept"}
    last = {sum(plan.lengths[: i + 1]): i + 1 for i in range(len(plan.lengths))}  # of a segment -> its number
    found = []

    def look(title: str, index: int, stage: int) -> None:
        there = {thing.stage: purpose[thing.stage] for thing in machine.live if isinstance(thing, Output)}
        found.append(_Moment(title, there, stage, events[index].after))

    for index, action in enumerate(plan.actions):
        if isinstance(action, Backward) and action.stage in last:
            look(f"segment {last[action.stage]} replayed", index - 1, action.stage)
        effect = machine.step(action)
        purpose.update({thing.stage: effect.purpose for thing in effect.makes})
        if isinstance(action, Forward) and effect.gradient:
            look("forward done", index, action.stage)
    return found


def segment_curves(
    spacings: Sequence[int], lines: Mapping[str, Sequence[float]], measured: Sequence[float], *, plain: float
) -> Figure:
    """Draw estimated peaks against the spacing of checkpoints, and measured ones as crosses.

    Args:
        spacings: the k of each plan.
        lines: name of an estimate -> peaks, in layers.
        measured: what PyTorch allocated, in layers.
        plain: measured with everything kept, in layers.
    """
    fig, (axes,) = figure(height=3.3)
    axes.axhline(plain, color=MUTED, linewidth=1.2, linestyle=":")
    middle, words = (spacings[0] + spacings[-1]) / 2, "measured, everything kept"
    axes.text(middle, plain, words, ha="center", va="bottom", fontsize=9, color=MUTED)
    dashes = [(0, (4, 1.5)), "-"]
    for index, (name, peaks) in enumerate(lines.items()):
        axes.plot(
            spacings, peaks, color=[RECOMPUTE, KEEP][index % 2], linestyle=dashes[index % 2], marker="o",
            markersize=4, label=name,
        )  # fmt: skip
    axes.plot(
        spacings, measured, linestyle="none", marker="x", color=LIMIT, markersize=8, markeredgewidth=2,
        label="measured in PyTorch", zorder=4,
    )  # fmt: skip
    axes.set_ylim(0, 1.12 * max(plain, *(max(peaks) for peaks in lines.values())))
    axes.set_xticks(spacings)
    finish(axes, x="layers per checkpoint, k", y="peak, layers of A bytes", grid="both")
    legend_below(fig, axes, columns=3)
    return fig


def api_picture() -> Figure:
    """Draw the order of questions that leads to one of PyTorch's switches."""
    flash = "FlashAttention\n(scaled_dot_product_attention)"
    steps = [
        ("Are activations what\nfills the memory?", "no", "weights, gradients, optimizer:\nZeRO, FSDP", WAIT),
        ("Is most of it the\nattention matrix?", "yes", flash, RECOMPUTE),
        (
            "Is there room for what\nmatrix products make?",
            "yes",
            "a selective policy\nin context_fn",
            RECOMPUTE,
        ),
        ("Is the link to the host\nidle, and fast enough?", "yes", "save_on_cpu, offload_wrapper", OFFLOAD),
        ("Is the model an\nnn.Sequential?", "yes", "checkpoint_sequential,\nuse_reentrant=False", RECOMPUTE),
        ("May its code\nbe changed?", "no", "apply_activation_checkpointing\nwith a check_fn", RECOMPUTE),
    ]
    fig, (axes,) = figure(height=6.2)
    axes.set_axis_off()
    for row, (question, word, answer, color) in enumerate(steps):
        y = -1.12 * row
        box(axes, 0, y, 3.0, question, face="white", ink=INK)
        box(axes, 4.6, y, 3.9, answer, face=color, ink="white" if color == OFFLOAD else INK)
        arrow(axes, (1.53, y), (2.62, y), word, side="above")
        arrow(axes, (0, y - 0.4), (0, y - 0.73), "no" if word == "yes" else "yes", side="right")
    last = -1.12 * len(steps)
    answer = "checkpoint(layer, x,\nuse_reentrant=False)"
    box(axes, 0, last, 3.0, answer, face=RECOMPUTE, ink=INK)
    axes.set_xlim(-1.7, 6.7)
    axes.set_ylim(last - 0.5, 0.5)
    return fig


def segment_bars(estimates: Sequence[Estimate], counted: Mapping[str, float], *, chosen: str) -> Figure:
    """Draw what the segment model says of each mode, beside what replay counts for real layers.

    Args:
        estimates: one a mode, drawn top to bottom.
        counted: mode -> the peak that replay counts, bytes.
        chosen: the mode that stands out; the others are pale.

    Returns:
        Left, memory, what is kept and the segment being replayed stacked; right, more compute.
    """
    fig, (left, right) = figure(height=2.7, columns=2, sharey=True, width_ratios=[2, 1])
    end = 1.22 * estimates[0].plain / 1e9
    for row, estimate in enumerate(estimates):
        alpha = 1.0 if estimate.mode == chosen else 0.35
        kept, replayed, there = estimate.kept / 1e9, estimate.replayed / 1e9, counted[estimate.mode] / 1e9
        left.barh(row, kept, height=0.6, color=KEEP, alpha=alpha)
        left.barh(row, replayed, left=kept, height=0.6, color=RECOMPUTE, alpha=alpha)
        left.plot(there, row, "D", color=INK, markersize=7, markeredgecolor="white", zorder=5, alpha=alpha)
        right.barh(row, 100 * estimate.extra_compute, height=0.6, color=RECOMPUTE, alpha=alpha)
        look: dict[str, Any] = {"va": "center", "fontweight": "bold" if estimate.mode == chosen else "normal"}
        left.text(max(kept + replayed, there) + 0.02 * end, row, f"{estimate.peak / 1e9:,.1f}", **look)
        right.text(100 * estimate.extra_compute + 1, row, f"{estimate.extra_compute:.1%}", **look)
    left.set_yticks(range(len(estimates)), [estimate.mode for estimate in estimates])
    for label, estimate in zip(left.get_yticklabels(), estimates, strict=True):
        label.set_color(INK if estimate.mode == chosen else MUTED)
    left.set_ylim(len(estimates) - 0.5, -0.5)
    left.set_xlim(0, end)
    right.set_xlim(0, 52)
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
    finish(left, x="activations, GB", y="", grid="x", title="Memory at its peak")
    finish(right, x="of forward + backward, %", y="", grid="x", title="More compute")
    handles = [
        Rectangle((0, 0), 1, 1, facecolor=KEEP, label="kept"),
        Rectangle((0, 0), 1, 1, facecolor=RECOMPUTE, label="segment being replayed"),
        Line2D([], [], linestyle="none", marker="D", color=INK, label="replay, for these layers"),
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return fig
