"""Figures of chapter 1: what a layer keeps, and what a pipeline stage holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from remat.choice import RECOMPUTE, kept
from remat.figures.style import INK, KEEP, LIMIT, WAIT, figure, finish
from remat.figures.style import RECOMPUTE as AGAIN
from remat.layer import Layer

_NAMES = {"none": "keep all", "selective": "selective", "full": "full recompute"}


def ledger_bars(layer: Layer) -> Figure:
    """Draw what a layer keeps under each named choice, tensor by tensor, as one bar a choice.

    Args:
        layer: the description; sizes are shown in its unit.

    Returns:
        Three stacked bars. Blue is kept, orange outlines are recomputed.
    """
    fig, (axes,) = figure(height=3.0)
    whole = layer.saved_bytes / layer.unit
    for row, word in enumerate(RECOMPUTE):
        names = set(kept(layer, recompute=word))
        # Kept tensors first, so that the length of the blue is what the choice costs in memory.
        entries = sorted(layer.saved, key=lambda tensor: tensor.name not in names)
        stays = [entry.name in names for entry in entries]
        widths = [entry.bytes / layer.unit for entry in entries]
        lefts = [0.0, *accumulate(widths)]
        axes.barh(
            [row] * len(entries), widths, left=lefts[:-1], height=0.66,
            color=[KEEP if stay else "white" for stay in stays],
            edgecolor=["white" if stay else AGAIN for stay in stays],
            linewidth=[min(1.2, 80 * width / whole) for width in widths],
            hatch=["" if stay else "////" for stay in stays],
        )  # fmt: skip
        for entry, stay, width, left in zip(entries, stays, widths, lefts, strict=False):
            if width >= 0.052 * whole:
                axes.text(
                    left + width / 2, row, entry.name.replace("_", "\n"),
                    ha="center", va="center", fontsize=7.5, color="white" if stay else INK,
                    bbox=None if stay else {"facecolor": "white", "edgecolor": "none", "pad": 1.2},
                )  # fmt: skip
        total = layer.bytes_of(names) / layer.unit
        axes.text(lefts[-1] * 1.012, row, f"{total:.4g}", va="center", fontweight="bold", color=KEEP)
    axes.set_yticks(range(len(RECOMPUTE)), [_NAMES[word] for word in RECOMPUTE])
    axes.invert_yaxis()
    axes.set_xlim(0, whole * 1.09)
    fig.legend(
        handles=[
            Patch(color=KEEP, label="kept"),
            Patch(facecolor="white", edgecolor=AGAIN, hatch="////", label="recomputed in backward"),
        ],
        loc="outside lower center", ncols=2, frameon=False, fontsize=9,
    )  # fmt: skip
    finish(axes, x="bytes kept per layer, in units of s·b·h", y="", grid="x")
    axes.tick_params(axis="y", length=0)
    return fig


def memory_bars(
    rows: Mapping[str, Sequence[float]], parts: Sequence[str], *, capacity: float, spare: float = 0
) -> Figure:
    """Draw what one GPU holds under several strategies against its capacity.

    Args:
        rows: strategy -> bytes of each part.
        parts: what the parts are called; the first is drawn gray, the second blue.
        capacity: bytes of the GPU, drawn as a line.
        spare: bytes to leave free, drawn as a dashed line below the capacity.
    """
    fig, (axes,) = figure(height=0.9 + 0.46 * len(rows))
    colors = [WAIT, KEEP, AGAIN]
    for index, sizes in enumerate(rows.values()):
        left = 0.0
        for part, size, color in zip(parts, sizes, colors, strict=False):
            axes.barh(
                index, size / 1e9, left=left / 1e9, height=0.66, color=color, edgecolor="white",
                label=part if index == 0 else None,
            )  # fmt: skip
            if size > 0.07 * capacity:
                middle, ink = (left + size / 2) / 1e9, INK if color == WAIT else "white"
                axes.text(middle, index, f"{size / 1e9:.1f}", ha="center", va="center", color=ink, fontsize=9)
            left += size
        fits = left <= capacity - spare
        axes.text(
            left / 1e9 + 1, index, f"{left / 1e9:.1f}" + ("" if fits else "  too much"), va="center",
            fontweight="bold", color=INK if fits else LIMIT,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
    axes.axvline(capacity / 1e9, color=LIMIT, linewidth=1.6)
    axes.text(
        capacity / 1e9, -0.62, f"{capacity / 1e9:.0f} GB", color=LIMIT, ha="center", va="bottom", fontsize=9
    )
    if spare:
        axes.axvline((capacity - spare) / 1e9, color=LIMIT, linewidth=1.2, linestyle="--")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.set_xlim(0, max(max(map(sum, rows.values())), capacity) * 1.3 / 1e9)
    finish(axes, x="memory of one GPU, GB", y="", grid="x")
    axes.tick_params(axis="y", length=0)
    fig.legend(loc="outside lower center", ncols=len(parts), frameon=False, fontsize=9)
    return fig


__all__ = ["ledger_bars", "memory_bars"]
