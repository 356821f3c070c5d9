"""The exercises: solutions solve them, stubs do not, and the pencil page quotes the notebook."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from nbformat import NotebookNode

from remat.exercises import Verdict
from remat.quoted import PREFIX

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book" / "exercises.md").read_text(encoding="utf-8")
CELLS: dict[str, NotebookNode] = {
    cell.id.removeprefix("exercises-"): cell
    for cell in nbformat.read(ROOT / "notebooks" / "exercises.ipynb", as_version=4).cells
}
NAMES = [key.removesuffix("-stub") for key in CELLS if key.endswith("-stub")]
FOLD = re.compile(
    r"<details>\n<summary><strong>Solution</strong></summary>\n\n"
    r"```python\n(?P<code>.*?)\n```\n\n(?P<why>.+?)\n\n</details>",
    flags=re.DOTALL,
)
each_exercise = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def _threads() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def solution(name: str) -> str:
    found = FOLD.fullmatch(CELLS[f"{name}-solution"].source)
    assert found is not None, f"the solution of {name} is not one folded block of Python and a reason"
    return found["code"]


def run(name: str, answer: str, check: str | None = None) -> Verdict:
    """Run the notebook's imports, an answer and the check cell; give what the check cell shows."""
    scope: dict[str, Any] = {}
    exec(CELLS["01"].source, scope)
    exec(answer, scope)
    verdict = eval(check or CELLS[f"{name}-check"].source, scope)
    assert isinstance(verdict, Verdict)
    return verdict


# --- the coding exercises ---


def test_there_are_exercises_in_every_section() -> None:
    assert len(NAMES) >= 10
    counts: dict[str, int] = {}
    section = ""
    for key, cell in CELLS.items():
        if cell.cell_type == "markdown" and (found := re.match(r"## (.+)", cell.source)):
            section = found[1]
        if key.endswith("-stub"):
            counts[section] = counts.get(section, 0) + 1
    sections = ["Activations", "A chain of stages", "Inside a layer", "Offloading", "Planning", "PyTorch"]
    assert list(counts) == sections


@each_exercise
def test_an_exercise_is_asked_stubbed_checked_and_solved_in_this_order(name: str) -> None:
    order = [key for key in CELLS if key in {f"{name}-{part}" for part in ("stub", "check", "solution")}]
    assert order == [f"{name}-{part}" for part in ("stub", "check", "solution")]
    assert "..." in CELLS[f"{name}-stub"].source
    assert ast.parse(CELLS[f"{name}-check"].source).body[0].value.args[0].id == name
    keys = list(CELLS)
    before = "".join(
        CELLS[key].source for key in keys[max(0, keys.index(order[0]) - 2) : keys.index(order[0])]
    )
    assert "### " in before and "**Predict first:**" in before


@each_exercise
def test_a_stub_is_not_solved_yet_and_raises_nothing(name: str) -> None:
    verdict = run(name, CELLS[f"{name}-stub"].source)
    assert verdict.kind == "not solved yet"
    (output,) = CELLS[f"{name}-check"].outputs
    assert output.data["text/markdown"] == verdict._repr_markdown_()
    assert output.data["text/plain"] == repr(verdict)


@each_exercise
def test_the_solution_is_right(name: str) -> None:
    verdict = run(name, solution(name))
    assert verdict.kind == "right", verdict


@each_exercise
@pytest.mark.parametrize("seed", [1, 2])
def test_the_solution_is_right_on_other_inputs_too(name: str, seed: int) -> None:
    check = CELLS[f"{name}-check"].source
    if not solution(name).lstrip().startswith(f"{name} ="):  # a function, which is tried on drawn inputs
        verdict = run(name, solution(name), check.replace(")", f", seed={seed})"))
        assert verdict.kind == "right", verdict


def test_checks_hold_no_answers() -> None:
    """Neither the lengths, the sizes nor the dicts of the solutions stand in the package."""
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "remat").rglob("exercises/*.py"))
    assert len(code) > 10_000
    for name in NAMES:
        assigned = ast.parse(solution(name)).body[-1]
        if isinstance(assigned, ast.Assign):
            assert re.sub(r"\s", "", ast.unparse(assigned.value)) not in re.sub(r"\s", "", code)


# --- the pencil exercises ---


@cache
def quoted() -> dict[str, str]:
    return {
        output.metadata["scrapbook"]["name"]: ast.literal_eval(output.data[f"{PREFIX}text/plain"])
        for output in CELLS["quotes"].outputs
    }


