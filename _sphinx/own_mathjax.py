"""Serves MathJax from the site itself, so that math is set with no network and no other host is asked.

The files come from a package in requirements.txt that carries MathJax, and are copied into `_static` when the
site is built: the program, its fonts, the TeX extensions that it loads when a formula asks for one, and its
license.
"""

from __future__ import annotations

import shutil
from importlib.metadata import distribution
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config

CARRIER = "django-static-mathjax"  # needs no Django
ROOT = "mathjax/static/mathjax"
FILES = {  # in the package: on the site
    "LICENSE": "LICENSE",
    "es5/tex-mml-chtml.js": "tex-mml-chtml.js",
    "es5/output/chtml/fonts": "output/chtml/fonts",
    "es5/input/tex/extensions": "input/tex/extensions",
}


def carried() -> Path:
    """Return the folder of MathJax in the installed package."""
    return Path(str(distribution(CARRIER).locate_file(ROOT)))


def choose(app: Sphinx, config: Config) -> None:
    """Name the site's own copy, and what it should do."""
    config.mathjax_path = "mathjax/tex-mml-chtml.js"
    # The menu would make every formula a stop of the tab key, and offers parts that are not copied.
    # Hidden MathML, which screen readers read, is made without it.
    settings = dict(config.mathjax3_config or {})
    config.mathjax3_config = settings | {"options": settings.get("options", {}) | {"enableMenu": False}}


def copy(app: Sphinx) -> None:
    """Copy what the pages load into the site."""
    if app.builder.format != "html":
        return
    for source, name in FILES.items():
        target = Path(app.outdir, "_static", "mathjax", name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if (carried() / source).is_dir():
            shutil.copytree(carried() / source, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(carried() / source, target)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("config-inited", choose, priority=900)
    app.connect("builder-inited", copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
