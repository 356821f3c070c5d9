"""Finds the numbers with a unit that are typed into Markdown prose: a finder for book/test_numbers.py.

A number may stand in a sentence in which a citation follows: the role `cite` in a page. In a notebook that is
a link to the paper, and may come first as well ("Chen et al. (2016) report ..."). A row of a table is a
sentence, in which the citation may come first too; or it stands in the line before the table, which then ends
in a colon. A question states nothing.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin

SCALE = r"(?:thousand|million|billion|trillion)"
UNIT = "|".join(
    (
        r"(?:[kKMGTP]i?B|[kMGT]bit)(?:/s)?|\sB(?:/s)?|bytes?(?:/s)?",  # memory, bandwidth; 16-bit is a format
        r"%|‰|percent|per cent|×(?!\s*[\d(])|x|times|-?fold",  # shares and factors, not sizes of images
        r"[mµun]?s|(?:milli|micro|nano)?seconds?|minutes?|hours?|days?",  # time
        r"[kMGTPE]?FLOPs?(?:/s)?|[kMGTPE]FLOPS|[kMG]?Hz|k?W",  # work, power
        r"s·b·h|sbh|units?|outputs?|activations?|forwards?|backwards?",  # the book's own
        r"layers?|parameters?|tokens?",  # how large a model fits
    )
)
NUMBER = r"\d(?:[\d,.]*\d)?"
QUANTITY = re.compile(
    rf"(?<![\w.,/-])({NUMBER}(?:\s?(?:to|–|-|and|or)\s?{NUMBER})?"
    rf"(?:[\s\u00a0\u202f-]?{SCALE})?[\s\u00a0\u202f-]?(?:{UNIT}))(?![\w·/])",
)
CITATION, HIDDEN = "\u2402", "\u2400"  # what stands for a citation, and for a role, code or math
ENDS = re.compile(r"(?<=[.!?])[)”\"]?\s+(?=[^a-z(\d]|\([A-Z])")  # of a sentence
ABBREVIATION = re.compile(r"\b(?:al|vs|cf|e\.g|i\.e|eq|eqs|fig|figs|sec|no|approx|resp)\.$", re.IGNORECASE)
PAPER = re.compile(r"arxiv\.org|doi\.org|openreview\.net|proceedings|usenix\.org|acm\.org|jmlr\.org")
AUTHOR_YEAR = re.compile(r"[^\W\d_]{2,}.*\b(?:19|20)\d\d\b")
DIRECTIVE = re.compile(r"^\s*(?P<fence>`{3,}|:{3,}|~{3,})\s*\{(?P<name>[\w:.-]+)\}")
FENCE = re.compile(r"^\s*(?P<fence>`{3,}|:{3,}|~{3,})\s*(?P<rest>\S*)")
# Directives with no prose in them.
SILENT = {"math", "code-block", "code", "code-cell", "eval-rst", "bibliography", "toctree", "include", "raw"}


class Quantity(NamedTuple):
    """A number with a unit, typed into prose."""

    text: str
    sentence: str


def unfenced(source: str) -> str:
    """Return a page without code blocks, and with the text of its directives as plain text."""
    kept: list[str] = []
    open_fences: list[tuple[str, bool]] = []  # the fence, and whether what stands in it is dropped
    options = False
    for line in source.splitlines():
        dropped = any(silent for _, silent in open_fences)
        found = FENCE.match(line)
        if found and open_fences and not found["rest"] and found["fence"].startswith(open_fences[-1][0]):
            open_fences.pop()
            kept.append("")
        elif found and not (dropped and open_fences[-1][0][0] != ":"):
            directive = DIRECTIVE.match(line)
            silent = directive is None or directive["name"] in SILENT
            open_fences.append((found["fence"], silent))
            options = True
            title = line[directive.end() :].strip() if directive and not silent else ""
            kept += ["", title, ""]
        elif options and re.match(r"^\s*:[\w-]+:", line):
            continue
        elif not dropped:
            options = False
            kept.append(line)
    return "\n".join(kept)


def shown(children: list[Token], *, roles: bool) -> str:
    """Return inline text with citations, roles, code and math replaced by their signs."""
    text, links = "", []
    for child in children:
        if child.type == "text":
            text += child.content
        elif child.type == "code_inline":
            role = re.search(r"\{([\w:.-]+)\}$", text) if roles else None
            text = text[: role.start()] if role else text
            text += CITATION if role and role[1].startswith("cite") else HIDDEN
        elif child.type == "link_open":
            links.append((len(text), str(child.attrs.get("href", ""))))
        elif child.type == "link_close":
            start, href = links.pop()
            if not roles and PAPER.search(href) and AUTHOR_YEAR.search(text[start:]):
                text = text[:start] + CITATION
        elif child.type in ("softbreak", "hardbreak"):
            text += " "
        elif child.type.startswith(("math", "image", "html")):
            text += HIDDEN
    return text


def sentences(text: str) -> Iterator[str]:
    """Split a paragraph into sentences."""
    part = ""
    for piece in ENDS.split(text):
        part = f"{part} {piece}".strip()
        if not ABBREVIATION.search(part):
            yield part
            part = ""
    if part:
        yield part


def typed(source: str, *, roles: bool = True) -> list[Quantity]:
    """Find the quantities of a Markdown text that no citation covers; roles are known in pages alone."""
    found: list[Quantity] = []

    def look(sentence: str, *, covered: int) -> None:
        for match in QUANTITY.finditer(sentence):
            if match.start() >= covered:
                found.append(Quantity(match[1], sentence))

    parser = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, double_inline=True)
    row: list[str] | None = None
    before = ""  # the paragraph before
    for token in parser.parse(unfenced(source) if roles else source):
        if token.type == "tr_open":
            row = []
        elif token.type == "tr_close" and row is not None:
            text, row = " | ".join(row), None
            introduced = CITATION in before and before.rstrip().endswith(":")
            look(text, covered=len(text) if introduced or CITATION in text else 0)
        elif token.type == "inline" and row is not None:
            row.append(shown(token.children or [], roles=roles))
        elif token.type == "inline":
            before = shown(token.children or [], roles=roles)
            for sentence in sentences(before):
                cited = CITATION in sentence
                whole = sentence.endswith("?") or (cited and not roles)
                look(sentence, covered=len(sentence) if whole else sentence.rfind(CITATION) + 1)
    return found
