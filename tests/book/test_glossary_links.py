"""First uses of the glossary's terms become links, once a page and in running text only."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import glossary_links
import pytest
from bs4 import BeautifulSoup, Tag
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
SETTINGS = """
project = html_title = "small"
html_theme = "alabaster"
extensions = ["myst_parser", "glossary_links"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
glossary_only = {"Work": ["second"]}
glossary_pages = ["index", "words", "second", "none"]
nitpicky = True
"""
WORDS = """# Words

```{glossary}
checkpoint
检查点
  What is kept on purpose, unlike a segment.

full recompute
完全重计算
  Everything again.

recompute
  To run again.

segment
  What lies between two.

work
  What is computed twice.
```
"""
INDEX = """# A checkpoint in a heading

```{toctree}
words
second
third
none
```

Code first: `checkpoint`, then [a checkpoint in a link](second.md), then $checkpoint$, then **checkpoints**
and a checkpoint again. They full recomputed it; a recompute and a segmented segment. Their work.

```{code-block} python
segment = "segment"
```

| segment |
|---------|
| segment |

:::{figure} dot.png
:alt: a segment in a picture

A segment in a caption.
:::

- A segment, in a list.

Term
: Another segment.
"""
SECOND = """# Second

By hand: {term}`segment`. Then a segment and WORKS; a pre-segment, segment_all, a checkpoint.
"""
DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000a49444154789c63000100000500010d0a2db40000000049454e44ae426082"
)


def run_sphinx(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", source, out],
        env=os.environ | {"PYTHONPATH": str(ROOT / "_sphinx")},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    (source / "conf.py").write_text(SETTINGS)
    (source / "dot.png").write_bytes(DOT)
    pages = {"index": INDEX, "words": WORDS, "second": SECOND, "third": "# Third\n\nA segment.\n"}
    for name, text in (pages | {"none": "# None\n\nNothing to see.\n"}).items():
        (source / f"{name}.md").write_text(text, encoding="utf-8")
    done = run_sphinx(source, out)
    assert done.returncode == 0, done.stderr
    return out


def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def links(path: Path) -> list[Tag]:
    return soup(path).select(f"a.{glossary_links.CLASS}")


def test_examples_in_docstrings() -> None:
    result = doctest.testmod(glossary_links)
    assert result.attempted and not result.failed


def test_first_uses_are_linked_once_each_and_in_order(small: Path) -> None:
    found = [(" ".join(link.get_text().split()), link["href"]) for link in links(small / "index.html")]
    assert found == [
        ("checkpoints", "words.html#term-checkpoint"),
        ("full recomputed", "words.html#term-full-recompute"),
        ("recompute", "words.html#term-recompute"),
        ("segmented", "words.html#term-segment"),
    ]


def test_every_link_leads_to_an_entry(small: Path) -> None:
    ids = {term["id"] for term in soup(small / "words.html").select("dl.glossary dt")}
    for page in ("index", "second"):
        assert {link["href"].partition("#")[2] for link in links(small / f"{page}.html")} <= ids


def test_the_text_is_otherwise_as_it_was(small: Path) -> None:
    text = " ".join(soup(small / "index.html").get_text().split())
    assert "then checkpoints and a checkpoint again. They full recomputed it; a recompute and a" in text


def test_headings_code_math_tables_captions_and_links_are_left_alone(small: Path) -> None:
    for inside in ("h1", "code", "pre", "table", "figure", "span.math", "a a", "dt"):
        assert not soup(small / "index.html").select(f"{inside} a.{glossary_links.CLASS}"), inside
    assert soup(small / "index.html").select_one("img")["alt"] == "a segment in a picture"


def test_what_is_linked_by_hand_is_not_linked_again(small: Path) -> None:
    assert [link.get_text() for link in links(small / "second.html")] == ["WORKS", "checkpoint"]


def test_a_word_with_another_meaning_is_linked_where_the_settings_say(small: Path) -> None:
    assert "Their work." in soup(small / "index.html").get_text()
    for page, linked in (("index", False), ("second", True)):
        assert bool(soup(small / f"{page}.html").select("a[href='words.html#term-work']")) == linked


def test_a_term_that_is_not_there_is_refused(small: Path, tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text(SETTINGS.replace('"Work"', '"toil"'))
    (tmp_path / "index.md").write_text(WORDS, encoding="utf-8")
    done = run_sphinx(tmp_path, tmp_path / "out")
    assert done.returncode != 0 and "no term 'toil'" in done.stderr


def test_the_glossary_itself_and_pages_not_named_are_left_alone(small: Path) -> None:
    assert links(small / "words.html") == links(small / "third.html") == links(small / "none.html") == []


def test_chinese_terms_say_their_language(small: Path) -> None:
    terms = soup(small / "words.html").select("dl.glossary dt")
    chinese = {term.get_text(strip=True).rstrip("¶#"): term.get("lang") for term in terms}
    assert chinese["检查点"] == chinese["完全重计算"] == "zh"
    assert {chinese[word] for word in ("checkpoint", "segment", "work")} == {None}


@given(
    st.lists(st.from_regex(r"[a-z]{2,8}( [a-z]{2,8})?", fullmatch=True), min_size=1, max_size=6, unique=True),
    st.data(),
)
def test_the_pattern_finds_every_term_and_the_longest(terms: list[str], data: st.DataObject) -> None:
    term = data.draw(st.sampled_from(terms))
    found = glossary_links.pattern(terms).search(f"({term.upper()},")
    assert found is not None
    assert len(found[1]) <= len(term) and found[1].lower() in terms
    longest = max((other for other in terms if term.startswith(other)), key=len)
    if longest == term:
        assert found[1].lower() == term


def test_every_term_of_the_book_is_linked_from_another_page(site: Path) -> None:
    used = {
        match[1]
        for page in site.rglob("*.html")
        if page.name != "genindex.html" and page != site / "book" / "glossary.html"
        for match in re.finditer(r'href="[^"]*glossary\.html#(term-[^"]+)"', page.read_text(encoding="utf-8"))
    }
    terms = [
        term
        for term in soup(site / "book" / "glossary.html").select("dl.glossary dt")
        if term.get("lang") is None
    ]
    assert len(terms) >= 30
    assert [term.get_text(strip=True) for term in terms if term["id"] not in used] == []


def test_every_term_of_the_book_has_its_chinese_beside_it(site: Path) -> None:
    for entry in soup(site / "book" / "glossary.html").select("dl.glossary dd"):
        names = [entry.find_previous_siblings("dt")[i] for i in range(2)]
        assert [name.get("lang") for name in names] == ["zh", None], names
