"""A figure that a notebook drew, on another page.

    ```{notebook-figure} ../notebooks/01_activations.ipynb::first-stage
    :name: fig-welcome
    :alt: what a reader who cannot see it needs to know

    The caption.
    ```

The notebook names the figure when it shows it (`display(figure, metadata={"scrapbook": …})`). MyST-NB can
carry such an output to another page, but without alternative text, number or caption; this directive adds
them.
"""

from __future__ import annotations

from binascii import a2b_base64
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from myst_nb.ext.glue.crossref import read_glue_cache
from myst_nb.ext.glue.utils import create_pending_glue_ref
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

ALT, SOURCE = "notebook_figure_alt", "notebook_figure_source"


class NotebookFigure(SphinxDirective):
    """The directive."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {
        "name": directives.unchanged_required,
        "alt": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Return a figure that waits for the notebook's output."""
        page, separator, key = self.arguments[0].partition("::")
        if not separator or not key:
            raise self.error(f"expected NOTEBOOK::NAME, got {self.arguments[0]!r}")
        if not self.options.get("alt"):
            raise self.error("a figure needs :alt:, the text for readers who cannot see it")
        if not self.content:
            raise self.error("a figure needs a caption")
        source, line = self.get_source_info()
        pending = create_pending_glue_ref(self.state.document, source, line, page, key)
        figure = nodes.figure("", pending)
        figure[ALT], figure[SOURCE] = self.options["alt"], (pending.refdoc, key)
        self.set_source_info(figure)
        self.add_name(figure)
        caption = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, caption)
        figure += nodes.caption("", "", *caption[0].children)
        return [figure]


class AlternativeText(SphinxPostTransform):
    """Give the image its alternative text once MyST-NB (at 5) has put it in place."""

    default_priority = 6

    def run(self, **_: Any) -> None:
        """Walk the figures of one page."""
        for figure in self.document.findall(nodes.figure):
            if ALT in figure:
                for image in figure.findall(nodes.image):
                    image["alt"] = figure[ALT]
                    self.write(Path(self.app.outdir, self.env.docname).parent / image["uri"], *figure[SOURCE])

    def write(self, path: Path, page: str, key: str) -> None:
        """Write the picture, unless the notebook's page has: it does not for a cell that it leaves out."""
        if not path.exists():
            kept = read_glue_cache(self.env.mystnb_config.output_folder, page)  # type: ignore[attr-defined]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(a2b_base64(kept[key]["data"]["image/png"]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("notebook-figure", NotebookFigure)
    app.add_post_transform(AlternativeText)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
