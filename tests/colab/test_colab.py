"""Every notebook as Google Colab runs it: alone, with Colab's packages, `remat` fetched by its first cell.

`make test-colab` makes the environment and names its folder in REMAT_COLAB.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode, v4
from retarget import NOBODY, named, replace

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ENVIRONMENT = (ROOT / os.environ.get("REMAT_COLAB", ".venv-colab")).absolute()
PYTHON = str(ENVIRONMENT / "bin" / "python")
REPOSITORY = named((ROOT / "_config.yml").read_text(encoding="utf-8"))
STAND_IN = "ada/engine"
PACKAGE = ("remat", "pyproject.toml", "README.md", "LICENSE")

pytestmark = pytest.mark.skipif(
    "REMAT_COLAB" not in os.environ, reason="`make test-colab` makes the environment for these"
)


def run(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd).stdout.strip()


def packages() -> list[str]:
    return run(PYTHON, "-m", "pip", "freeze", "--all", "--disable-pip-version-check").splitlines()


@pytest.fixture(scope="module")
def commit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Put a git repository here in place of the public one; give the commit that stands in it."""
    public = tmp_path_factory.mktemp("public")
    for name in PACKAGE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, public / name)
    git = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
    run("git", "init", "--quiet", "--initial-branch=main", cwd=public)
    run(*git, "add", "--all", cwd=public)
    run(*git, "commit", "--quiet", "--message=all", cwd=public)

    kernels = tmp_path_factory.mktemp("jupyter")
    spec = kernels / "kernels" / "colab" / "kernel.json"
    spec.parent.mkdir(parents=True)
    command = [PYTHON, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": command, "display_name": "Colab", "language": "python"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_COUNT", "1")
        patch.setenv("GIT_CONFIG_KEY_0", f"url.{public.as_uri()}.insteadOf")
        patch.setenv("GIT_CONFIG_VALUE_0", f"https://github.com/{STAND_IN}")
        patch.setenv("JUPYTER_PATH", str(kernels))
        patch.setenv("IPYTHONDIR", str(kernels / "ipython"))
        patch.setenv("MPLCONFIGDIR", str(ENVIRONMENT / "matplotlib"))
        patch.delenv("PYTHONPATH", raising=False)
        yield run("git", "rev-parse", "HEAD", cwd=public)


@pytest.fixture
def before(commit: str) -> Iterator[list[str]]:
    """Take `remat` out of the environment, before and after; give what is installed without it."""
    remove = (PYTHON, "-m", "pip", "uninstall", "--quiet", "--yes", "--disable-pip-version-check", "remat")
    run(*remove)
    without = packages()
    yield without
    run(*remove)
    if packages() != without:
        (ENVIRONMENT / "ready").unlink(missing_ok=True)  # `make test-colab` makes a changed environment again


def read(path: Path, *, repository: str) -> NotebookNode:
    """Read a notebook as it would be if its first cell named that repository."""
    return nbformat.reads(replace(path.read_text(encoding="utf-8"), REPOSITORY, repository), as_version=4)


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Run a notebook in an empty folder, by the environment's Python."""
    folder.mkdir()
    (folder / "notebook.ipynb").write_text(nbformat.writes(notebook))
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(
        notebook, kernel_name="colab", timeout=120, resources=resources, coalesce_streams=True
    ).execute()


def said(notebook: NotebookNode) -> list[str]:
    """What the cells print or show as text, but for those that nbval does not compare."""
    return [
        output.get("text") or output.data["text/markdown"]
        for cell in notebook.cells
        if cell.cell_type == "code" and "nbval-ignore-output" not in cell.metadata.get("tags", [])
        for output in cell.outputs
        if output.get("text") or "text/markdown" in output.get("data", {})
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_alone(path: Path, tmp_path: Path, commit: str, before: list[str]) -> None:
    saved, notebook = (read(path, repository=STAND_IN) for _ in range(2))
    notebook.cells.append(v4.new_code_cell("import remat\nremat.__file__"))
    execute(notebook, tmp_path / "content")

    *cells, last = notebook.cells
    (where,) = last.outputs
    assert str(ENVIRONMENT) in where.data["text/plain"]
    errors = [o.text for cell in cells for o in cell.get("outputs", []) if o.get("name") == "stderr"]
    assert errors == []
    installing = next(cell for cell in cells if cell.cell_type == "code")
    installing.outputs = []  # pip's advice to restart the kernel
    assert said(v4.new_notebook(cells=cells)) == said(saved), "Colab's versions give other numbers"

    after = packages()
    assert [line for line in before if line not in after] == [], "installing remat changed a package"
    (added,) = (line for line in after if line not in before)
    assert added == f"remat @ git+https://github.com/{STAND_IN}@{commit}"


def test_without_a_public_repository_the_first_cell_says_what_to_do(
    tmp_path: Path, before: list[str]
) -> None:
    notebook = read(NOTEBOOKS[0], repository=f"{NOBODY}/remat")
    with pytest.raises(CellExecutionError, match="make retarget REPO=owner/name"):
        execute(notebook, tmp_path / "content")
    assert packages() == before
