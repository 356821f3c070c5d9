"""What the pages weigh: a table in Markdown of the bytes that a reader's browser fetches.

Run from the top of the repository, after `make book`, where a browser is installed:

    .venv/bin/python benchmarks/weights.py

Each page is opened in the browser, which says what it asks for; nothing is guessed from the markup. Texts
count as gzip (level 6) makes them, as most hosts send them; pictures and fonts as they are. A first visit
finds nothing in the browser's cache, the next page in the table of contents finds what the first one left.
Headers are not counted. Exit status 1 when a page passes a limit.
"""

import gzip
import re
import shutil
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlparse

import yaml
from playwright.sync_api import Browser, sync_playwright

from remat.tables import table

SITE = Path("_build/html").resolve()
LIMITS = {"first visit": 1_300_000, "next page": 300_000}  # bytes, for a lecture
PACKED = {".css", ".html", ".js", ".json", ".svg", ".txt", ".xml"}
# An explorer ends with its frames; no element inside it nests another block of its kind.
EXPLORER = re.compile(r'<div class="remat-explorer".*?</script>\s*</div>', re.DOTALL)
PARTS = {  # where a file lies: what it is counted as, first match
    r"_static/mathjax/": "MathJax",
    r"_static/(scripts/|vendor/)fontawesome": "icons",
    r"_static/explore\.": "explorers",
    r"_static/": "theme",
    r"_images/": "pictures",
    r".*\.html$": "text",
}


def size(data: bytes, kind: str) -> int:
    """Bytes sent for a file."""
    return len(gzip.compress(data, 6, mtime=0)) if kind in PACKED else len(data)


@cache
def weigh(path: Path) -> dict[str, int]:
    """Bytes sent for a file of the site, by what they are for."""
    data = path.read_bytes()
    whole = size(data, path.suffix)
    name = path.relative_to(SITE).as_posix()
    part = next(part for pattern, part in PARTS.items() if re.match(pattern, name))
    if part != "text":
        return {part: whole}
    bare = size(EXPLORER.sub("", data.decode()).encode(), path.suffix)
    return {"text": bare, "explorers": whole - bare}


def total(paths: Iterable[Path]) -> dict[str, int]:
    """Bytes sent for files, by what they are for."""
    parts = dict.fromkeys(["text", "pictures", "explorers", "MathJax", "icons", "theme"], 0)
    for path in paths:
        for part, count in weigh(path).items():
            parts[part] += count
    return parts


def asked_for(browser: Browser, name: str) -> set[Path]:
    """Return the files that a page asks for while it is opened and read to its end."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.goto((SITE / f"{name}.html").as_uri())
    page.evaluate("async () => { await globalThis.MathJax?.startup?.promise }")
    page.mouse.wheel(0, 1_000_000)
    page.wait_for_timeout(500)
    page.close()
    return {Path(unquote(urlparse(url).path)) for url in urls if url.startswith("file:")}


def main() -> int:
    toc = yaml.safe_load(Path("_toc.yml").read_text())
    pages = [toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])]
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None or not SITE.exists():
        print("needs a built site and a browser: chromium or google-chrome", file=sys.stderr)
        return 2
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        files = {name: asked_for(browser, name) for name in pages}
    rows, heavy = [], []
    for i, name in enumerate(pages):
        first = total(files[name])
        before = files[pages[i - 1]] if i else set()
        sums = {"first visit": sum(first.values()), "next page": sum(total(files[name] - before).values())}
        after = f"{sums['next page'] / 1000:,.0f}" if i else "—"
        drawn = len(EXPLORER.findall((SITE / f"{name}.html").read_text(encoding="utf-8")))
        kilobytes = [f"{count / 1000:,.0f}" for count in first.values()]
        rows.append([name, f"{sums['first visit'] / 1000:,.0f}", after, *kilobytes, drawn])
        if name.startswith("notebooks/"):
            heavy += [
                f"{name}, {visit}: {sums[visit]:,} bytes, at most {limit:,} wanted"
                for visit, limit in LIMITS.items()
                if sums[visit] > limit and (i or visit == "first visit")
            ]
    print(
        "# Weight of the pages\n\nkB sent for a first visit, and for the page as the next one after the page"
    )
    print("above it; then what the first visit is made of.\n")
    parts = list(total([]))
    print(table(["page", "first visit", "next page", *parts, "number of explorers"], rows))
    print("\n" + "\n".join(heavy or [f"Within the limits of a lecture: {LIMITS}."]))
    return 1 if heavy else 0


if __name__ == "__main__":
    sys.exit(main())
