"""Built pages, opened in a browser from their files with no network. The fixtures are in book/conftest.py."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml
from playwright.sync_api import Browser, ConsoleMessage, Page, Request

ROOT = Path(__file__).parents[1]
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text())
PAGES = [TOC["root"], *(chapter["file"] for part in TOC["parts"] for chapter in part["chapters"])]
LECTURES = [page for page in PAGES if page.removeprefix("notebooks/")[0].isdigit()]

WIDE, PHONE = 1280, 390  # pixels


@dataclass
class Visit:
    """An open page, what it has asked for, and what it and the browser complained of."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def close(self) -> None:
        self.page.context.close()


def visit(
    browser: Browser,
    site: Path,
    name: str,
    *,
    theme: Literal["light", "dark"] = "light",
    width: int = WIDE,
    motion: Literal["no-preference", "reduce"] = "no-preference",
    scripts: Literal["on", "off"] = "on",
) -> Visit:
    """Open a page by its name in _toc.yml (`search?q=word` too) and wait until its math is set."""
    context = browser.new_context(
        offline=True,
        color_scheme=theme,
        reduced_motion=motion,
        viewport={"width": width, "height": 900},
        java_script_enabled=scripts == "on",
    )
    seen = Visit(context.new_page())

    def listen(said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            seen.complaints.append(f"{said.type}: {said.text}")

    def failed(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left before it had come
            seen.complaints.append(f"{request.failure}: {request.url}")

    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.on("requestfailed", failed)
    seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    seen.page.on("console", listen)
    path, mark, query = name.partition("?")
    seen.page.goto((site / f"{path}.html").as_uri() + mark + query)
    if scripts == "on":
        seen.page.evaluate("async () => { await globalThis.MathJax?.startup?.promise }")
    return seen
