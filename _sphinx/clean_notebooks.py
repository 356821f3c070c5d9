"""Runs notebooks and writes them back clean: `python _sphinx/clean_notebooks.py notebooks/*.ipynb`.

Clean means that a second run changes nothing but measured times: the kernel is `python3`, and nothing is kept
of when, where or with which editor the notebook ran.
"""

from __future__ import annotations

import sys
import time
from copy import deepcopy
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

SECONDS_PER_CELL = 120
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
CELL_METADATA = ("tags", "mystnb")  # what the site and nbval read
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "name": "python", "pygments_lexer": "ipython3"},
}


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Run every cell in folder, in place; a cell that raises stops the run."""
    NotebookClient(
        notebook,
        timeout=SECONDS_PER_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
    ).execute()


def clean(notebook: NotebookNode) -> NotebookNode:
    """Return a copy with the metadata that belongs in the repository and no more."""
    notebook = deepcopy(notebook)
    notebook.metadata = nbformat.from_dict(NOTEBOOK_METADATA)
    for cell in notebook.cells:
        kept = {key: cell.metadata[key] for key in CELL_METADATA if key in cell.metadata}
        cell.metadata = nbformat.from_dict(kept)
        cell.pop("attachments", None)
        for output in cell.get("outputs", []):
            # A view's model died with its kernel, and its number is another one at every run.
            output.get("data", {}).pop(WIDGET_VIEW, None)
    return notebook


def text(notebook: NotebookNode) -> str:
    """Return the file's contents, always in the same form."""
    return str(nbformat.writes(notebook, version=4)).rstrip("\n") + "\n"


def main(paths: list[str]) -> int:
    """Run and clean each notebook in place."""
    if not paths:
        print("no notebooks named", file=sys.stderr)
        return 2
    for path in map(Path, paths):
        notebook = nbformat.read(path, as_version=4)
        begin = time.monotonic()
        execute(notebook, path.parent)
        path.write_text(text(clean(notebook)), encoding="utf-8")
        print(f"{path}: {time.monotonic() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
