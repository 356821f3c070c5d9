"""`make retarget`: it reaches every place that names the public repository, and no other place names one."""

import re
import shutil
from pathlib import Path

import nbformat
import pytest
import retarget
import yaml

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
ADDRESS = retarget.named((ROOT / "_config.yml").read_text(encoding="utf-8"))
OTHERS = {"ada/engine", "owner/name"}  # examples; other people's repositories that a page links to go here


def left_out(folder: str, names: list[str]) -> set[str]:
    """What is no part of the project's published text: what was built, hidden folders, and the tests."""
    hidden = {name for name in names if name[0] == "." and name not in (".github", ".ci")}
    return hidden | {"_build", "__pycache__", "build", "dist", "tests", "remat.egg-info"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT, tmp_path / "copy", ignore=left_out))


def texts(root: Path) -> dict[str, str]:
    found = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        try:
            found[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a picture
            continue
    return found


def naming(root: Path, address: str) -> dict[str, int]:
    """How often each file holds the address, even as a part of a longer word."""
    return {path: text.count(address) for path, text in texts(root).items() if address in text}


def test_every_occurrence_is_reached_and_nothing_else_changes(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, places = texts(copy), naming(copy, ADDRESS)
    notebooks = {f"notebooks/{path.name}" for path in NOTEBOOKS}
    assert set(places) == {"_config.yml", "README.md", "CITATION.cff"} | notebooks

    assert retarget.main(["babbage/difference-engine"], copy) == 0
    assert {line.removeprefix("changed ") for line in capsys.readouterr().out.splitlines()} == set(places)
    assert naming(copy, ADDRESS) == {}
    assert naming(copy, "babbage/difference-engine") == places
    assert retarget.main(["babbage/difference-engine"], copy) == 0
    assert "nothing to change" in capsys.readouterr().out

    assert retarget.main([ADDRESS], copy) == (2 if ADDRESS.startswith(retarget.NOBODY) else 0)
    for path in places:
        text = (copy / path).read_text(encoding="utf-8")
        assert text.replace("babbage/difference-engine", ADDRESS) == before[path]


def test_a_run_that_was_broken_off_is_finished_by_the_next(copy: Path) -> None:
    readme = copy / "README.md"
    readme.write_text(readme.read_text(encoding="utf-8").replace(ADDRESS, "ada/engine"), encoding="utf-8")
    assert retarget.main(["ada/engine"], copy) == 0
    assert naming(copy, ADDRESS) == {}


@pytest.mark.parametrize(
    "arguments",
    [[], [""], ["engine"], ["ada/"], ["/engine"], ["ada/engine/x"], ["ada_b/engine"], ["-ada/engine"]]
    + [
        ["ada/engine.git"],
        ["https://github.com/ada/engine"],
        ["ada/ engine"],
        ["ada/engine\n"],
        ["ada", "b"],
    ],
    ids=" ".join,
)
def test_a_name_that_github_cannot_have_is_refused(
    arguments: list[str], copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = texts(copy)
    assert retarget.main(arguments, copy) == 2
    assert f"REPO must be owner/name as on GitHub, such as ada/engine, got {' '.join(arguments)!r}" in (
        capsys.readouterr().err
    )
    assert texts(copy) == before


def test_publishing_waits_until_a_repository_is_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = copy / "_config.yml"
    config.write_text(config.read_text(encoding="utf-8").replace(ADDRESS, "YOUR_ORG" + "/remat"))
    assert retarget.main(["--check"], copy) == 1
    assert "run `make retarget REPO=owner/name`" in capsys.readouterr().err
    assert retarget.main(["ada/engine"], copy) == 0
    assert retarget.main(["--check"], copy) == 0


def test_a_config_that_names_none_or_two_is_refused() -> None:
    for config in ("", '  url: ""\n', 2 * '  url: "https://github.com/ada/engine"\n'):
        with pytest.raises(ValueError, match="must hold one"):
            retarget.named(config)


def test_nothing_else_names_a_repository(copy: Path) -> None:
    for path, text in texts(copy).items():
        for name in re.findall(r"github\.com[/:]([\w.-]+/[\w.-]+?)(?:\.git)?(?![\w-]|\.\w)", text):
            assert name == ADDRESS or name in OTHERS, f"{path} names {name}"
        assert "github.io" not in text, path


def test_every_notebook_begins_with_the_same_hidden_cell_that_installs_the_package() -> None:
    cells = [nbformat.read(path, as_version=4).cells[1] for path in NOTEBOOKS]
    source = cells[0].source
    assert f'repository, branch = "{ADDRESS}", "{CONFIG["repository"]["branch"]}"' in source
    # No extras: on Colab they are there, and asking for PyTorch would fetch the libraries of CUDA again.
    assert '    %pip install -q "remat @ git+https://github.com/{repository}@{branch}"' in source
    for path, cell in zip(NOTEBOOKS, cells, strict=True):
        assert cell.cell_type == "code" and cell.source == source, path.name
        assert (cell.metadata, cell.outputs) == ({"tags": ["remove-input"]}, []), path.name
