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
_PATH = re.compile(r'(?<= d=")[^"]*')
_CLUTTER = (  # what matplotlib writes and no picture needs
    (re.compile(r'(?<=<g) id="[^"]*"'), ""),
    (re.compile(r' transform="rotate\(-0 [^"]*"'), ""),
    (re.compile(r"font-family: [^;\"]*"), "font-family: DejaVu Sans, Verdana, sans-serif"),
    (re.compile(r"\s*\n\s*"), ""),
)


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
    """Save a figure as SVG, the same bytes every time: text stays text, lengths to a tenth of a point.

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
    text = text[text.index("<svg") :].strip()
    text = _ATTRIBUTE.sub(lambda found: _DIGITS.sub(r"\1", found[0]), text)
    text = _PATH.sub(lambda found: _shorter(found[0]), text)
    for pattern, instead in _CLUTTER:
        text = pattern.sub(instead, text)
    return text


def _shorter(path: str) -> str:
    """Write the level and the upright lines of a path as such."""
    words, x, y = [], "", ""
    for command, numbers in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        at = numbers.split()
        if command == "L" and at[1] == y:
            words.append(f"H{at[0]}")
        elif command == "L" and at[0] == x:
            words.append(f"V{at[1]}")
        else:
            words.append(command + " ".join(at))
        x, y = at[-2:] or (x, y)
    return "".join(words)
