"""Docstrings for the API reference, as this package writes them: types stand in the annotations alone.

Napoleon takes the words before a first colon of `Returns:`, `Yields:` or a property's docstring for a type,
and looks for a class of that name. Here they are prose. An empty comment before them, which shows nothing,
tells it so.

A signature with one argument a line is written by Sphinx as a list of definitions without terms, which screen
readers do not know; here it becomes plain boxes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

SECTION = re.compile(r"(?P<indent> *)(?:Returns|Yields):\s*")
VALUES = ("attribute", "data", "property")  # napoleon's words for what has no arguments
COMMENT = ".."
ARGUMENTS = re.compile(r"<dl>\s*(<dd>.*?</dd>)\s*</dl>", re.DOTALL)


def marked(what: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a docstring with a comment before what is no type.

    >>> for line in marked("function", ["Add.", "", "Returns:", "    Bytes: the sum."]):
    ...     print(line)
    Add.
    <BLANKLINE>
    Returns:
        ..
    <BLANKLINE>
        Bytes: the sum.
    """
    if what in VALUES:
        yield from (COMMENT, "")
    for line in lines:
        yield line
        if section := SECTION.fullmatch(line):
            yield from (f"{section['indent']}    {COMMENT}", "")


def mark(app: Sphinx, what: str, name: str, subject: object, options: object, lines: list[str]) -> None:
    """Mark a docstring, in place, as Sphinx asks for it."""
    lines[:] = marked(what, lines)


def boxed(body: str) -> str:
    """Turn the lists of arguments of a page into boxes.

    >>> boxed('<dt>f(<dl> <dd>a</dd> </dl>)</dt><dl><dt>g</dt><dd>b</dd></dl>')
    '<dt>f(<div class="sig-lines"><div>a</div></div>)</dt><dl><dt>g</dt><dd>b</dd></dl>'
    """

    def box(found: re.Match[str]) -> str:
        lines = found[1].replace("<dd>", "<div>").replace("</dd>", "</div>")
        return f'<div class="sig-lines">{lines}</div>'

    return ARGUMENTS.sub(box, body)


def box_arguments(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Do so in a page that is about to be written."""
    if "body" in context:
        context["body"] = boxed(context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx; docstrings come here before they come to napoleon (at 500)."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", mark, priority=400)
    app.connect("html-page-context", box_arguments)
    app.add_css_file("api.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
