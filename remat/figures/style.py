"""The book's one look: its palette, and figures made in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colors, told apart by color-blind readers and in gray print. The same meaning everywhere.
KEEP = "#0072B2"
RECOMPUTE = "#E69F00"
OFFLOAD = "#009E73"
WAIT = "#999999"
GRADIENT = "#CC79A7"
SCRATCH = "#56B4E9"
LIMIT = "#B3380B"
INK = "#222222"
MUTED = "#595959"  # contrast 7 on white
GRID = "#DDDDDD"

_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
}


def figure(
    width: float = 7.2, height: float = 3.4, *, columns: int = 1, rows: int = 1, **subplots: object
) -> tuple[Figure, list[Axes]]:
    """Open a figure in the book's look.

    Args:
        width: inches; 7.2 fills the text column.
        height: inches.
        columns: panels side by side.
        rows: panels one above the other.
        **subplots: more for ``matplotlib.pyplot.subplots`` (``sharex``, ``width_ratios``, ...).

    Returns:
        The figure and its axes, row by row. It is closed for pyplot, so that a notebook shows it once.
    """
    with plt.rc_context(_STYLE):
        fig, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, **subplots)  # type: ignore[call-overload]
    plt.close(fig)
    return fig, list(axes.flat)


def finish(axes: Axes, *, x: str, y: str, title: str = "", grid: str = "y") -> None:
    """Label the axes (with units), set a title and draw the grid along one or both directions."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if title:
        axes.set_title(title, loc="left", fontweight="bold", fontsize=10.5)
    if grid:
        axes.grid(axis=grid)  # type: ignore[arg-type]


def legend_below(fig: Figure, axes: Axes, *, columns: int, skip: Iterable[str] = ()) -> None:
    """Put one legend for all panels below the figure."""
    pairs = [pair for pair in zip(*axes.get_legend_handles_labels(), strict=True) if pair[1] not in skip]
    handles, labels = zip(*pairs, strict=True)
    fig.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
