"""A browser for the tests of the built pages."""

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from browsing import ROOT, Visit, visit

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built pages."""
    if "REMAT_SITE" not in os.environ:
        pytest.skip("`make test` builds the site for these")
    return (ROOT / os.environ["REMAT_SITE"]).resolve()


# Not for the whole session: while Playwright runs, no other test can run an event loop of its own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The first browser found on this machine."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser on this machine; looked for {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program)


@pytest.fixture(scope="module")
def open_page(browser: Browser, site: Path) -> Callable[..., Visit]:
    """`browsing.visit` with the browser and the site filled in. Who opens a page closes it."""
    return partial(visit, browser, site)
