"""Docstrings on their way into the API reference: a small site whose module is written like remat's."""

import doctest
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import docstrings
import pytest
import yaml
from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).parents[2]
SETTINGS = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]
# What a reference needs of the book's settings.
SHARED = ("default_role", "nitpick_ignore_regex", "napoleon_custom_sections")
SHARED += ("add_module_names", "autodoc_inherit_docstrings", "napoleon_numpy_docstring")
SHARED += ("python_maximum_signature_line_length", "autodoc_member_order")
MODULE = '''
"""A module."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Bag:
    """A bag.

    Attributes:
        bytes: its size.
    """

    bytes: float

    @property
    def half(self) -> float:
        """Bytes of a half: what is left over."""
        return self.bytes / 2


def fill(sizes: Iterable[float]) -> Bag:
    """Fill a `Bag`; see `torch.Tensor`.

    Args:
        sizes: bytes of each.

    Returns:
        The bag: its bytes are the sum of those given.

    >>> fill([1])
    Bag(bytes=1)
    """
    return Bag(sum(sizes))


def carry(bags: Iterable[Bag], *, from_where: Iterable[float], to_where: Iterable[float]) -> None:
    """Carry bags."""
'''


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Builds a page of the module's reference with some extensions, as strictly as the book."""
    source = tmp_path_factory.mktemp("source")
    (source / "small.py").write_text(MODULE)
    (source / "index.rst").write_text("Small\n=====\n\n.. automodule:: small\n   :members:\n")

    def built(out: Path, *extensions: str) -> subprocess.CompletedProcess[str]:
        settings = {name: SETTINGS[name] for name in SHARED} | {"extensions": list(extensions)}
        lines = [f"{name} = {value!r}" for name, value in settings.items()]
        (source / "conf.py").write_text("\n".join(lines))
        return subprocess.run(
            [sys.executable, "-m", "sphinx", "-q", "-E", "-n", "-W", "--keep-going", source, out],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "_sphinx"), str(source)])},
            capture_output=True,
            text=True,
        )

    return built


@pytest.fixture(scope="module")
def page(
    build: Callable[..., subprocess.CompletedProcess[str]], tmp_path_factory: pytest.TempPathFactory
) -> Tag:
    out = tmp_path_factory.mktemp("site")
    done = build(out, "sphinx.ext.napoleon", "docstrings")
    assert (done.returncode, done.stderr) == (0, "")
    body = BeautifulSoup((out / "index.html").read_text(encoding="utf-8"), "html.parser").select_one(
        "[role=main]"
    )
    assert body is not None
    return body


def test_examples():
    results = doctest.testmod(docstrings)
    assert results.attempted > 0 and results.failed == 0


def test_words_before_a_colon_are_no_type(page: Tag):
    text = " ".join(page.get_text().split())
    assert "Returns: The bag: its bytes are the sum of those given." in text
    assert "Bytes of a half: what is left over." in text
    assert "Return type" not in text and "Type:" not in text and ".." not in text


def test_without_the_extension_they_are_taken_for_one(
    build: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
):
    done = build(tmp_path, "sphinx.ext.autodoc", "sphinx.ext.napoleon")
    assert done.returncode != 0
    assert "small.Bag.half:3: WARNING: py:class reference target not found" in done.stderr
    assert "target not found: The bag" in done.stderr


def test_names_in_backticks_lead_to_what_they_name(page: Tag):
    (link,) = page.select("dd p a.reference.internal")
    assert link["href"] == "#small.Bag"


def test_attributes_are_listed_and_no_names_of_their_own(page: Tag):
    assert "Attributes: bytes – its size." in " ".join(page.get_text().split())
    names = [entry["id"] for entry in page.select("dt.sig[id]")]
    assert names == ["small.Bag", "small.Bag.half", "small.fill", "small.carry"]


def test_the_annotation_of_another_module_is_short(page: Tag):
    signature = page.find(id="small.fill")
    assert signature is not None and "(sizes: Iterable[float])" in signature.get_text()


def test_a_long_signature_is_boxes_and_no_list_without_terms(page: Tag):
    signature = page.find(id="small.carry")
    assert isinstance(signature, Tag)
    lines = [" ".join(line.get_text().split()) for line in signature.select("div.sig-lines > div")]
    assert lines == [
        "bags: Iterable[Bag],",
        "*,",
        "from_where: Iterable[float],",
        "to_where: Iterable[float],",
    ]
    assert signature.select("dl, dd") == []


def test_examples_are_colored(page: Tag):
    (example,) = page.select("div.highlight pre")
    assert [prompt.get_text() for prompt in example.select("span.gp")] == [">>> "]
