"""States in the footer of every page which version and commit the site was built from."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import version
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config

PACKAGE = "remat"


def git(folder: Path, *words: str) -> str | None:
    """Return what git prints about folder, or None where git or the repository is missing."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        ran = subprocess.run(
            ["git", "-C", str(folder), *words], env=own, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return ran.stdout.strip()


def commit(folder: Path) -> str | None:
    """Return the name git gives to what folder holds, or None if folder is not the top of a repository.

    A copy of the book that was unpacked inside somebody else's repository has no commit of its own.
    """
    top = git(folder, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != folder.resolve():
        return None
    return git(folder, "describe", "--always", "--tags", "--dirty=+changes", "--abbrev=10")


def sentence(release: str, name: str | None) -> str:
    """Say it in words.

    >>> sentence("0.1.0", "5be8623ab1")
    'Built from remat 0.1.0, commit 5be8623ab1.'
    >>> sentence("0.1.0", "5be8623ab1+changes")
    'Built from remat 0.1.0, commit 5be8623ab1 with changes that are not committed.'
    >>> sentence("0.1.0", None)
    'Built from remat 0.1.0, outside a git repository: no commit to name.'
    """
    if name is None:
        return f"Built from {PACKAGE} {release}, outside a git repository: no commit to name."
    changed = " with changes that are not committed" if name.endswith("+changes") else ""
    return f"Built from {PACKAGE} {release}, commit {name.removesuffix('+changes')}{changed}."


def add_to_footer(app: Sphinx, config: Config) -> None:
    """Put the sentence behind what the settings have for the footer."""
    words = sentence(version(PACKAGE), commit(Path(app.srcdir)))
    footer = config.html_theme_options.get("extra_footer", "")
    config.html_theme_options["extra_footer"] = f"{footer}<p>{words}</p>"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("config-inited", add_to_footer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
