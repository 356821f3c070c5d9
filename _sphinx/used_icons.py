"""Ships the icons that the pages show, and leaves out the other two thousand.

The theme's icons come as one script that holds every icon of Font Awesome, half a megabyte even when
compressed. The script that is put into the site is the same one, cut down to the icons named in the site.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

SCRIPT = "_static/scripts/fontawesome.js"
NAME = re.compile(r"\bfa-([a-z0-9-]+)")
# "arrow-up":[width,height,[other names],"f062","path"], without the quotes where JavaScript allows.
ICON = re.compile(
    r'(?:"(?P<quoted>[\w-]+)"|(?P<bare>\w+)):'
    r'\[\d+,\d+,\[(?P<others>[^\]]*)\],"[0-9a-f]+",(?:"[^"]*"|\[[^\]]*\])\],?'
)
logger = logging.getLogger(__name__)


def used(site: Path) -> set[str]:
    """Return the names of the icons that the pages and scripts of a site mention."""
    files = (file for kind in ("*.html", "*.js") for file in site.rglob(kind) if file != site / SCRIPT)
    return {name for file in files for name in NAME.findall(file.read_text(encoding="utf-8"))}


def cut(script: str, names: set[str]) -> str:
    """Return the script without the icons that go by none of the names.

    >>> cut('l={"arrow-up":[384,512,[9],"f062","M2z"],bars:[448,512,["navicon"],"f0c9","M1"]}', {"navicon"})
    'l={bars:[448,512,["navicon"],"f0c9","M1"]}'
    """

    def keep(icon: re.Match[str]) -> str:
        own = {icon["quoted"] or icon["bare"], *re.findall(r'"([^"]+)"', icon["others"])}
        return icon[0] if own & names else ""

    return ICON.sub(keep, script)


def shrink(app: Sphinx, exception: Exception | None) -> None:
    """Cut the script of a site that was built."""
    script = Path(app.outdir, SCRIPT)
    if exception is not None or app.builder.format != "html":
        return
    whole = script.read_text(encoding="utf-8")
    short = cut(whole, used(Path(app.outdir)))
    if len(short) > len(whole) / 4:
        logger.warning("used_icons: the icons of %s are written in a way not known here", SCRIPT)
    script.write_text(short, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("build-finished", shrink)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
