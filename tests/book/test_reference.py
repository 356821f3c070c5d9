"""The API reference: every public name of the package stands in it once, and its pages lead on."""

import ast
import doctest
import importlib
import inspect
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from bs4 import BeautifulSoup

from browsing import ROOT, Visit

PAGES = sorted((ROOT / "book" / "api").glob("*.md"))
OVERVIEW = ROOT / "book" / "api" / "index.md"
DIRECTIVE = re.compile(r"^\.\. automodule:: (\S+)$", re.MULTILINE)
needs_site = pytest.mark.skipif("REMAT_SITE" not in os.environ, reason="`make test` builds the site for this")
each_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)


def imported_by_notebooks() -> set[str]:
    """Modules that a notebook takes names from."""
    found = set()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                found |= set(re.findall(r"^\s*from (remat[\w.]*) import", cell.source, flags=re.MULTILINE))
    return found


def named(module: ModuleType) -> list[str]:
    """Public classes and functions: those of `__all__`, or else those that are defined in the module."""

    def is_own(subject: object) -> bool:
        return getattr(subject, "__module__", None) == module.__name__

    names = getattr(module, "__all__", None) or [
        name for name, subject in vars(module).items() if not name.startswith("_") and is_own(subject)
    ]
    return [
        name for name in names if inspect.isclass(vars(module)[name]) or inspect.isroutine(vars(module)[name])
    ]


