"""Writes `sitemap.xml`, the list of pages for search engines, when `html_baseurl` is set."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from sphinx.application import Sphinx


def sitemap(addresses: list[str]) -> str:
    """Return the file's text.

    >>> print(sitemap(["https://example.org/a.html"]))
    <?xml version="1.0" encoding="utf-8"?>
    <urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">
    <url><loc>https://example.org/a.html</loc></url>
    </urlset>
    """
    lines = [f"<url><loc>{escape(address)}</loc></url>" for address in addresses]
    return "\n".join(
        [
            '<?xml version="1.0" encoding="utf-8"?>',
            '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">',
            *lines,
            "</urlset>",
        ]
    )


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the file beside the pages."""
    base = app.config.html_baseurl.rstrip("/")
    if exception is not None or not base or app.builder.format != "html":
        return
    pages = [f"{base}/{app.builder.get_target_uri(name)}" for name in sorted(app.env.found_docs)]
    Path(app.outdir, "sitemap.xml").write_text(sitemap(pages) + "\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
