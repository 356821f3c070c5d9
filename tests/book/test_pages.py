"""Every page opens with its question and ends with where to go next."""

from pathlib import Path

import nbformat
import pytest

from browsing import PAGES

ROOT = Path(__file__).parents[2]
LISTS = {"book/bibliography"}  # a list of works, which other pages link to


def prose(page: str) -> str:
    """All Markdown of a page."""
    text, notebook = ROOT / f"{page}.md", ROOT / f"{page}.ipynb"
    if text.exists():
        return text.read_text(encoding="utf-8")
    cells = nbformat.read(notebook, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def opens_with_a_question(text: str) -> bool:
    """Whether there is a question in bold, or after words in bold, before the third paragraph."""
    paragraphs = [part for part in text.split("\n\n") if not part.startswith("#")]
    return any(part.startswith("**") and "?" in part for part in paragraphs[:2])


def says_what_comes_next(text: str) -> bool:
    """Whether a paragraph says "Next", or one of the last ones names what comes next."""
    paragraphs = text.strip().split("\n\n")
    ending = "\n\n".join(paragraphs[-7:]).lower()
    return any(p.startswith("**Next:**") for p in paragraphs) or "next" in ending or "start here" in ending


@pytest.mark.parametrize("page", [page for page in PAGES if page not in LISTS])
def test_a_page_opens_with_its_question_and_ends_with_what_is_next(page: str) -> None:
    text = prose(page)
    assert opens_with_a_question(text)
    assert says_what_comes_next(text)


def test_a_page_without_either_is_found() -> None:
    assert not opens_with_a_question("# Title\n\nThis page is about memory.\n\nIs it? No.")
    assert not says_what_comes_next("# Title\n\n**Is it?**\n\nThat is all.")
