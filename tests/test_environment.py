"""The pinned environment and the package's description."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PINS = [
    line
    for line in (ROOT / "requirements.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Preinstalled on Google Colab (August 2026): a bound above one of these would replace a package there.
COLAB = {"python": "3.13", "torch": "2.11"} | dict(
    re.findall(r"^(\w+)==([\d.]+)", (ROOT / "tests" / "colab" / "requirements.txt").read_text(), flags=re.M)
)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


@pytest.mark.parametrize("line", PINS, ids=lambda line: line.split("==")[0])
def test_every_pin_is_exact_has_a_reason_and_is_installed(line: str):
    pin = re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+) +# (.{10,})", line)
    assert pin, line
    assert version(pin[1]).split("+")[0] == pin[2]


def test_bounds_of_the_package_are_within_what_colab_has():
    extras = [item for items in PROJECT["optional-dependencies"].values() for item in items]
    bounds = [*PROJECT["dependencies"], *extras, f"python{PROJECT['requires-python']}"]
    for bound in bounds:
        found = re.fullmatch(r"([a-z]+)>=([\d.]+)", bound)
        assert found, bound
        assert numbers(found[2]) <= numbers(COLAB[found[1]])


def test_numpy_is_the_only_dependency():
    assert [re.split(r"\W", item)[0] for item in PROJECT["dependencies"]] == ["numpy"]
