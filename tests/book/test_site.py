"""The built pages. `make test` builds them and names their folder in REMAT_SITE."""

import os
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
import yaml
from bs4 import BeautifulSoup

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text())
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text())
PAGES = [TOC["root"], *(chapter["file"] for part in TOC["parts"] for chapter in part["chapters"])]
LECTURES = [page for page in PAGES if page.removeprefix("notebooks/")[0].isdigit()]

pytestmark = pytest.mark.skipif(
    "REMAT_SITE" not in os.environ, reason="`make test` builds the site for these"
)
LOADED_BY_STYLE = re.compile(r"""(url\(|@import)\s*["']?(https?:)?//""")
each_page = pytest.mark.parametrize("page", PAGES)
each_lecture = pytest.mark.parametrize("page", LECTURES)


def file(page: str) -> Path:
    return (ROOT / os.environ["REMAT_SITE"] / f"{page}.html").resolve()


@cache
def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


@each_page
def test_links_within_the_site_lead_somewhere(page: str):
    path = file(page)
    for link in soup(path).select("a[href]"):
        url = urlparse(str(link["href"]))
        if url.scheme or url.netloc:
            continue
        target = (path.parent / unquote(url.path)).resolve() if url.path else path
        assert target.exists(), link
        if url.fragment and target.suffix == ".html":
            assert soup(target).find(id=unquote(url.fragment)), link


@each_page
def test_images_have_alt_text(page: str):
    for image in soup(file(page)).select("article.bd-article img"):
        alt = str(image.get("alt", ""))
        assert len(alt.split()) > 2 and not re.search(r"[0-9a-f]{16}", alt), image


@each_lecture
def test_figures_are_numbered_and_captioned(page: str):
    figures = soup(file(page)).select("main figure")
    assert figures
    number = LECTURES.index(page) + 1
    for count, figure in enumerate(figures, start=1):
        caption = figure.select_one("figcaption .caption-number")
        assert caption is not None, figure
        assert caption.get_text(strip=True) == f"Figure {number}.{count}"


@each_lecture
def test_no_image_stands_outside_a_figure(page: str):
    # The article, not the logo on the button above it. An explorer has a sentence for a caption.
    shown = soup(file(page)).select("article.bd-article img:not(.remat-explorer img)")
    assert shown == soup(file(page)).select("main figure img")


@each_page
def test_the_sidebar_shows_every_page_and_numbers_the_lectures(page: str):
    sidebar = soup(file(page)).select_one("nav.bd-docs-nav")
    assert sidebar is not None
    linked = [link.get_text(strip=True) for link in sidebar.select("a")]
    assert len(linked) == len(PAGES)
    numbers = [int(found[0]) for title in linked if (found := re.match(r"\d+", title))]
    assert numbers == list(range(1, len(LECTURES) + 1))


@each_page
def test_nothing_failed_while_the_notebooks_ran(page: str):
    assert soup(file(page)).select("main .stderr, main .traceback, main .system-message") == []


@each_page
def test_nothing_is_loaded_from_elsewhere(page: str):
    for tag in soup(file(page)).select("[src], [srcset], link[href], object[data], use[href]"):
        if "canonical" not in tag.get("rel", []):
            for name in ("src", "srcset", "href", "data"):
                assert not urlparse(str(tag.get(name, ""))).netloc, tag
    for style in soup(file(page)).select("style, [style]"):
        assert not LOADED_BY_STYLE.search(str(style.get("style") or style.string)), style
    assert "thebe" not in file(page).read_text(encoding="utf-8").lower()


def test_no_style_sheet_loads_from_elsewhere():
    sheets = list(file("search").parent.glob("_static/**/*.css"))
    assert len(sheets) > 5
    for sheet in sheets:
        assert not LOADED_BY_STYLE.search(sheet.read_text(encoding="utf-8")), sheet


@each_page
def test_the_footer_says_what_the_page_was_built_from(page: str):
    footer = soup(file(page)).select_one("footer.bd-footer-content .extra_footer")
    assert footer is not None
    assert re.search(
        r"Built from remat \d+\.\d+\.\d+, (commit \S+|outside a git repository)", footer.get_text()
    )


@each_page
def test_no_default_of_jupyter_book_is_left(page: str):
    text = file(page).read_text(encoding="utf-8")
    footer = soup(file(page)).select_one("footer.bd-footer-content")
    assert footer is not None
    assert "The remat authors" in footer.get_text()
    assert "2026" in footer.get_text()
    assert "executablebooks" not in text
    assert "My Jupyter Book" not in text
    assert "The Jupyter Book community" not in text
    icon = soup(file(page)).select_one("link[rel*=icon]")
    assert icon is not None
    assert (file(page).parent / str(icon["href"])).resolve().name == "favicon.svg"


@each_lecture
def test_no_markup_is_left_raw(page: str):
    main = soup(file(page)).select_one("article.bd-article")
    assert main is not None
    for code in main.select("pre, code"):
        code.decompose()
    assert not re.search(r"\{[a-z:]+\}`|:::|\]\(#|\*\*\w|\$[^$\n]+\$", main.get_text())


@each_lecture
def test_headings_carry_one_number(page: str):
    for heading in soup(file(page)).select("main :is(h1, h2, h3)"):
        assert not re.match(r"[\d.]+\s+\d+\.", heading.get_text()), "the site numbers headings by itself"
