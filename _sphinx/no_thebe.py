"""Takes out what sphinx-thebe adds: Jupyter Book loads it, and its script fails on every page."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

MARKS = ("THEBE_JS_URL", "x-thebe-config", "kernelName = ")


def drop_assets(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Leave the thebe scripts and their style sheet out of a page."""
    for kind in ("script_files", "css_files"):
        context[kind] = [
            asset
            for asset in context[kind]
            if "thebe" not in str(getattr(asset, "filename", asset))
            and MARKS[0] not in str(getattr(asset, "attributes", {}).get("body", ""))
        ]


def drop_settings(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Leave out the settings that sphinx-thebe appends to a page's text."""
    for node in list(doctree.findall(nodes.raw)):
        if any(mark in node.astext() for mark in MARKS):
            node.parent.remove(node)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx, after sphinx-thebe."""
    app.connect("doctree-resolved", drop_settings, priority=900)
    app.connect("html-page-context", drop_assets, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
