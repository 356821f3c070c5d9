"""`make notebooks`: what it keeps, what it removes, and which Python runs the cells."""

import sys
from pathlib import Path

import nbformat
import pytest
from clean_notebooks import clean, execute, main, text
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode, v4


def dirty_notebook() -> NotebookNode:
    figure = {"figure": {"name": "fig-x"}}
    return v4.new_notebook(
        metadata={
            "kernelspec": {"name": "my-env", "display_name": "My env"},
            "language_info": {"name": "python", "version": "3.11.0"},
            "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}}},
            "colab": {"provenance": []},
        },
        cells=[
            v4.new_markdown_cell("# Title", metadata={"id": "abc"}),
            v4.new_code_cell(
                "1 + 1",
                execution_count=3,
                metadata={
                    "execution": {"iopub.execute_input": "2026-01-01T00:00:00Z"},
                    "scrolled": True,
                    "tags": ["hide-input"],
                    "mystnb": figure,
                },
                outputs=[v4.new_output("execute_result", {"text/plain": "2"}, execution_count=3)],
            ),
        ],
    )


def test_clean_keeps_what_is_read_and_nothing_else():
    before = dirty_notebook()
    after = clean(before)
    assert set(after.metadata) == {"kernelspec", "language_info"}
    assert after.metadata.kernelspec.name == "python3"
    assert "version" not in after.metadata.language_info
    markdown, code = after.cells
    assert markdown.metadata == {}
    assert code.metadata == {"tags": ["hide-input"], "mystnb": {"figure": {"name": "fig-x"}}}
    assert [cell.id for cell in after.cells] == [cell.id for cell in before.cells]
    assert code.outputs == before.cells[1].outputs
    assert code.execution_count == 3


def test_clean_leaves_its_argument_alone_and_changes_nothing_twice():
    notebook = dirty_notebook()
    once = clean(notebook)
    assert "widgets" in notebook.metadata
    assert text(clean(once)) == text(once)


def test_run_in_place_twice_writes_the_same_bytes(tmp_path: Path):
    path = tmp_path / "a.ipynb"
    cells = [v4.new_code_cell("import sys"), v4.new_code_cell("print('x')\nprint('y')\nsys.executable")]
    nbformat.write(v4.new_notebook(cells=cells), path)
    assert main([str(path)]) == 0
    first = path.read_bytes()
    assert main([str(path)]) == 0
    assert path.read_bytes() == first

    printed, result = nbformat.read(path, as_version=4).cells[1].outputs
    assert printed.text == "x\ny\n"
    assert result.data["text/plain"] == repr(sys.executable), "the kernel is another Python's"


def test_a_cell_that_raises_stops_the_run():
    notebook = v4.new_notebook(cells=[v4.new_code_cell("1 / 0")])
    with pytest.raises(CellExecutionError, match="division by zero"):
        execute(notebook, Path.cwd())


def test_no_paths_is_an_error(capsys: pytest.CaptureFixture[str]):
    assert main([]) != 0
    assert "no notebooks" in capsys.readouterr().err