def walked() -> Iterator[ModuleType]:
    """Public modules; one inside a package is a part of it, unless a notebook takes something from it."""
    direct = imported_by_notebooks()
    for path in sorted((ROOT / "remat").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        inner = len(parts) > 2 and parts[-1] != "__init__"
        name = ".".join(part for part in parts if part != "__init__")
        if "._" not in name and (not inner or name in direct):
            yield importlib.import_module(name)


@cache
def modules() -> dict[str, list[str]]:
    """Public modules with their public names; what one hands on by `__all__` is its own, not the maker's."""
    found = list(walked())
    handed_on = {
        id(subject)
        for module in found
        for name in getattr(module, "__all__", [])
        if getattr(subject := getattr(module, name), "__module__", module.__name__) != module.__name__
    }
    public = {
        module.__name__: [
            name
            for name in named(module)
            if id(subject := getattr(module, name)) not in handed_on or subject.__module__ != module.__name__
        ]
        for module in found
    }
    return {module: names for module, names in public.items() if names}


def members(cls: type) -> Iterator[str]:
    """Public methods and properties that have a docstring of their own."""
    for name, member in vars(cls).items():
        kinds = (property, cached_property, staticmethod, classmethod)
        is_kind = inspect.isfunction(member) or isinstance(member, kinds)
        if is_kind and not name.startswith("_") and member.__doc__:
            yield name


def public() -> Iterator[tuple[str, object]]:
    """Full names of public classes and functions, and of the classes' members."""
    for module, names in modules().items():
        for name in names:
            subject = getattr(importlib.import_module(module), name)
            yield f"{module}.{name}", subject
            if inspect.isclass(subject):
                for member in members(subject):
                    yield f"{module}.{name}.{member}", vars(subject)[member]


def not_once(expected: Iterable[str], found: Iterable[str]) -> dict[str, int]:
    """Names that are expected and not found exactly once, or found and not expected."""
    times = Counter(found)
    expected = set(expected)
    return {name: times[name] for name in sorted(expected | set(times)) if times[name] != (name in expected)}


def test_the_walk_through_the_package_sees_what_it_should():
    assert {"remat.layer", "remat.chain", "remat.replay", "remat.figures", "remat.pytorch"} <= set(modules())
    assert "remat._check" not in modules() and "remat.figures.style" not in modules()
    names = dict(public())
    assert {"remat.layer.ledger", "remat.chain.Option.stage", "remat.pytorch.run"} <= set(names)
    assert "remat.replay.Machine" not in names, "what a module imports is not its own"
    assert "remat.replay.ReplayError" in names and "remat.machine.ReplayError" not in names


def test_every_public_module_stands_on_one_page():
    shown = [name for path in PAGES for name in DIRECTIVE.findall(path.read_text(encoding="utf-8"))]
    assert not_once(modules(), shown) == {}


def test_every_public_name_says_what_it_is():
    assert [name for name, subject in public() if not inspect.getdoc(subject)] == []


@cache
def described(site: Path) -> list[str]:
    """Names that the built pages describe, as often as they do."""
    found = []
    for path in sorted((site / "book").rglob("*.html")):
        page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        found += [str(entry["id"]) for entry in page.select("dl.py > dt.sig[id]")]
    return found


@needs_site
def test_every_public_name_is_described_once(site: Path):
    assert not_once((name for name, _ in public()), described(site)) == {}


def test_a_name_that_is_missing_or_there_twice_or_unknown_is_noticed():
    names = [name for name, _ in public()]
    assert not_once(names, names) == {}
    for name in ("remat.layer.ledger", "remat.chain.Option.stage", "remat.figures.ledger_bars"):
        without = [other for other in names if other != name]
        assert not_once(names, without) == {name: 0}
        assert not_once(names, [*names, name]) == {name: 2}
        assert not_once(without, names) == {name: 1}


@needs_site
def test_every_public_name_is_in_the_index(site: Path):
    page = BeautifulSoup((site / "genindex.html").read_text(encoding="utf-8"), "html.parser")
    targets = {str(link["href"]).partition("#")[2] for link in page.select("article a[href]")}
    assert [name for name, _ in public() if name not in targets] == []


@needs_site
def test_every_example_is_colored_code(site: Path):
    pages = [
        BeautifulSoup((site / f"book/api/{path.stem}.html").read_text("utf-8"), "html.parser")
        for path in PAGES
    ]
    examples = [block for page in pages for block in page.select("article pre") if ">>> " in block.get_text()]
    with_examples = [name for name, subject in public() if ">>> " in (inspect.getdoc(subject) or "")]
    assert len(examples) >= len(with_examples) > 50
    for block in examples:
        assert block.select("span.gp"), block  # the class of a prompt
        assert block.find_parent("div", class_="highlight") is not None


@each_page
def test_a_page_opens_with_its_question_and_ends_with_where_to_go(path: Path):
    text = path.read_text(encoding="utf-8")
    assert re.match(r"# .+\n\n\*\*The question of this page:\*\* [^\n]+\?\n", text)
    last = text.rpartition("\n## ")[2]
    assert last.startswith("Where to go next\n") and "{doc}`" in last


def test_the_overview_names_every_page_and_leads_to_the_index():
    text = OVERVIEW.read_text(encoding="utf-8")
    for path in PAGES:
        assert path == OVERVIEW or f"{{doc}}`{path.stem}`" in text
    assert "{ref}`index <genindex>`" in text


def test_the_example_of_the_overview_prints_what_it_says():
    blocks = re.findall(r"^```pycon\n(.*?)^```$", OVERVIEW.read_text(encoding="utf-8"), flags=re.S | re.M)
    assert blocks
    for block in blocks:
        example = doctest.DocTestParser().get_doctest(block, {}, "overview", str(OVERVIEW), 0)
        assert doctest.DocTestRunner().run(example).failed == 0


COPY = """(button) => {
    let copied = null;
    document.addEventListener('copy', () => { copied = document.activeElement.value; }, { once: true });
    button.click();
    return copied;
}"""


def test_the_copy_button_leaves_prompts_and_output_behind(open_page: Callable[..., Visit]):
    visit = open_page("book/api/index")
    button = visit.page.locator("div.highlight-pycon button.copybtn").first
    copied = button.evaluate(COPY)
    assert copied.startswith("from remat.chain import chain_of\n") and ">>>" not in copied
    assert copied.rstrip().endswith("best(budget=9)))") and "peak 9" not in copied
    ast.parse(copied)
    visit.close()
