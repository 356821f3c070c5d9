"""Chapters still to come, in the sidebar as plain text.

`planned` in _config.yml is a list of groups. A group names the page it stands `after`, and its `titles`.
After a numbered page the titles go on with its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from bs4 import BeautifulSoup
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util import logging

NOTE = "In preparation"
logger = logging.getLogger(__name__)


class Group(NamedTuple):
    """Titles in a row, and the page they stand after."""

    after: str
    titles: tuple[str, ...]


def read(value: object) -> list[Group]:
    """Return the groups written in _config.yml, or refuse what is not such a list."""
    groups = []
    for entry in value if isinstance(value, list) else [value]:
        if not isinstance(entry, dict) or set(entry) != {"after", "titles"}:
            raise ExtensionError(f"planned: expected a page to stand `after` and `titles`, got {entry!r}")
        groups.append(Group(str(entry["after"]), tuple(map(str, entry["titles"]))))
    return groups


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of a group after no page, and of a title that has become a page."""
    written = {title.astext() for title in env.titles.values()}
    for group in read(app.config.planned):
        if group.after not in env.titles:
            logger.warning("planned: no page %r to stand after", group.after)
        for title in written.intersection(group.titles):
            logger.warning("planned: %r is a page now; take it out of _config.yml", title)


def insert(sidebar: BeautifulSoup, link: str, titles: Sequence[str], number: Sequence[int] | None) -> None:
    """Put titles after the entry that points to link; number is that entry's own."""
    page = sidebar.find("a", href=link)
    place = page and page.find_parent("li")
    if place is None:
        raise ExtensionError(f"planned: no entry for {link!r} in the sidebar")
    group = sidebar.new_tag("li", attrs={"class": "toctree-l1 planned"})
    note = sidebar.new_tag("span", attrs={"class": "planned-note"})
    note.string = NOTE
    names = sidebar.new_tag("ul")
    for ahead, title in enumerate(titles, start=1):
        name = sidebar.new_tag("li")
        name.string = f"{number[-1] + ahead}. {title}" if number else title
        names.append(name)
    group.extend([note, names])
    place.insert_after(group)


def add_to_sidebar(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Wrap the theme's sidebar maker so that the planned chapters stand in what it returns."""
    made_by_theme: Callable[..., BeautifulSoup] = context["generate_toctree_html"]

    @cache
    def with_planned(kind: str, **options: object) -> BeautifulSoup:
        sidebar = made_by_theme(kind, **options)
        if kind == "sidebar":
            for page, titles in read(app.config.planned):
                number = app.env.toc_secnumbers.get(page, {}).get("")
                insert(sidebar, context["pathto"](page), titles, number)
        return sidebar

    context["generate_toctree_html"] = with_planned


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx, after the theme."""
    app.add_config_value("planned", [], "html", types=(list,))
    app.connect("env-check-consistency", check)
    app.connect("html-page-context", add_to_sidebar, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
