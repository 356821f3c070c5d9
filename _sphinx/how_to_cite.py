"""The citation of this book as BibTeX, made from CITATION.cff when the site is built.

```{bibtex-of-citation}
```
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FILE = "CITATION.cff"


def bibtex(citation: dict[str, Any], year: str) -> str:
    """Return the entry for what a CITATION.cff says.

    >>> said = {"title": "engine: parts", "version": "1.0", "authors": [{"name": "The makers"}]}
    >>> print(bibtex(said | {"repository-code": "https://example.org/engine"}, "2026"))
    @misc{engine,
      author = {{The makers}},
      title  = {engine: parts},
      note   = {Version 1.0},
      year   = {2026},
      url    = {https://example.org/engine}
    }
    """
    names = [
        "{" + author["name"] + "}"
        if "name" in author
        else f"{author['family-names']}, {author['given-names']}"
        for author in citation["authors"]
    ]
    fields = {
        "author": " and ".join(names),
        "title": citation["title"],
        "note": f"Version {citation['version']}",
        "year": year,
        "url": citation["repository-code"],
    }
    key = re.sub(r"\W.*", "", citation["title"])
    lines = ",\n".join(f"  {name:6} = {{{value}}}" for name, value in fields.items())
    return f"@misc{{{key},\n{lines}\n}}"


class BibtexOfCitation(SphinxDirective):
    """The directive."""

    def run(self) -> list[nodes.Node]:
        """Return the entry as a block of code."""
        path = Path(self.env.srcdir, FILE)
        self.env.note_dependency(str(path))
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
        text = bibtex(said, str(self.config.copyright)[:4])
        return [nodes.literal_block(text, text, language="bibtex")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("bibtex-of-citation", BibtexOfCitation)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
