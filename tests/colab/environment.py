"""Makes the environment of `make test-colab`: `python tests/colab/environment.py FOLDER`.

It holds the versions in requirements.txt beside this file. PyTorch is too large to install twice: it and what
it needs are linked from the environment that runs this program, and nothing else of that environment is seen.
"""

import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PINS = Path(__file__).with_name("requirements.txt")


def needed_by(name: str) -> list[Distribution]:
    """The distribution of that name and all that it needs, as installed here."""
    pending, found = [name], {}
    while pending:
        name = canonicalize_name(pending.pop())
        if name in found:
            continue
        found[name] = distribution(name)
        for line in found[name].requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return list(found.values())


def borrow(name: str, site: Path) -> None:
    """Link a distribution and what it needs into a folder of packages, without replacing what is there."""
    present = {canonicalize_name(other.metadata["Name"]) for other in distributions(path=[str(site)])}
    for other in needed_by(name):
        if canonicalize_name(other.metadata["Name"]) in present:
            continue
        home = Path(str(other.locate_file("")))
        for top in {file.parts[0] for file in other.files or []} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to((home / top).resolve())


def main(folder: Path) -> None:
    """Make the environment."""
    venv.create(folder, clear=True, with_pip=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    lines = [line.partition("#") for line in PINS.read_text().splitlines()]
    pins = {pin.strip(): reason.startswith(" alone") for pin, _, reason in lines if pin.strip()}
    subprocess.run([*pip, *(pin for pin, alone in pins.items() if not alone)], check=True)
    subprocess.run([*pip, "--no-deps", *(pin for pin, alone in pins.items() if alone)], check=True)
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    borrow("torch", Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()))
    fonts = [python, "-c", "import matplotlib.font_manager"]  # it prints, the first time
    subprocess.run(fonts, check=True, capture_output=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
