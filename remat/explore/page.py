"""The explorer of the published page: plain HTML, brought to life by _sphinx/static/explore.js.

It stands without scripts too: the picture and the sentence are the default's, and the sliders stay hidden.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from html import escape
from urllib.parse import quote

from remat.explore import Explorer
from remat.explore.frames import Frames
from remat.explore.slider import Slider


def page(explorer: Explorer, drawn: Frames) -> str:
    """Write an explorer as HTML: sliders, the default picture and sentence, and all frames packed.

    Args:
        explorer: what to show.
        drawn: its frames.

    Returns:
        One block element. Frame number = the sliders' positions, the last slider fastest.
    """
    at = explorer.settings.index(explorer.default)
    picture = drawn.pictures[at]
    width, height = _size(picture)
    names = "Explorer: " + ", ".join(slider.label for slider in explorer.sliders.values())
    ranges = "\n".join(_range(f"explore-{explorer.name}-{key}", s) for key, s in explorer.sliders.items())
    return f"""\
<div class="remat-explorer" id="explore-{explorer.name}" role="group" aria-label="{escape(names)}">
<div class="remat-sliders" hidden>
{ranges}
</div>
<img class="remat-picture" src="{_data(picture)}" width="{width}" height="{height}" \
alt="{escape(explorer.alt)}">
<p class="remat-sentence" role="status" aria-live="polite">{escape(drawn.sentences[at], quote=False)}</p>
<script type="text/plain" class="remat-frames">{b64encode(drawn.packed).decode()}</script>
</div>
"""


def _range(id: str, slider: Slider) -> str:
    """One slider with its label and its value; positions count from 0."""
    now = escape(slider.text(slider.default))
    texts = escape(json.dumps(slider.texts, ensure_ascii=False))
    at, last = slider.values.index(slider.default), len(slider.values) - 1
    return f"""\
<div class="remat-slider">
<label for="{id}">{escape(slider.label)}</label> <span class="remat-value">{now}</span>
<input type="range" id="{id}" min="0" max="{last}" step="1" value="{at}" autocomplete="off" \
aria-valuetext="{now}" data-texts="{texts}">
</div>"""


def _size(picture: str) -> tuple[int, int]:
    """Width and height of an SVG in CSS pixels."""
    points = [float(re.search(rf'{side}="([\d.]+)pt"', picture)[1]) for side in ("width", "height")]  # type: ignore[index]
    return round(points[0] * 4 / 3), round(points[1] * 4 / 3)


def _data(picture: str) -> str:
    """An SVG as the address of an image; left readable, it packs better than base64."""
    return "data:image/svg+xml," + quote(picture, safe=" ()*!'/:;=,-@$?+")
