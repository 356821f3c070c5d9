"""The built pages in a browser, opened from their files with no network."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from bs4 import BeautifulSoup
from playwright.sync_api import Page

from browsing import LECTURES, PAGES, PHONE, WIDE, Visit

# What axe-core finds in the markup of others and cannot be mended from here: rule, element, cause.
THEME_FAULTS: dict[tuple[str, str], str] = {}


@pytest.fixture(scope="module", params=[*PAGES, "search", "genindex"])
def seen(request: pytest.FixtureRequest, open_page: Callable[..., Visit]) -> Iterator[Visit]:
    """Each page in turn, open for all tests that ask for it: light and wide, its folds open."""
    visit = open_page(request.param)
    visit.page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true })")
    yield visit
    visit.close()


@pytest.fixture
def dark(seen: Visit) -> Iterator[Page]:
    """The page as it is in a dark room; without motion, so that no color is caught on its way."""
    seen.page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    seen.page.wait_for_function("document.documentElement.dataset.theme == 'dark'")
    yield seen.page
    seen.page.emulate_media(color_scheme="light", reduced_motion="no-preference")


@pytest.fixture
def narrow(seen: Visit) -> Iterator[Page]:
    """The page on a phone."""
    seen.page.set_viewport_size({"width": PHONE, "height": 844})
    seen.page.wait_for_timeout(350)  # the theme looks at sizes 300 ms after the last change
    yield seen.page
    seen.page.set_viewport_size({"width": WIDE, "height": 900})


def faults(page: Page, *rules: str) -> list[str]:
    """Serious and critical faults that axe-core finds, of all rules or of those named."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(AXE_SCRIPT)
    options: dict[str, Any] = {"resultTypes": ["violations"], "preload": False}
    if rules:
        options["runOnly"] = list(rules)
    # MathJax hides the glyphs of a formula from screen readers and its MathML from everyone else.
    found = page.evaluate(
        "(options) => axe.run({ exclude: ['mjx-math', 'mjx-assistive-mml'] }, options)", options
    )
    return [
        f"{fault['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
        if (fault["id"], node["target"][0]) not in THEME_FAULTS
    ]


def test_nothing_is_asked_of_another_origin(seen: Visit, site: Path):
    assert seen.requests
    assert [url for url in seen.requests if not url.startswith((f"{site.as_uri()}/", "data:", "blob:"))] == []


def test_nothing_complains(seen: Visit):
    assert seen.complaints == []


def test_math_is_set(seen: Visit):
    written = seen.page.locator("article .math").count()
    assert seen.page.locator("article .math > mjx-container").count() == written
    assert seen.page.locator("article mjx-container mjx-assistive-mml").count() == written
    assert seen.page.locator("mjx-merror, [data-mjx-error]").count() == 0
    if written:
        assert seen.page.evaluate(
            "[...document.fonts].some((font) => font.family.startsWith('MJX') && font.status == 'loaded')"
        )


def test_no_markup_is_left_raw(seen: Visit):
    said = seen.page.evaluate("""() => {
        const said = [document.title];
        const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (texts.nextNode())
            if (!texts.currentNode.parentElement.closest('pre, code, script, style, noscript, mjx-container'))
                said.push(texts.currentNode.data);
        for (const name of ['title', 'alt', 'aria-label', 'placeholder', 'data-bs-title'])
            document.querySelectorAll(`[${name}]`).forEach((tag) => said.push(tag.getAttribute(name)));
        return said;
    }""")
    assert len(said) > 50
    assert [text for text in said if re.search(r"\$|\\[()\[\]]|\{[a-z:]+\}`", text)] == []


def test_every_image_is_there_and_described(seen: Visit):
    for image in seen.page.locator("img").all():
        assert image.evaluate("(image) => image.complete && image.naturalWidth > 0"), image.get_attribute(
            "src"
        )
        alt = image.get_attribute("alt")
        beside_its_name = image.evaluate("(image) => image.closest('a')?.innerText.trim().length > 0")
        assert alt is not None and (beside_its_name or len(alt) > 20)


def test_axe_finds_nothing_serious(seen: Visit):
    assert faults(seen.page) == []


def test_axe_finds_nothing_serious_in_the_dark(dark: Page):
    assert faults(dark, "color-contrast", "link-in-text-block") == []


def test_axe_finds_nothing_serious_on_a_phone(narrow: Page):
    assert faults(narrow, "scrollable-region-focusable", "target-size", "aria-hidden-focus") == []


def test_nothing_sticks_out_on_a_phone(narrow: Page):
    assert narrow.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert (
        narrow.evaluate("""() => {
        const scrolls = (tag) => tag && (/auto|scroll/.test(getComputedStyle(tag).overflowX)
            ? tag.getBoundingClientRect().right <= innerWidth : scrolls(tag.parentElement));
        return [...document.querySelectorAll('article *')]
            .filter((tag) => tag.getBoundingClientRect().right > innerWidth + 1)
            .filter((tag) => !scrolls(tag.parentElement) && !tag.closest('mjx-assistive-mml'))
            .map((tag) => tag.outerHTML.slice(0, 200));
    }""")
        == []
    )


def test_the_chapters_open_on_a_phone(open_page: Callable[..., Visit]):
    for theme in ("light", "dark"):
        visit = open_page(PAGES[0], width=PHONE, theme=theme, motion="reduce")
        visit.page.locator("button.primary-toggle").click()
        visit.page.get_by_role("link", name="Activations").first.wait_for()
        assert faults(visit.page) == []
        visit.page.locator("dialog a", has_text="Activations").first.click()
        visit.page.wait_for_url("**/01_activations.html")
        assert visit.complaints == []
        visit.close()


MOVING = """() => [...document.querySelectorAll('*')].flatMap((tag) =>
    ['', '::before', '::after'].map((part) => [tag, getComputedStyle(tag, part)]))
    .filter(([, style]) => style.animationName != 'none' || style.scrollBehavior == 'smooth'
        || style.transitionDuration.split(', ').some((seconds) => parseFloat(seconds) > 0))
    .map(([tag]) => tag.outerHTML.slice(0, 100))"""


def test_nothing_moves_for_those_who_asked_for_that(open_page: Callable[..., Visit]):
    for motion, expected in (("no-preference", True), ("reduce", False)):
        visit = open_page(LECTURES[0], motion=motion)
        assert bool(visit.page.evaluate(MOVING)) == expected
        visit.close()


def test_search_finds_every_page_by_its_title(open_page: Callable[..., Visit], site: Path):
    visit = open_page("search")
    for name in PAGES:
        heading = BeautifulSoup((site / f"{name}.html").read_text(encoding="utf-8"), "html.parser").title
        title = re.sub(r"^\d+\. | — .*$", "", str(heading and heading.string))
        visit.page.goto(f"{(site / 'search.html').as_uri()}?{urlencode({'q': title})}")
        visit.page.locator(f"#search-results li a[href*='{name}.html']").first.wait_for(timeout=10_000)
    assert visit.complaints == []
    visit.close()


def test_search_leads_to_a_page(open_page: Callable[..., Visit]):
    visit = open_page(PAGES[0])
    visit.page.keyboard.press("Control+k")
    visit.page.keyboard.type("offloading")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url("**/search.html?q=offloading")
    visit.page.locator("#search-results li a", has_text="Offloading").first.click()
    visit.page.wait_for_url("**/04_offloading.html*")
    assert visit.complaints == []
    visit.close()
