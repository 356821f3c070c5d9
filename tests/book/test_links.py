"""Every link of every built page leads somewhere: pages, places in them, citations, exercises, files."""

import os
import re
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from browsing import PAGES, ROOT

pytestmark = pytest.mark.skipif(
    "REMAT_SITE" not in os.environ, reason="`make test` builds the site for these"
)
# Made by scripts when the page is open.
SCRIPTED = ("javascript:", "data:", "blob:", "mailto:")
# Names in docstrings that are described by the libraries themselves; no page of theirs is asked for.
ELSEWHERE = re.compile(r"(torch|numpy|matplotlib|ipywidgets)\.")
# Names that sphinx-exercise gives to the body of every exercise and every solution; nothing leads there.
REPEATED = {"exercise-content", "solution-content"}
ASKS = {"href", "src", "data", "poster", "action"}


class Page(HTMLParser):
    """What a page asks for, what its places are called, and what Sphinx could not resolve."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: list[tuple[str, str]] = []  # the element, and the address
        self.ids: Counter[str] = Counter()
        self.unresolved: list[str] = []
        self.within: list[str] = []  # open links
        self.left_over = False  # whether the text that comes is that of an unresolved reference
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids[values["id"]] += 1
        if tag == "a":
            self.within.append(values.get("href", ""))
        # Outside a link, this class is what is left of a reference that leads nowhere.
        elif "xref" in values.get("class", "").split() and not self.within:
            self.left_over = True
        self.links += [(tag, values[name]) for name in sorted(ASKS & set(values))]
        if "srcset" in values:
            self.links += [(tag, part.split()[0]) for part in values["srcset"].split(",")]

        if values.get("http-equiv", "").lower() == "refresh":
            self.links.append((tag, values["content"].partition("url=")[2]))

    def handle_data(self, data: str) -> None:
        if self.left_over and not ELSEWHERE.match(data):
            self.unresolved.append(data)
        self.left_over = False

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self.within:
            self.within.pop()


@cache
def read(path: Path) -> Page:
    return Page(path)


def site() -> Path:
    return (ROOT / os.environ.get("REMAT_SITE", "_build/html")).resolve()


# What lies in _static are parts of the theme's templates.
FILES = sorted(path for path in site().rglob("*.html") if "_static" not in path.parts)
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(site()).as_posix())


def spelled(path: Path, root: Path) -> bool:
    """Whether a file is there under just this name, also on a disk that does not tell a from A."""
    return path == root or (path.name in names_in(path.parent) and spelled(path.parent, root))


@cache
def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()


def broken(page: Page, root: Path) -> list[str]:
    """Addresses within the site that lead nowhere, each with the reason."""
    found = []
    for tag, address in page.links:
        url = urlparse(address)
        if url.scheme or url.netloc or address.startswith(SCRIPTED) or (tag == "form" and not address):
            continue
        target = (page.path.parent / unquote(url.path)).resolve() if url.path else page.path
        fragment = unquote(url.fragment)
        if not target.is_relative_to(root):
            found.append(f"{address}: outside the site")
        elif not target.is_file() or not spelled(target, root):
            found.append(f"{address}: no such file")
        elif fragment and target.suffix == ".html" and fragment not in read(target).ids:
            found.append(f"{address}: no such place")
    return found


def test_every_page_was_built():
    built = {path.relative_to(site()).with_suffix("").as_posix() for path in FILES}
    assert {*PAGES, "genindex", "search"} <= built


@each_file
def test_every_link_leads_somewhere(path: Path):
    page = read(path)
    assert page.links
    assert broken(page, site()) == []


@each_file
def test_every_place_has_a_name_of_its_own(path: Path):
    assert [name for name, times in read(path).ids.items() if times > 1 and name not in REPEATED] == []


@each_file
def test_every_reference_is_resolved(path: Path):
    assert read(path).unresolved == []
    text = path.read_text(encoding="utf-8")
    assert not re.search(
        r"\[\?\]|\?\?\?|class=\"[^\"]*\bproblematic\b|class=\"[^\"]*\bsystem-message\b", text
    )


def test_all_works_of_the_bibliography_can_be_reached_and_lead_out():
    """Citations lead here, by the check of places; each entry names where the work can be read."""
    text = (site() / "book" / "bibliography.html").read_text(encoding="utf-8")
    entries = re.findall(
        r'<div class="citation".*?(?=<div class="citation"|</section>)', text, flags=re.DOTALL
    )
    keys = re.findall(
        r"^@\w+\{(\S+),$", (ROOT / "book" / "references.bib").read_text("utf-8"), flags=re.MULTILINE
    )
    assert len(entries) == len(keys) > 5
    for entry in entries:
        assert re.search(r'href="https://(doi\.org|arxiv\.org|www\.|openreview)', entry), entry


def test_exercises_and_solutions_lead_to_each_other():
    pages = [path for path in FILES if 'class="exercise' in path.read_text(encoding="utf-8")]
    for path in pages:
        text = path.read_text(encoding="utf-8")
        exercises = re.findall(r'<div class="exercise[^"]*" id="([\w-]+)"', text)
        solved = re.findall(
            r'class="solution[^"]*" id="[\w-]+".*?<a class="reference internal" href="#([\w-]+)"', text, re.S
        )
        assert exercises and sorted(exercises) == sorted(solved)


# --- the check is a check ---


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ('<a href="nowhere.html">', "no such file"),
        ('<a href="b.html#nowhere">', "no such place"),
        ('<a href="#nowhere">', "no such place"),
        ('<a href="B.html">', "no such file"),
        ('<a href="../outside.html">', "outside the site"),
        ('<img src="missing.png">', "no such file"),
        ('<img srcset="missing.png 2x">', "no such file"),
        ('<script src="missing.js">', "no such file"),
        ('<a href=".">', "no such file"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(link: str, reason: str, tmp_path: Path):
    (tmp_path / "b.html").write_text('<p id="here">')
    (tmp_path.parent / "outside.html").write_text("")
    (tmp_path / "a.html").write_text(link)
    (found,) = broken(Page(tmp_path / "a.html"), tmp_path)
    assert found.endswith(reason)


def test_a_link_that_leads_somewhere_is_let_through(tmp_path: Path):
    (tmp_path / "b c.html").write_text('<p id="é">')
    (tmp_path / "a.html").write_text(
        '<a id="top" href="#top"><a href="b%20c.html#%C3%A9"><a href="https://example.org/x#y">'
        '<a href="mailto:a@example.org"><img src="data:image/png;base64,x">'
    )
    assert broken(Page(tmp_path / "a.html"), tmp_path) == []


def test_an_unresolved_reference_is_found(tmp_path: Path):
    (tmp_path / "a.html").write_text(
        '<a href="#"><code class="xref py">x</code></a><code class="xref py">y</code>'
    )
    assert len(Page(tmp_path / "a.html").unresolved) == 1
