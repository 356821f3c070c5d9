"""Imports run one way along the line of travel, and what is optional stays optional."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "remat"
# Modules that use the standard library alone, and those that alone may use an optional library.
STANDARD_ONLY = {
    "_check",
    "hardware",
    "layer",
    "gpt",
    "choice",
    "cost",
    "chain",
    "machine",
    "replay",
    "memory",
}
STANDARD_ONLY |= {"steps", "mirror", "sharing"}  # what choice lowers a layer with
STANDARD_ONLY |= {"segment_model"}
ALLOWED = {
    "torch": {"pytorch"},
    "matplotlib": {"figures"},
    "ipywidgets": {"explore"},
    "IPython": {"explore", "quoted"},
}
OPTIONAL = set().union(*ALLOWED.values())  # modules that need more than numpy


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_of(path: Path) -> set[str]:
    """Full names of what a file imports, wherever in the file, with relative ones resolved."""
    package = ["remat", *path.relative_to(PACKAGE).parent.parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            found |= {start, *(f"{start}.{alias.name}" for alias in node.names)}
    return found


FILES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__main__.py"}
IMPORTS = {module: imports_of(path) for module, path in FILES.items()}
WITHIN = {
    module: {name.removeprefix("remat.") for name in names if name.startswith("remat.")}
    & set(FILES) - {module}
    for module, names in IMPORTS.items()
}
DRAWS = {"explorers"}  # what is built on figures and sliders
PLAIN = [module for module in FILES if module.split(".")[0] not in OPTIONAL | DRAWS]


def reached_from(module: str) -> set[str]:
    """All modules of the package that importing one brings in; importing a.b imports a too."""
    reached: set[str] = set()
    ahead = {module}
    while ahead:
        here = ahead.pop()
        reached.add(here)
        parents = {here.rsplit(".", 1)[0]} if "." in here else set()
        ahead |= (WITHIN[here] | parents) - reached
    return reached


def test_the_files_are_found_and_read() -> None:
    assert {"layer", "chain", "replay", "frontier", "pytorch", "figures"} <= {m.split(".")[0] for m in FILES}
    assert {"chain", "replay"} <= reached_from("frontier")
    assert "numpy" in IMPORTS["segments"]


@pytest.mark.parametrize("module", FILES)
def test_imports_run_one_way(module: str) -> None:
    """Nothing that a module imports leads back to it (a package's own parts apart)."""
    for other in WITHIN[module]:
        if other.split(".")[0] != module.split(".")[0]:
            assert module not in reached_from(other), (
                f"{module} imports {other}, which leads back to {module}"
            )


@pytest.mark.parametrize("module", FILES)
def test_each_library_stays_where_it_belongs(module: str) -> None:
    home = module.split(".")[0]
    libraries = {name.split(".")[0] for name in IMPORTS[module]} - sys.stdlib_module_names - {"remat"}
    allowed = {"numpy"} if home not in STANDARD_ONLY else set()
    allowed |= {library for library, owners in ALLOWED.items() if home in owners}
    assert libraries <= allowed


@pytest.mark.parametrize("module", PLAIN)
def test_the_line_of_travel_ends_in_running_and_drawing(module: str) -> None:
    """What describes, plans and judges needs neither PyTorch nor figures, not even through others."""
    assert not {other.split(".")[0] for other in reached_from(module)} & OPTIONAL


@pytest.mark.parametrize("module", sorted(STANDARD_ONLY & set(FILES)))
def test_what_describes_and_judges_does_not_know_the_planners(module: str) -> None:
    assert reached_from(module) <= STANDARD_ONLY | {""}


BLOCK = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
for module in {modules!r}:
    __import__(f"remat.{{module}}" if module else "remat")
loaded = {blocked!r} & set(sys.modules)
assert not loaded, loaded
"""


@pytest.mark.parametrize(
    ("modules", "blocked"),
    [(PLAIN, set(ALLOWED)), (sorted(STANDARD_ONLY & set(FILES)), {*ALLOWED, "numpy"})],
    ids=["all but pytorch, figures, explore", "those of the standard library"],
)
def test_modules_import_without_the_libraries_that_they_do_not_need(
    modules: list[str], blocked: set[str]
) -> None:
    program = BLOCK.format(modules=modules, blocked=blocked)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr


def test_the_blocker_blocks() -> None:
    program = BLOCK.format(modules=["segments"], blocked={"numpy"})
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode != 0 and "No module named 'numpy'" in done.stderr
