"""Takes the picture of the README from the notebook that draws it: `make picture`.

Colors are reduced to a palette, which a chart does not show and which makes the file a third of the size.
"""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path

import nbformat
from PIL import Image

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "01_activations.ipynb"
FIGURE = "first-stage"  # under which the notebook shows it
PICTURE = ROOT / "book" / "first_stage.png"
COLORS = 32


def shown(notebook: Path, name: str) -> bytes:
    """Return the PNG that a notebook shows under a name (`metadata={"scrapbook": {"name": …}}`)."""
    for cell in nbformat.read(notebook, as_version=4).cells:
        for output in cell.get("outputs", []):
            if output.get("metadata", {}).get("scrapbook", {}).get("name") == name:
                return base64.b64decode(output.data["image/png"])
    raise ValueError(f"{notebook.name} shows nothing under the name {name!r}")


def small(png: bytes) -> bytes:
    """Return the same picture with few colors."""
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def main() -> int:
    """Write the picture."""
    PICTURE.write_bytes(small(shown(NOTEBOOK, FIGURE)))
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
