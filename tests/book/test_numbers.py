"""No number with a unit is typed into prose: it is computed, part of code or math, or quoted and cited.

The sources are read: the pages of `book/` and the Markdown cells of the notebooks. What a number with a unit
is, and when it is cited, stands in tests/prose.py. What a page *sets* (a GPU of so many GB) is no result: see
ALLOWED.
"""

from pathlib import Path

import nbformat
import pytest

from prose import Quantity, typed

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "book").rglob("*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# By page: words around a number, and why it may stand there as it is.
EVERYWHERE = "*"
EXERCISE = "given by the exercise"
SETTING = "the setting of what is computed"
QUOTED = "quoted in the table above, which cites the paper"
ALLOWED: dict[str, dict[str, str]] = {
    EVERYWHERE: {"2 bytes": "the size of a 16-bit number, a definition"},
    "book/exercises.md": {
        "a model of 13 billion parameters on one GPU": EXERCISE,
        "spends 8 FLOPs per parameter and token": EXERCISE,
        "For 3 billion parameters the update": EXERCISE,
    },
    "book/welcome.md": {"one 80 GB GPU": SETTING},
    "notebooks/01_activations.ipynb": {
        "for all 96 layers": SETTING,
        "stage 1 the 12 bytes": "Adam's state for one parameter, a definition",
    },
    "notebooks/02_checkpointing_a_chain.ipynb": {
        "from 3 to 4 forwards": "an argument: a forward, a backward of two, and one forward more",
    },
    "notebooks/03_selective_recomputation.ipynb": {
        "is not 33%": "the figure that the sentence refutes",
        "40 GFLOP and moves 300 MB": EXERCISE,
    },
    "notebooks/04_offloading.ipynb": {
        "16 bytes": "Adam's state for one parameter, a definition",
        "the 28 bytes": "read and written for one parameter, listed just before",
        "5 ms forward and 10 ms backward on each GPU and keeps 150 MB": EXERCISE,
    },
    "notebooks/05_planning.ipynb": {
        "H100s with 80 GB": SETTING,
        "10 GB left free": SETTING,
        "400 layers with outputs of 10 MB": EXERCISE,
        "An 80 GB card, 40 GB of model state, 10 GB to spare": EXERCISE,
        "60 GB kept whole, 25 GB under selective recompute (6% more time), "
        "8 GB under full recompute (30%)": EXERCISE,
    },
    "notebooks/06_checkpointing_in_pytorch.ipynb": {
        "48 GB to 7 GB": QUOTED,
        "The LSTM's 4×": QUOTED,
        "200 layers is a statement": QUOTED,
        "30% more time is the one": QUOTED,
    },
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def typed_in(path: Path) -> list[Quantity]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return typed(text)
    cells = nbformat.reads(text, as_version=4).cells
    return [
        found for cell in cells if cell.cell_type == "markdown" for found in typed(cell.source, roles=False)
    ]


def allowed(page: str, quantity: Quantity) -> list[tuple[str, str]]:
    return [
        (where, words)
        for where in (page, EVERYWHERE)
        for words in ALLOWED.get(where, {})
        if quantity.text in words and words in quantity.sentence
    ]


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=name)
def test_no_quantity_is_typed_into_prose(path: Path):
    found = [quantity for quantity in typed_in(path) if not allowed(name(path), quantity)]
    assert found == [], "\n".join(f"{text!r} in: {sentence}" for text, sentence in found)


def test_every_entry_of_the_list_is_needed_and_has_a_reason():
    used = {
        key for path in [*PAGES, *NOTEBOOKS] for found in typed_in(path) for key in allowed(name(path), found)
    }
    listed = {
        (where, words): reason for where, entries in ALLOWED.items() for words, reason in entries.items()
    }
    assert sorted(set(listed) - used) == []
    assert all(len(reason.split()) > 3 for reason in listed.values())
    assert len(listed) <= 30, "a list this long hides something"


@pytest.mark.parametrize(
    "source",
    [
        "It takes 48 GB.",
        "It takes 1,234.5 MiB of memory.",
        "A step grows by 33%.",
        "It is 2.5× faster.",
        "It is 3 times as fast.",
        "Copies run at 50 GB/s.",
        "It reaches 300 TFLOP/s.",
        "A copy of 5\u00a0ms hides.",
        "The 12-layer model fits.",
        "It keeps 34 sbh.",
        "It has 1.5 to 2 billion parameters.",
        "# It takes 48 GB",
        "> It takes 48 GB.",
        "- It takes 48 GB.",
        "| claim |\n|:--|\n| 48 GB |",
        "**It takes 48 GB.**",
        "[It takes 48 GB](other.md).",
        "By {cite:t}`chen2016` it takes 48 GB.",
        "A sentence with {cite}`chen2016`. It takes 48 GB.",
        "It takes 48 GB. So say others {cite}`chen2016`.",
        "It takes 7 GB {cite}`chen2016`, and ours takes 8 GB.",
        ":::{note}\nIt takes 48 GB.\n:::",
        "````{admonition} It takes 48 GB\nText.\n````",
        "::::{exercise}\n:label: one\n```python\nx\n```\nIt takes 48 GB.\n::::",
        "```\ncode\n```\n\nIt takes 48 GB.",
        "Does it fit? It takes 48 GB.",
        "As quoted by {cite:t}`chen2016`.\n\n| claim |\n|:--|\n| 48 GB |",
    ],
)
def test_a_planted_quantity_is_found(source: str):
    assert len(typed(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "It takes {glue:text}`../a.ipynb::peak:s`.",
        "It takes `48 GB`.",
        "It takes $48$ GB and $34\\,sbh$.",
        "$$\n48 GB\n$$",
        "```\nIt takes 48 GB.\n```",
        "```{math}\n48 GB\n```",
        ":::{figure} a.png\n:alt: It takes 48 GB.\n:::",
        "It went from 48 GB to 7 GB {cite}`chen2016`.",
        "It went from 48 GB to 7 GB (section 5.2 of Chen et al. 2016 {cite:p}`chen2016`).",
        "| who | claim |\n|:--|:--|\n| {cite:t}`chen2016` | 48 GB |",
        "All of it is quoted from {cite:t}`chen2016`:\n\n| claim |\n|:--|\n| 48 GB |",
        "Does it take 48 GB?",
        "Read section 5.2, table 4, of 2016.",
        "A 22B model in 16-bit numbers on an A100, in chapter 2.",
        "Images of 224 × 224.",
    ],
)
def test_what_is_no_typed_quantity_is_let_through(source: str):
    assert typed(source) == []


def test_in_a_notebook_a_link_to_a_paper_is_a_citation():
    link = "[Chen et al. (2016)](https://arxiv.org/abs/1604.06174)"
    assert typed(f"{link} went from 48 GB to 7 GB.", roles=False) == []
    assert len(typed(f"{link} went far. It took 7 GB.", roles=False)) == 1
    assert len(typed("[The paper](https://arxiv.org/abs/1604.06174) took 7 GB.", roles=False)) == 1
    assert len(typed("[Chapter 2 of 2016](02.ipynb) took 7 GB.", roles=False)) == 1
    assert len(typed("{cite}`chen2016` took 7 GB.", roles=False)) == 1


def test_pages_and_notebooks_are_found():
    assert ROOT / "book" / "welcome.md" in PAGES
    assert ROOT / "notebooks" / "01_activations.ipynb" in NOTEBOOKS
