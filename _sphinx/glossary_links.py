"""Links the first use of each term of the glossary on a page to its entry, and marks the entry's languages.

Only running text is looked at: paragraphs and list items, not headings, captions, tables, code, math or what
is a link already. A term may stand in the plural or be inflected as an English verb. Two settings:

- `glossary_pages`: patterns of the pages to look at; the others are left alone.
- `glossary_only`: terms that mean something else on other pages, each with patterns of the pages where it is
  linked. On any page the role `term` links a term by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from typing import Any, NamedTuple, cast

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.std import StandardDomain
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

ENDINGS = r"(?:e?s|d|ed|ing)?"
# A paragraph inside one of these is no running text.
ELSEWHERE = (
    nodes.entry,
    nodes.figure,
    nodes.caption,
    nodes.topic,
    nodes.citation,
    nodes.footnote,
    addnodes.desc,
)
# Text inside one of these is not prose, or leads somewhere already.
TAKEN = (nodes.reference, nodes.literal, nodes.math, nodes.raw, nodes.title_reference, addnodes.pending_xref)
CHINESE = re.compile(r"[\u4e00-\u9fff]")
CLASS = "glossary-link"
logger = logging.getLogger(__name__)


class Entry(NamedTuple):
    """Where an entry of the glossary stands."""

    page: str
    label: str


def pattern(terms: Iterable[str]) -> re.Pattern[str]:
    """Return what finds a term as a word; of two that begin alike the longer one.

    >>> found = pattern(["recompute", "full recompute", "micro-batch", "saved tensor"])
    >>> [match[1] for match in found.finditer("Recomputed, a full recompute of micro-batches; saved tensors")]
    ['Recompute', 'full recompute', 'micro-batch', 'saved tensor']
    >>> found.search("prerecompute, recomputer, recompute_all, micro-batch-size") is None
    True
    """
    words = "|".join(re.escape(term).replace(r"\ ", r"\s+") for term in sorted(terms, key=len, reverse=True))
    return re.compile(rf"(?<![\w-])({words}){ENDINGS}(?![\w-])", re.IGNORECASE)


def running_text(page: nodes.document) -> Iterator[nodes.Text]:
    """Yield the pieces of prose of a page, in order."""

    def within(node: nodes.Node, kinds: tuple[type, ...]) -> bool:
        while node.parent is not None and not isinstance(node, kinds):
            node = node.parent
        return isinstance(node, kinds)

    for paragraph in list(page.findall(nodes.paragraph)):
        if not within(paragraph, ELSEWHERE):
            for text in list(paragraph.findall(nodes.Text)):
                if not within(text, TAKEN):
                    yield text


def matches(page: str, patterns: Iterable[str]) -> bool:
    """Say whether a page's name matches one of the patterns."""
    return any(fnmatch(page, name) for name in patterns)


def entries(objects: Mapping[tuple[str, str], tuple[str, str]]) -> dict[str, Entry]:
    """Return the English terms, in lower case, from the domain's objects."""
    return {
        name.lower(): Entry(*place)
        for (kind, name), place in objects.items()
        if kind == "term" and not CHINESE.search(name)
    }


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of a term in the settings that the glossary does not have."""
    known = entries(cast(StandardDomain, env.get_domain("std")).objects)
    for term in app.config.glossary_only:
        if term.lower() not in known:
            logger.warning("glossary_only: no term %r in the glossary", term)


class FirstUses(SphinxPostTransform):
    """Link the first uses on one page, when its references have been resolved (at 10)."""

    default_priority = 300

    def run(self, **_: Any) -> None:
        """Replace words of the text by links."""
        page = self.env.docname
        domain = cast(StandardDomain, self.env.get_domain("std"))
        known = entries(domain.objects)
        if page in {entry.page for entry in known.values()} or not matches(page, self.config.glossary_pages):
            return
        for term, pages in self.config.glossary_only.items():
            if not matches(page, pages):
                known.pop(term.lower(), None)
        if not known:
            return
        done = {uri for link in self.document.findall(nodes.reference) if (uri := link.get("refuri"))}
        words = pattern(known)
        for text in running_text(self.document):
            parts: list[nodes.Node] = []
            at = 0
            for match in words.finditer(text):
                entry = known[re.sub(r"\s+", " ", match[1]).lower()]
                link = make_refnode(
                    self.app.builder, page, entry.page, entry.label, nodes.inline("", match[0])
                )
                if link["refuri"] in done:
                    continue
                done.add(link["refuri"])
                link["classes"].append(CLASS)
                parts += [nodes.Text(text[at : match.start()]), link]
                at = match.end()
            if parts:
                text.parent.replace(text, [*parts, nodes.Text(text[at:])])


def mark_languages(app: Sphinx, page: nodes.document) -> None:
    """Say of the Chinese terms that they are Chinese, for screen readers and fonts."""
    for term in page.findall(nodes.term):
        if CHINESE.search(term.astext()):
            term["classes"].append("language-zh")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_config_value("glossary_only", {}, "env", types=(dict,))
    app.add_config_value("glossary_pages", ["*"], "env", types=(list,))
    app.connect("doctree-read", mark_languages)
    app.connect("env-check-consistency", check)
    app.add_post_transform(FirstUses)
    app.add_css_file("glossary.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
