"""Title, text and picture that a link to a page shows elsewhere (OpenGraph), when `html_baseurl` is set.

The text is the page's first paragraph. The picture is the page's first figure, or else the welcome page's;
the address of either must be whole, which is why nothing is said of a site that has no address yet.
"""

from __future__ import annotations

from html import escape
from pathlib import PurePosixPath
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

LONGEST = 200  # characters; more is cut off where links are shown


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return text on one line, cut between words.

    >>> shortened("Which do you keep, and which do you recompute?", 30)
    'Which do you keep, and which …'
    """
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1].rsplit(" ", 1)[0] + " …"


def opening(page: nodes.document) -> str:
    """Return the first paragraph of a page that is not part of something else."""
    for section in page.findall(nodes.section):
        for child in section.children:
            if isinstance(child, nodes.paragraph):
                return shortened(child.astext())
    return ""


def picture(app: Sphinx, page: nodes.document) -> tuple[str, str] | None:
    """Return where in the site the first figure's image lies and its alternative text, or None."""
    for image in page.findall(nodes.image):
        known = app.env.images.get(image["uri"])  # a page that was written names the copy in the site instead
        name = known[1] if known else PurePosixPath(image["uri"]).name
        if name.endswith((".png", ".jpg")):
            return f"{app.builder.imagedir}/{name}", image.get("alt", "")
    return None


def tags(app: Sphinx, pagename: str, title: str, page: nodes.document) -> list[tuple[str, str]]:
    """Return names and contents of a page's OpenGraph tags."""
    base = app.config.html_baseurl.rstrip("/")
    found = [
        ("og:type", "article"),
        ("og:site_name", app.config.html_title),
        ("og:title", title),
        ("og:description", opening(page)),
        ("og:url", f"{base}/{app.builder.get_target_uri(pagename)}"),
    ]
    shown = picture(app, page)
    if shown is None:
        shown = picture(app, app.env.get_and_resolve_doctree(app.config.root_doc, app.builder))
    if shown is not None:
        found += [("og:image", f"{base}/{shown[0]}"), ("og:image:alt", shortened(shown[1]))]
    return [(name, content) for name, content in found if content]


def add_to_head(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Put the tags into the head of a page that was written by an author."""
    if not app.config.html_baseurl or doctree is None:
        return
    title = app.env.titles[pagename].astext()
    lines = [
        f'<meta property="{name}" content="{escape(content)}" />'
        for name, content in tags(app, pagename, title, doctree)
    ]
    lines.append('<meta name="twitter:card" content="summary_large_image" />')
    context["metatags"] = context.get("metatags", "") + "\n".join(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("html-page-context", add_to_head)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
