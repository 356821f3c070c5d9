"""The spelling of everything that is written here, in American English; settings in pyproject.toml."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["codespell"]


def misspelled(*paths: Path) -> list[str]:
    """What codespell says of files, one line a word."""
    command = [
        sys.executable,
        "-m",
        "codespell_lib",
        "--toml",
        str(ROOT / "pyproject.toml"),
        *map(str, paths),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def files() -> list[Path]:
    """What is tracked, or will be when it is added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [path for name in done.stdout.splitlines() if (path := ROOT / name).is_file()]


def test_no_file_holds_a_misspelled_word():
    read = files()
    assert {ROOT / "README.md", ROOT / "book" / "welcome.md", ROOT / "remat" / "layer.py"} <= set(read)
    assert misspelled(*read) == []


def test_no_notebook_holds_a_misspelled_word(tmp_path: Path):
    """Their sources and what they print, without pictures, whose letters are no words."""
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        texts = []
        for cell in nbformat.read(path, as_version=4).cells:
            texts.append(cell.source)
            for output in cell.get("outputs", []):
                texts += [output.get("text", ""), output.get("data", {}).get("text/markdown", "")]
            figure = cell.metadata.get("mystnb", {})
            texts += [figure.get("figure", {}).get("caption", ""), figure.get("image", {}).get("alt", "")]
        (tmp_path / f"{path.stem}.md").write_text("\n\n".join(texts), encoding="utf-8")
    written = sorted(tmp_path.iterdir())
    assert len(written) > 4
    assert misspelled(*written) == []


@pytest.mark.parametrize("wrong", ["re" + "cieve", "mem" + "mory", "behav" + "iour", "label" + "led"])
def test_a_misspelled_or_british_word_is_found(wrong: str, tmp_path: Path):
    path = tmp_path / "page.md"
    path.write_text(f"We {wrong} it.\n")
    (line,) = misspelled(path)
    assert f"{wrong} ==>" in line


def test_every_word_that_is_let_through_is_used():
    words = [word.strip() for word in SETTINGS["ignore-words-list"].split(",")]
    ours = [path for path in files() if path.suffix in (".py", ".md") and path.name != Path(__file__).name]
    text = "\n".join(path.read_text(encoding="utf-8") for path in ours)
    assert [word for word in words if not re.search(rf"\b{word}\b", text)] == []
