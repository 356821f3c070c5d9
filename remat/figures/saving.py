"""Figures as files: a quick PNG for a live notebook, a small SVG that is the same bytes every time."""

from __future__ import annotations

import re
from io import BytesIO, StringIO
from typing import Any, TypeAlias

import matplotlib as mpl
from matplotlib.figure import Figure

Picture: TypeAlias = Figure

_NO_METADATA: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_ATTRIBUTE = re.compile(r'="[^"]*"')
_DIGITS = re.compile(r"(?<=\d\.)(\d)\d+")


def _lay_out(fig: Figure) -> None:
    """Place the axes once, so that saving need not draw twice."""
    engine = fig.get_layout_engine()
    if engine is not None:
        engine.execute(fig)
        fig.set_layout_engine("none")


def png(fig: Figure, *, dpi: float = 100) -> bytes:
    """Save a figure as PNG.

    Args:
        fig: the figure; its layout is fixed from then on.
        dpi: pixels per inch.

    >>> from remat.figures.style import figure
    >>> png(figure()[0])[1:4]
    b'PNG'
    """
    _lay_out(fig)
    target = BytesIO()
    fig.savefig(target, format="png", dpi=dpi)
    return target.getvalue()


def svg(fig: Figure) -> str:
    """Save a figure as SVG: text stays text, lengths have one decimal (of a point), nothing tells when or where.

    Args:
        fig: the figure; its layout is fixed from then on.

    Returns:
        The ``<svg>`` element alone.

    >>> from remat.figures.style import figure
    >>> svg(figure()[0])[:4], svg(figure()[0]) == svg(figure()[0])
    ('<svg', True)
    """
    _lay_out(fig)
    target = StringIO()
    with mpl.rc_context({"svg.hashsalt": "remat", "svg.fonttype": "none"}):
        fig.savefig(target, format="svg", metadata=_NO_METADATA)
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = _ATTRIBUTE.sub(lambda found: _DIGITS.sub(r"\1", found[0]), text)
    return re.sub(r"\s*\n\s*", "\n", text).strip()
