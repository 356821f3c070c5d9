"""The local Sphinx extensions: a small site built with them, with an address and without."""

import doctest
import importlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import built_from
import own_mathjax
import pytest
import small_pictures
import used_icons
from bs4 import BeautifulSoup
from PIL import Image, ImageChops

PAGES = {
    "index": "Welcome & more\n==============\n\nA first *paragraph*, with “quotes”.\n\n"
    ".. figure:: dot.png\n   :alt: A dot.\n\n.. toctree::\n\n   other\n",
    "other": "Other\n=====\n\nSecond page: :math:`x`.\n\n.. [A1] Author. Title.\n\nSee [A1]_.\n",
}
DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000a49444154789c63000100000500010d0a2db40000000049454e44ae426082"
)
SETTINGS = """
project = html_title = "small"
html_theme = "sphinx_book_theme"
html_theme_options = {"extra_footer": "<p>Free.</p>"}
extensions = ["sphinx.ext.mathjax", "own_mathjax", "used_icons", "small_pictures", "built_from", "sitemap",
              "social_card", "plain_roles"]
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds the small site for an address and returns its folder."""
    source = tmp_path_factory.mktemp("source")
    (source / "dot.png").write_bytes(DOT)
    (source / "conf.py").write_text(SETTINGS)
    for name, text in PAGES.items():
        (source / f"{name}.rst").write_text(text)

    def built(address: str) -> Path:
        out = tmp_path_factory.mktemp("site")
        subprocess.run(
            [sys.executable, "-m", "sphinx", "-q", "-W", "-D", f"html_baseurl={address}", source, out],
            env=os.environ | {"PYTHONPATH": str(ROOT / "_sphinx")},
            check=True,
        )
        return out

    return built


@pytest.fixture(scope="module")
def site(build: Callable[[str], Path]) -> Path:
    return build("https://example.org/book/")


@pytest.fixture(scope="module")
def nowhere(build: Callable[[str], Path]) -> Path:
    return build("")


def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def card(path: Path) -> dict[str, str]:
    return {str(tag["property"]): str(tag["content"]) for tag in soup(path).select("meta[property^='og:']")}


@pytest.mark.parametrize("name", ["built_from", "sitemap", "social_card", "used_icons"])
def test_examples_in_docstrings(name: str):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted and not result.failed


def test_a_site_with_an_address_lists_its_pages(site: Path):
    listed = re.findall("<loc>(.*)</loc>", (site / "sitemap.xml").read_text())
    assert listed == ["https://example.org/book/index.html", "https://example.org/book/other.html"]


def test_a_link_to_a_page_shows_its_title_text_and_picture(site: Path):
    assert card(site / "index.html") == {
        "og:type": "article",
        "og:site_name": "small",
        "og:title": "Welcome & more",
        "og:description": "A first paragraph, with “quotes”.",
        "og:url": "https://example.org/book/index.html",
        "og:image": "https://example.org/book/_images/dot.png",
        "og:image:alt": "A dot.",
    }
    assert (site / "_images" / "dot.png").exists()


def test_a_page_without_a_picture_shows_the_first_page_s(site: Path):
    shown = card(site / "other.html")
    assert shown["og:title"] == "Other"
    assert shown["og:image"] == "https://example.org/book/_images/dot.png"


def test_a_site_without_an_address_says_nothing_of_it(nowhere: Path):
    assert not (nowhere / "sitemap.xml").exists()
    for page in nowhere.glob("*.html"):
        assert card(page) == {}
        assert soup(page).select("link[rel=canonical], meta[name^='twitter:']") == []


def test_mathjax_comes_from_the_site(nowhere: Path):
    scripts = [str(tag["src"]) for tag in soup(nowhere / "other.html").select("script[src*=mathjax]")]
    assert len(scripts) == 1 and scripts[0].startswith("_static/mathjax/tex-mml-chtml.js")
    for name in own_mathjax.FILES.values():
        assert (nowhere / "_static" / "mathjax" / name).exists()
    assert "Apache License" in (nowhere / "_static" / "mathjax" / "LICENSE").read_text()


def test_icons_that_are_shown_are_there_and_others_are_not(nowhere: Path):
    script = (nowhere / used_icons.SCRIPT).read_text()
    shown = used_icons.used(nowhere)
    assert {"bars", "magnifying-glass", "circle-half-stroke"} <= shown
    there = {icon["quoted"] or icon["bare"] for icon in used_icons.ICON.finditer(script)}
    assert {"bars", "magnifying-glass", "circle-half-stroke"} <= there
    assert "rocket" not in there
    assert len(script) < 120_000


def test_pictures_keep_their_colors_and_get_smaller():
    ramp = Image.linear_gradient("L")
    chart = Image.merge("RGB", (ramp, ramp.rotate(90), Image.new("L", ramp.size, 255)))
    for picture in (chart.quantize(200).convert("RGB"), Image.new("RGBA", (300, 300), "#0072b2")):
        buffer = io.BytesIO()
        picture.save(buffer, format="PNG", compress_level=1)
        kept = small_pictures.small(buffer.getvalue())
        assert len(kept) < len(buffer.getvalue())
        change = ImageChops.difference(Image.open(io.BytesIO(kept)).convert("RGB"), picture.convert("RGB"))
        assert max(change.tobytes()) <= small_pictures.MOST


def test_pictures_that_need_their_colors_or_are_clear_stay_as_they_are():
    ramp = Image.linear_gradient("L")
    for picture in (
        Image.merge("RGB", (ramp, ramp.rotate(90), ramp.rotate(180))),
        Image.new("RGBA", (300, 300), (0, 0, 0, 7)),
    ):
        buffer = io.BytesIO()
        picture.save(buffer, format="PNG", compress_level=1)
        assert small_pictures.small(buffer.getvalue()) == buffer.getvalue()


def test_entries_of_a_list_of_references_are_list_items(nowhere: Path):
    entries = soup(nowhere / "other.html").select(".citation-list > .citation")
    assert [entry["role"] for entry in entries] == ["listitem"]


def test_the_footer_says_what_the_site_was_built_from(nowhere: Path):
    footer = soup(nowhere / "index.html").select_one(".extra_footer")
    assert footer is not None
    assert footer.get_text().strip().startswith("Free.Built from remat ")
    assert footer.get_text().strip().endswith("outside a git repository: no commit to name.")


def test_a_commit_is_named_for_the_top_of_a_repository_only(tmp_path: Path):
    def git(*words: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", "-C", str(tmp_path), *author, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "one")
    assert built_from.commit(tmp_path) == git("rev-parse", "--short=10", "HEAD")
    git("tag", "v1")
    assert built_from.commit(tmp_path) == "v1"
    (tmp_path / "a").write_text("2")
    assert built_from.commit(tmp_path) == "v1+changes"
    (tmp_path / "inside").mkdir()
    assert built_from.commit(tmp_path / "inside") is None
    assert built_from.commit(tmp_path / "missing") is None


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert built_from.commit(tmp_path) is None
