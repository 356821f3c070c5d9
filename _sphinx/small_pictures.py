"""Writes the site's PNG pictures with a palette of at most 256 colors: a third of their size.

A chart has few colors, and most of them are steps between two others at the edge of a line. A palette that
covers them widely changes none so far that it could be seen; where it would, the picture stays as it is.
"""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image, ImageChops
from sphinx.application import Sphinx

COLORS = 256
MOST = 8  # of 255 steps of a channel


def small(png: bytes) -> bytes:
    """Return the same picture with few colors, or the given one if that is smaller or the colors differ."""
    whole = Image.open(io.BytesIO(png))
    if whole.mode not in ("RGB", "RGBA") or whole.getextrema()[3:] not in ((), ((255, 255),)):
        return png
    plain = whole.convert("RGB")
    few = plain.quantize(COLORS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    change = max(ImageChops.difference(plain, few.convert("RGB")).tobytes())
    buffer = io.BytesIO()
    few.save(buffer, format="PNG", optimize=True)
    kept = buffer.getvalue()
    return kept if len(kept) < len(png) and change <= MOST else png


def shrink(app: Sphinx, exception: Exception | None) -> None:
    """Rewrite the pictures of a site that was built."""
    if exception is not None or app.builder.format != "html":
        return
    for path in sorted(Path(app.outdir, app.builder.imagedir).glob("*.png")):
        path.write_bytes(small(path.read_bytes()))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("build-finished", shrink)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
