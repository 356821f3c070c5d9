"""The notebooks as they are saved: run, clean, described, and readable as plain Markdown."""

import re
from pathlib import Path

import nbformat
import pytest
import yaml
from clean_notebooks import clean, text
from markdown_it import MarkdownIt
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def makes_image(cell: NotebookNode) -> bool:
    return any(
        mime.startswith("image/") for output in cell.get("outputs", []) for mime in output.get("data", {})
    )


def explores(cell: NotebookNode) -> bool:
    """Whether a cell shows an explorer, which has its own alternative text and a sentence as caption."""
    return re.fullmatch(r"explorers\.\w+\(\)", cell.source.strip()) is not None


def myst_only(source: str) -> list[str]:
    """Return what a reader of plain Markdown would see as litter, or not see at all.

    Found in the tokens of CommonMark, so that code blocks and code spans may speak of anything.
    """
    found = []
    for token in MarkdownIt("commonmark").parse(source):
        if token.type == "fence" and token.info.startswith("{"):
            found.append(f"directive {token.info}")
        if token.type != "inline":
            continue
        children = token.children or []
        for child, after in zip(children, [*children[1:], None], strict=True):
            if child.type == "text":
                role = re.search(r"\{[a-zA-Z][\w:.+-]*\}$", child.content)
                if role and after is not None and after.type == "code_inline":
                    found.append(f"role {role.group()}")
                if child.content.startswith(":::"):
                    found.append(f"fence {child.content}")
                if re.fullmatch(r"\([\w-]+\)=", child.content) or child.content.startswith("+++"):
                    found.append(f"target or break {child.content}")
            if child.type == "link_open" and after is not None and after.type == "link_close":
                found.append(f"link without a text to {child.attrs['href']}")
    return found


def test_every_notebook_is_in_the_table_of_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    pages = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    listed = [page for page in pages if page.startswith("notebooks/")]
    assert listed == [f"notebooks/{path.stem}" for path in NOTEBOOKS]


@each_notebook
def test_is_clean(path: Path):
    assert path.read_text(encoding="utf-8") == text(clean(read(path))), "run `make notebooks`"


@each_notebook
def test_was_run_from_top_to_bottom(path: Path):
    cells = [cell for cell in code_cells(read(path)) if cell.source.strip()]
    assert cells
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@each_notebook
def test_has_no_errors_and_nothing_on_stderr(path: Path):
    for cell in code_cells(read(path)):
        for output in cell.outputs:
            assert output.output_type != "error", cell.source
            assert output.get("name") != "stderr", output.text


@each_notebook
def test_outputs_name_no_folder_of_a_machine(path: Path):
    for cell in code_cells(read(path)):
        for output in cell.outputs:
            shown = output.get("text", "") + "".join(
                data for mime, data in output.get("data", {}).items() if mime.startswith("text/")
            )
            assert not re.search(r"(^|[\s'\"(=])/(home|root|tmp|usr|Users|private)/", shown), shown


@each_notebook
def test_every_image_has_alt_text_a_caption_and_a_name(path: Path):
    images = [cell for cell in code_cells(read(path)) if makes_image(cell) and not explores(cell)]
    assert images, "a lecture without a figure"
    for cell in images:
        myst = cell.metadata.get("mystnb", {})
        assert len(myst.get("image", {}).get("alt", "")) > 20, cell.source
        assert len(myst.get("figure", {}).get("caption", "")) > 20, cell.source
        assert re.fullmatch(r"fig-[a-z0-9-]+", myst.get("figure", {}).get("name", "")), cell.source


def test_figure_names_are_used_once():
    names = [
        cell.metadata.mystnb.figure.name
        for path in NOTEBOOKS
        for cell in read(path).cells
        if makes_image(cell) and not explores(cell)
    ]
    assert sorted(names) == sorted(set(names))


@each_notebook
def test_reads_well_as_plain_markdown(path: Path):
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            assert myst_only(cell.source) == [], cell.source


@each_notebook
def test_has_one_title_and_it_comes_first(path: Path):
    notebook = read(path)
    assert notebook.cells[0].source.startswith("# ")
    titles = [
        token
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for token in MarkdownIt("commonmark").parse(cell.source)
        if token.type == "heading_open" and token.tag == "h1"
    ]
    assert len(titles) == 1


@pytest.mark.parametrize(
    "source",
    [
        "See {ref}`fig-ledger`.",
        "By {cite:t}`chen2016`.",
        "Peak: {glue:text}`peak:d`",
        ":::{note}\nText.\n:::",
        "Text.\n:::",
        "```{math}\nx\n```",
        "````{admonition} Title\nx\n````",
        "(my-label)=\n## Heading",
        "+++",
        "[](#fig-ledger)",
    ],
)
def test_myst_is_found(source: str):
    assert myst_only(source)


@pytest.mark.parametrize(
    "source",
    [
        "The set $\\{a\\}$ and $x_{i}$ of `code`.",
        "```python\nprint(f'{x}')  # {ref}`x`\n```",
        "Write `` {ref}`x` `` in a page.",
        "$$\n\\sum_{i=1}^{n} a_i\n$$",
        "[Chen et al. (2016)](https://arxiv.org/abs/1604.06174)",
        "> **Note.** A quotation is a box everywhere.",
    ],
)
def test_plain_markdown_is_let_through(source: str):
    assert myst_only(source) == []
