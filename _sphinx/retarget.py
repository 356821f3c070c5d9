"""Names the public repository: `make retarget REPO=owner/name`.

The address stands in _config.yml, from which the pages take it. Files that travel alone have to repeat it:
the first cell of each notebook, the README, the citation. This changes all of them together, as often as you
like. With `--check` it changes nothing, and fails while no repository has been named.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CONFIG = "_config.yml"
COPIES = ("notebooks/*.ipynb", "README.md", "CITATION.cff")
NOBODY = "YOUR_ORG"  # GitHub has no account with an underscore, so this is nobody's

NOT_YET = (
    f"No public repository has been named yet, {CONFIG} still says {NOBODY}: "
    "run `make retarget REPO=owner/name` with the name of yours on GitHub, and commit what it changes."
)


def named(config: str) -> str:
    """Return the owner/name that a text of _config.yml gives.

    >>> named('  url: "https://github.com/ada/engine"')
    'ada/engine'
    """
    found = re.findall(r'^ +url: +"https://github\.com/([^"\s/]+/[^"\s/]+)"', config, flags=re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f'{CONFIG} must hold one `url: "https://github.com/owner/name"`, found {len(found)}')
    return str(found[0])


def check_name(name: str) -> str:
    """Return the name of a repository if GitHub could have one of that name.

    >>> check_name("ada/engine")
    'ada/engine'
    """
    form = r"[A-Za-z0-9](-?[A-Za-z0-9]){0,38}/[\w.-]{1,100}"
    if not re.fullmatch(form, name, flags=re.ASCII) or name.endswith((".git", "/.", "/..")):
        raise ValueError(f"REPO must be owner/name as on GitHub, such as ada/engine, got {name!r}")
    return name


def replace(text: str, old: str, new: str) -> str:
    """Replace one owner/name by another in a text, and leave alone longer names that contain it.

    >>> replace("ada/engine, lada/engine and ada/engine-2", "ada/engine", "bob/motor")
    'bob/motor, lada/engine and ada/engine-2'
    """
    return re.sub(rf"(?<![\w.-]){re.escape(old)}(?![\w-])", lambda _: new, text)


def retarget(root: Path, new: str) -> list[str]:
    """Name the repository in all files below root; return the paths of those that changed."""
    check_name(new)
    old = named((root / CONFIG).read_text(encoding="utf-8"))
    changed = []
    copies = [path for pattern in COPIES for path in sorted(root.glob(pattern))]
    for path in [*copies, root / CONFIG]:  # the config last: a run that was broken off can be repeated
        before = path.read_text(encoding="utf-8")
        after = replace(before, old, new)
        if after != before:
            path.write_text(after, encoding="utf-8", newline="\n")
            changed.append(path.relative_to(root).as_posix())
    return changed


def main(arguments: list[str], root: Path = Path(__file__).parents[1]) -> int:
    """Run the command; return its exit status."""
    if arguments == ["--check"]:
        if named((root / CONFIG).read_text(encoding="utf-8")).startswith(f"{NOBODY}/"):
            print(NOT_YET, file=sys.stderr)
            return 1
        return 0
    name = " ".join(arguments)
    try:
        changed = retarget(root, name)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for path in changed:
        print(f"changed {path}")
    if not changed:
        print(f"nothing to change: {name} is named already")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
