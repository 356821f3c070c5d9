"""Claims that the reader judges: what the directive writes, and how a reader answers it by keyboard."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import self_check
from axe_playwright_python.base import AXE_SCRIPT
from bs4 import BeautifulSoup, Tag
from playwright.sync_api import Browser, Page

from browsing import PHONE, Visit, visit

ROOT = Path(__file__).parents[2]
SETTINGS = """
project = html_title = "small"
html_theme = "sphinx_book_theme"
html_static_path = [{static!r}]
extensions = ["myst_parser", "sphinx.ext.mathjax", "own_mathjax", "no_thebe", "self_check"]
html_context = {{"default_mode": "auto"}}
myst_enable_extensions = ["colon_fence", "dollarmath"]
nitpicky = True
"""
CLAIMS = r"""# Claims

```{toctree}
other
```

:::{self-check} A checkpoint every $\sqrt n$ stages, by `uniform`, is *optimal* & cheap.
:answer: false

Look at [the other page](other.md).

| a | b |
|---|---|
| 1 | 2 |
:::

:::{self-check} Nothing is stored.
:answer: true

- A list comes first.
:::
"""
WORDS = {"true": "True", "false": "False", "depends": "It depends"}


def run_sphinx(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "-E", source, out],
        env=os.environ | {"PYTHONPATH": str(ROOT / "_sphinx")},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of a page with two claims and a page without."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    (source / "conf.py").write_text(SETTINGS.format(static=str(ROOT / "_sphinx" / "static")))
    (source / "index.md").write_text(CLAIMS)
    (source / "other.md").write_text("# Other\n\nNo claim here.\n")
    done = run_sphinx(source, out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def checks(small: Path) -> list[Tag]:
    page = BeautifulSoup((small / "index.html").read_text(encoding="utf-8"), "html.parser")
    return page.select(".self-check")


def test_a_claim_names_a_group_of_three_buttons(checks: list[Tag]) -> None:
    assert len(checks) == 2
    for number, check in enumerate(checks, start=1):
        (legend,) = check.select("form > fieldset > legend")
        assert legend.get_text().startswith(f"Claim {number} ")
        buttons = check.select("fieldset input[type=radio]")
        assert {button["value"]: button.parent.get_text(strip=True) for button in buttons} == WORDS
        assert len({button["name"] for button in buttons}) == 1
        assert all(button.parent.name == "label" for button in buttons)
        assert check.select_one("fieldset button[type=submit]")
        assert check.select_one("form > [role=status]").get_text() == ""
    assert checks[0].select_one("input")["name"] != checks[1].select_one("input")["name"]


def test_the_claim_keeps_its_markup(checks: list[Tag]) -> None:
    legend = checks[0].select_one("legend")
    assert legend.select_one("span.math") and legend.select_one("code") and legend.select_one("em")
    assert "is optimal & cheap." in " ".join(legend.get_text().split())


@pytest.mark.parametrize(("number", "right"), [(0, "false"), (1, "true")])
def test_the_right_answer_is_marked_once_and_opens_the_reasons(
    checks: list[Tag], number: int, right: str
) -> None:
    check = checks[number]
    assert [button["value"] for button in check.select("[data-right]")] == [right]
    assert check.select_one("details").get("open") is None
    assert check.select_one("details > p > strong").get_text() == f"{WORDS[right]}."


def test_the_answer_may_hold_anything(checks: list[Tag]) -> None:
    assert checks[0].select_one("details a[href='other.html']")
    assert checks[0].select_one("details table")
    assert checks[1].select_one("details li").get_text() == "A list comes first."


def test_without_javascript_the_buttons_are_hidden(checks: list[Tag]) -> None:
    assert all(check.select_one(".self-check-choices").has_attr("hidden") for check in checks)


def test_only_pages_with_a_claim_load_the_script(small: Path) -> None:
    for name, loads in (("index", True), ("other", False)):
        text = (small / f"{name}.html").read_text(encoding="utf-8")
        for file in ("self_check.js", "self_check.css"):
            assert (file in text) == loads
            assert (small / "_static" / file).exists()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (":::{self-check} A claim.\n:answer: maybe\n\nBecause.\n:::", "must be one of true, false, depends"),
        (":::{self-check} A claim.\n\nBecause.\n:::", "must be one of true, false, depends"),
        (":::{self-check} A claim.\n:answer: true\n:::", "needs an answer"),
        (":::{self-check}\n:answer: true\n\nBecause.\n:::", "1 argument"),
    ],
)
def test_a_wrong_claim_stops_the_build(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "conf.py").write_text(SETTINGS.format(static=str(ROOT / "_sphinx" / "static")))
    (tmp_path / "index.md").write_text(f"# Claims\n\n{text}\n")
    done = run_sphinx(tmp_path, tmp_path / "out")
    assert done.returncode != 0 and complaint in done.stderr


# ---- in a browser ----

KEPT = """async () => [localStorage.length, sessionStorage.length, document.cookie,
    (await indexedDB.databases()).length, JSON.stringify({ ...localStorage })]"""


@pytest.fixture(scope="module")
def visiting(browser: Browser, small: Path) -> Callable[..., Visit]:
    return lambda **how: visit(browser, small, "index", **how)


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.outerHTML.slice(0, 60)")


@pytest.mark.parametrize(
    ("downs", "verdict", "right"),
    [
        (0, "You said “true”. The answer is “false”.", False),
        (1, "Right: false. Compare your reasons.", True),
        (2, "You said “it depends”. The answer is “false”.", False),
    ],
)
def test_it_is_answered_by_keyboard(
    visiting: Callable[..., Visit], downs: int, verdict: str, right: bool
) -> None:
    seen = visiting()
    check = seen.page.locator(".self-check").first
    before = seen.page.evaluate(KEPT)
    check.locator("input").first.focus()
    press(seen.page, "Space", *["ArrowDown"] * downs)
    assert check.locator(".self-check-verdict").inner_text() == ""  # passing an answer is not judged
    assert not check.locator("details").evaluate("(fold) => fold.open")
    press(seen.page, "Tab")
    assert focused(seen.page).startswith("<button")
    press(seen.page, "Enter")
    said = check.locator(".self-check-verdict")
    assert said.inner_text() == verdict
    assert said.get_attribute("data-right") == str(right).lower()
    assert check.locator("details").evaluate("(fold) => fold.open")
    assert seen.page.locator(".self-check").nth(1).locator(".self-check-verdict").inner_text() == ""
    assert seen.page.evaluate(KEPT) == before
    assert not [url for url in seen.requests if not url.startswith(("file:", "data:"))]
    assert seen.page.url.endswith("index.html")  # nothing was submitted
    assert seen.complaints == []
    seen.close()


def test_enter_judges_and_nothing_chosen_is_said(visiting: Callable[..., Visit]) -> None:
    seen = visiting()
    check = seen.page.locator(".self-check").nth(1)
    check.locator("button").focus()
    press(seen.page, "Enter")
    said = check.locator(".self-check-verdict")
    assert "first" in said.inner_text()
    assert not check.locator("details").evaluate("(fold) => fold.open")
    check.locator("input").first.focus()
    press(seen.page, "Space", "Enter")
    assert said.inner_text().startswith("Right: true")
    press(seen.page, "ArrowDown")  # another choice takes the verdict back
    assert said.inner_text() == ""
    seen.page.reload()
    assert seen.page.locator("input:checked").count() == 0
    seen.close()


def test_the_focus_is_seen(visiting: Callable[..., Visit]) -> None:
    seen = visiting()
    check = seen.page.locator(".self-check").first
    for inside, ring in (("input", "label"), ("button", "button"), ("summary", "summary")):
        check.locator(inside).first.focus()
        press(seen.page, "Shift+Tab", "Tab")
        width = check.locator(ring).first.evaluate("(tag) => getComputedStyle(tag).outlineWidth")
        assert float(width.removesuffix("px")) >= 2, inside
    seen.close()


def test_without_javascript_the_answer_is_within_reach(visiting: Callable[..., Visit]) -> None:
    seen = visiting(scripts="off")
    check = seen.page.locator(".self-check").first
    assert check.locator("legend").is_visible()
    assert not check.locator("input").first.is_visible() and not check.locator("button").is_visible()
    check.locator("summary").focus()
    press(seen.page, "Enter")
    assert check.locator("details strong").is_visible()
    seen.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, PHONE])
def test_it_can_be_read_by_everyone(visiting: Callable[..., Visit], theme: Any, width: int) -> None:
    """No fault of accessibility, before and after a right and a wrong answer; nothing sticks out."""
    seen = visiting(theme=theme, width=width, motion="reduce")
    seen.page.evaluate(AXE_SCRIPT)
    for choice in (None, "true", "false"):
        if choice is not None:
            for check in seen.page.locator(".self-check").all():
                check.locator(f"input[value={choice}]").check()
                check.locator("button").click()
        found = seen.page.evaluate(
            "() => axe.run({ include: ['.self-check'], exclude: ['mjx-math', 'mjx-assistive-mml'] })"
        )
        assert [(fault["id"], fault["nodes"][0]["html"]) for fault in found["violations"]] == []
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    seen.close()


# ---- the page of the book ----


def test_the_page_s_claims_all_have_their_reasons(site: Path) -> None:
    page = BeautifulSoup((site / "book" / "misconceptions.html").read_text(encoding="utf-8"), "html.parser")
    checks = page.select(".self-check")
    assert len(checks) >= 14
    for check in checks:
        reasons = check.select_one("details")
        assert reasons.select("a[href]"), check.select_one("legend").get_text()
        assert len(reasons.get_text().split()) > 30
    answers = [check.select_one("[data-right]")["value"] for check in checks]
    assert set(answers) == set(self_check.ANSWERS), "a page whose claims are all false teaches one answer"
    text = (ROOT / "_sphinx" / "static" / "self_check.js").read_text()
    assert not re.search(r"localStorage|sessionStorage|cookie|indexedDB|fetch|XMLHttp|sendBeacon", text)
