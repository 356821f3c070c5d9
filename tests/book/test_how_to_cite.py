"""The citation that the book shows is that of CITATION.cff, and the README's."""

import doctest
import re
from pathlib import Path

import how_to_cite
import pytest
import yaml
from bs4 import BeautifulSoup
from pybtex.database import parse_string

ROOT = Path(__file__).parents[2]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
YEAR = str(CONFIG["copyright"])


def test_examples_in_docstrings() -> None:
    result = doctest.testmod(how_to_cite)
    assert result.attempted and not result.failed


def test_bibtex_reads_what_the_citation_says() -> None:
    ((key, entry),) = parse_string(how_to_cite.bibtex(CITATION, YEAR), "bibtex").entries.items()
    assert key == "remat"
    assert entry.fields["title"] == CITATION["title"]
    assert entry.fields["url"] == CITATION["repository-code"]
    assert CITATION["version"] in entry.fields["note"]
    assert entry.fields["year"] == YEAR
    assert [str(person).strip("{}") for person in entry.persons["author"]] == [
        author["name"] for author in CITATION["authors"]
    ]


def test_people_are_named_as_bibtex_wants() -> None:
    people = [
        {"family-names": "de la Cruz", "given-names": "Ana"},
        {"family-names": "Li", "given-names": "Bo"},
    ]
    (entry,) = parse_string(
        how_to_cite.bibtex(CITATION | {"authors": people}, YEAR), "bibtex"
    ).entries.values()
    assert [person.last_names for person in entry.persons["author"]] == [["Cruz"], ["Li"]]
    assert entry.persons["author"][0].prelast_names == ["de", "la"]


def test_the_readme_shows_the_same() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^    @misc\{.*?^    \}", readme, flags=re.MULTILINE | re.DOTALL)
    ours = parse_string(how_to_cite.bibtex(CITATION, YEAR), "bibtex").entries["remat"]
    assert parse_string(re.sub(r"^    ", "", shown, flags=re.M), "bibtex").entries["remat"] == ours


@pytest.mark.parametrize("word", ["MIT", "CC BY 4.0"])
def test_the_page_shows_it_and_the_licenses(site: Path, word: str) -> None:
    page = BeautifulSoup((site / "book" / "cite.html").read_text(encoding="utf-8"), "html.parser")
    (block,) = page.select("article .highlight-bibtex pre")
    assert block.get_text().strip() == how_to_cite.bibtex(CITATION, YEAR)
    assert word in page.select_one("article table").get_text()
    assert {"MIT": "MIT", "CC BY 4.0": "CC-BY-4.0"}[word] in CITATION["license"]
