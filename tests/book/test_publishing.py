"""What a reader finds outside the pages: buttons, workflows, the README and the citation."""

import io
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import picture
import pytest
import yaml
from bs4 import BeautifulSoup
from PIL import Image, ImageChops
from retarget import named

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
ADDRESS = named((ROOT / "_config.yml").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):(?!=)", MAKEFILE, flags=re.MULTILINE))
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / ".github" / "workflows").iterdir())
}
COLAB = "https://colab.research.google.com/"


def files_of_the_repository() -> set[str]:
    """What is tracked, or will be when it is added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines())


@pytest.mark.skipif("REMAT_SITE" not in os.environ, reason="`make test` builds the site for this")
def test_every_lecture_has_a_colab_button_and_every_colab_link_names_a_notebook() -> None:
    site = (ROOT / os.environ["REMAT_SITE"]).resolve()
    here = f"{COLAB}github/{ADDRESS}/blob/{CONFIG['repository']['branch']}/"
    files, lectures = files_of_the_repository(), set()
    for page in sorted(site.rglob("*.html")):
        links = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").select("a[href]")
        for target in {str(a["href"]) for a in links if "colab" in str(a["href"])}:
            assert target.startswith(here), page
            notebook = target.removeprefix(here)
            assert notebook.endswith(".ipynb") and notebook in files, page
            assert page.relative_to(site).with_suffix(".ipynb").as_posix() == notebook
            lectures.add(notebook)
    assert lectures == {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}


# --- workflows ---


def steps(workflow: dict[str, object]) -> list[dict[str, object]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


def triggers(workflow: dict[object, object]) -> dict[str, object]:
    return workflow[True]  # YAML 1.1 reads the key `on` as a truth value


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_calls_what_exists(name: str) -> None:
    workflow = WORKFLOWS[name]
    assert set(workflow) == {"name", True, "permissions", "jobs"} | ({"concurrency"} & set(workflow))
    for job in workflow["jobs"].values():
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(workflow["jobs"])
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file() and "workflow_call" in triggers(
                WORKFLOWS[Path(job["uses"]).stem]
            )
        else:
            assert job["runs-on"] == "ubuntu-latest" and job["steps"]
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/checkout@v4"))
        for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", "")):
            assert target in TARGETS
        for path in re.findall(r"\b_sphinx/\S+|\brequirements\.txt", step.get("run", "")):
            assert (ROOT / path).is_file()


def test_the_checks_run_on_every_push_with_the_oldest_and_the_newest_python() -> None:
    test, publish = WORKFLOWS["test"], WORKFLOWS["publish"]
    assert triggers(test)["push"] == {"branches-ignore": triggers(publish)["push"]["branches"]}
    assert publish["jobs"]["test"]["uses"] == "./.github/workflows/test.yml"
    assert test["jobs"]["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.13"]
    assert [step["run"] for step in steps(test) if "run" in step] == [
        "make test PYTHON=python",
        "make test-colab",
    ]


def test_publishing_waits_for_the_checks_and_for_the_address() -> None:
    jobs = WORKFLOWS["publish"]["jobs"]
    assert triggers(WORKFLOWS["publish"])["push"] == {"branches": [CONFIG["repository"]["branch"]]}
    assert set(jobs["publish"]["needs"]) == {"address", "test"}
    assert any("_sphinx/retarget.py --check" in step.get("run", "") for step in jobs["address"]["steps"])
    assert {"pages": "write", "id-token": "write"}.items() <= jobs["publish"]["permissions"].items()


def test_the_weekly_run_takes_every_pin_off_but_stays_below_jupyter_book_2() -> None:
    weekly = WORKFLOWS["weekly"]
    assert re.fullmatch(r"\d+ \d+ \* \* \d", triggers(weekly)["schedule"][0]["cron"])
    (command,) = (step["run"] for step in steps(weekly) if step.get("run", "").startswith("sed"))
    words = shlex.split(command)
    assert words.pop() == "requirements.txt"
    words.remove("-i")
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    free = subprocess.run(words, input=pins, capture_output=True, text=True, check=True).stdout
    names = [line.split("#")[0].strip() for line in free.splitlines()]
    assert "jupyter-book<2" in names
    assert [name for name in names if re.search("[=<>]", name)] == ["jupyter-book<2"]
    assert len([name for name in names if name]) == len(re.findall("^[^#\n]+==", pins, flags=re.MULTILINE))
    (skipped,) = re.findall(r"--deselect (\S+)::(\w+)", weekly["jobs"]["test"]["env"]["PYTEST_ADDOPTS"])
    assert f"def {skipped[1]}(" in (ROOT / skipped[0]).read_text(encoding="utf-8")


# --- README and citation ---


def test_the_readme_names_what_exists() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target
    for folder in re.findall(r"^\| `(\w+)/` ", README, flags=re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder
    assert set(re.findall(r"(?:`|^    )make ([a-z-]+)", README, flags=re.MULTILINE)) <= TARGETS
    assert {"book", "test", "test-colab", "notebooks", "format", "picture", "retarget"} <= TARGETS
    lectures = {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert set(re.findall(r"\]\((notebooks/[^)]+)\)", README)) == lectures
    assert not re.search(r"badge|shields", README), "a badge for something that does not exist yet"


def test_the_picture_of_the_readme_is_the_notebooks_and_small() -> None:
    assert f"]({picture.PICTURE.relative_to(ROOT).as_posix()})" in README
    assert picture.PICTURE.stat().st_size <= 60_000
    drawn = Image.open(io.BytesIO(picture.shown(picture.NOTEBOOK, picture.FIGURE))).convert("RGB")
    kept = Image.open(picture.PICTURE).convert("RGB")
    assert kept.size == drawn.size, "run `make picture`"
    apart = ImageChops.difference(kept, drawn).convert("L").histogram()
    assert sum(apart[32:]) < 0.001 * kept.width * kept.height, "run `make picture`"


def test_a_picture_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="shows nothing under the name 'nothing'"):
        picture.shown(picture.NOTEBOOK, "nothing")


def test_the_citation_is_complete_and_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # what its format asks for
    assert citation["authors"] == [{"name": CONFIG["author"]}]
    assert citation["version"] == VERSION
    assert citation["repository-code"] == f"https://github.com/{ADDRESS}"
    assert f"Version {VERSION}" in README and citation["title"] in README