def test_the_quoted_numbers_are_known() -> None:
    """The answers of the lecture's eight exercises, each computed here again without the package."""
    s, b, h, a = 4096, 1, 4096, 32
    units = 34 + 5 * a * s / h
    assert quoted()["ledger_units"] == f"{units:g}" == "194"
    assert quoted()["ledger_size"] == f"{units * s * b * h / 1e9:.2f} GB" == "3.25 GB"
    assert quoted()["ledger_share"] == f"{1 - 34 / units:.0%}" == "82%"
    assert quoted()["ledger_left"] == f"{34 * s * b * h / 1e9:.2f} GB" == "0.57 GB"

    assert quoted()["spacing_estimate"] == "400 MB"
    # 20 checkpoints, the last of which is the output; the input; 19 more outputs of a segment; a gradient
    assert quoted()["spacing_replay"] == f"{(1 + 20 + 19 + 1) * 10} MB" == "410 MB"
    assert quoted()["spacing_all"] == f"{(400 + 2) * 10 / 1000:.2f} GB"
    assert quoted()["spacing_forwards"] == f"{2 - 20 / 400:.2f}"
    assert quoted()["spacing_time"] == f"{(400 - 20) / 1200:.0%}"

    assert quoted()["recursion_formula"] == quoted()["recursion_checkpoints"] == "15"
    assert quoted()["recursion_replay"] == "18"
    assert quoted()["recursion_others"] == "3"

    overhead = [s / (18 * 12288 * (1 + s / (6 * 12288))) for s in (2048, 32768)]
    assert quoted()["selective_short"] == f"{overhead[0]:.1%}" == "0.9%"
    assert quoted()["selective_long"] == f"{overhead[1]:.1%}" == "10.3%"

    assert quoted()["roofline_flops"] == f"{40e9 / 989e12 * 1e6:.0f} µs" == "40 µs"
    assert quoted()["roofline_bytes"] == f"{300e6 / 3.35e12 * 1e6:.0f} µs" == "90 µs"

    assert quoted()["copy_time"] == f"{150e6 / 25e9 * 1e3:.0f} ms" == "6 ms"
    assert quoted()["copy_wait"] == "1 ms"
    assert quoted()["copy_bandwidth"] == f"{150e6 / 5e-3 / 1e9:.0f} GB/s" == "30 GB/s"

    assert quoted()["adam_large"] == "3.25 s"
    assert quoted()["adam_small"] == "0.75 s"
    assert quoted()["adam_tokens"] == quoted()["adam_tokens_small"]
    assert quoted()["adam_tokens"] == f"{0.25e-9 * 300e12 / 8:,.0f} tokens" == "9,375 tokens"

    assert quoted()["plan_room"] == f"{80 - 40 - 10} GB"
    assert quoted()["plan_chosen"] == "selective"
    assert quoted()["plan_size"] == "25 GB"
    assert quoted()["plan_cost"] == "6%"


GLUE = re.compile(r"\{glue:text\}`\.\./notebooks/exercises\.ipynb::(\w+):s`")


def test_the_page_quotes_what_is_there_and_all_of_it() -> None:
    used = GLUE.findall(PAGE)
    assert len(used) == PAGE.count("{glue")
    assert set(used) == set(quoted())


def test_every_pencil_exercise_has_a_folded_solution_that_names_its_cell() -> None:
    asked = re.findall(r"```\{exercise\} .+\n:label: exercise-([a-z]+)\n", PAGE)
    solved = re.findall(
        r"````\{solution\} exercise-([a-z]+)\n:label: solution-\1\n:class: dropdown\n(.+?)\n````",
        PAGE,
        flags=re.DOTALL,
    )
    assert len(asked) == 8
    assert [name for name, _ in solved] == asked
    headings = [
        re.sub(r"[^\w\s-]", "", found[1]).strip().lower().replace(" ", "-")
        for cell in CELLS.values()
        if cell.cell_type == "markdown"
        for found in re.finditer(r"^#{2,3} (.+)$", cell.source, flags=re.MULTILINE)
    ]
    linked = []
    for name, text in solved:
        (anchor,) = re.findall(r"\]\(\.\./notebooks/exercises\.ipynb#([\w-]+)\)", text)
        assert anchor in headings, name
        linked.append(anchor)
    assert sorted(linked) == sorted(set(linked))
