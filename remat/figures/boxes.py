"""Boxes and arrows of a flow chart."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from remat.figures.style import INK, MUTED


def box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    text: str,
    *,
    face: str,
    ink: str = "white",
    alpha: float = 1,
) -> None:
    """Draw a rounded box around its middle, with a text in it."""
    height = 0.74
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0.02,rounding_size=0.12",
            facecolor=face,
            edgecolor=MUTED if face == "white" else face,
            linewidth=1.1,
            alpha=alpha,
        )  # fmt: skip
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=9, color=ink, linespacing=1.25)


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    text: str,
    *,
    side: str,
    taken: bool = False,
) -> None:
    """Draw an arrow with a word beside it; one that is taken is darker."""
    color, width = (INK, 2.4) if taken else (MUTED, 1.2)
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=color, linewidth=width)
    )
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    look: dict[str, Any] = {"fontsize": 8.5, "color": color, "fontweight": "bold" if taken else "normal"}
    if side == "above":
        axes.text(x, y + 0.1, text, ha="center", va="bottom", **look)
    else:
        axes.text(x + 0.1, y, text, ha="left", va="center", **look)
