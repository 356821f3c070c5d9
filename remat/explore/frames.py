"""Pictures of every setting, drawn ahead on all cores, kept in a folder and packed small."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import json
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from tempfile import NamedTemporaryFile

from remat.explore import Explorer
from remat.explore.slider import Setting
from remat.figures.saving import Picture, svg

PACKAGE = Path(__file__).parents[1]
MOST_BYTES = 80_000  # packed, an explorer
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Frames:
    """What a page shows, one entry a setting.

    Attributes:
        pictures: SVG.
        sentences: plain text.
        packed: both as JSON, gzipped: the same bytes every time.
    """

    pictures: tuple[str, ...]
    sentences: tuple[str, ...]
    packed: bytes


def fingerprint(explorer: Explorer) -> str:
    """Name what the frames depend on: the package's source, what draws, the drawing function, the sliders."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    sliders = [
        (
            key,
            slider.label,
            slider.values,
            slider.unit,
            sorted(slider.notes.items(), key=repr),
            slider.default,
        )
        for key, slider in explorer.sliders.items()
    ]
    parts = [version("matplotlib"), version("numpy"), explorer.name, _source(explorer.draw), sliders]
    digest.update(repr(parts).encode())
    return digest.hexdigest()[:16]


def _source(draw: Callable[..., object]) -> str:
    try:
        return inspect.getsource(draw)
    except (OSError, TypeError):  # made without a file
        return f"{draw.__module__}.{draw.__qualname__}"


def frames(explorer: Explorer, folder: Path) -> Frames:
    """Draw every setting, or take what was drawn before from the folder.

    Args:
        explorer: what to draw.
        folder: where frames are kept; made if it is not there. Older frames of this name are removed.

    Raises:
        ValueError: if the frames take more than 80 KB packed.
    """
    kept = folder / f"{explorer.name}-{fingerprint(explorer)}.json.gz"
    if not kept.is_file():
        drawn = _draw_all(explorer)
        _write(kept, pack([picture for picture, _ in drawn], [said for _, said in drawn]))
        for old in set(folder.glob(f"{explorer.name}-{'?' * 16}.json.gz")) - {kept}:
            old.unlink(missing_ok=True)  # drawn for another state of the package
    packed = kept.read_bytes()
    if len(packed) > MOST_BYTES:
        raise ValueError(
            f"the frames of {explorer.name!r} must take at most {MOST_BYTES:,} bytes packed, "
            f"got {len(packed):,}: give its sliders fewer values, or draw less"
        )
    return Frames(*unpack(packed), packed)


def pack(pictures: Sequence[str], sentences: Sequence[str]) -> bytes:
    """Pack pictures and sentences: what pictures share is written once, then all of it as gzipped JSON.

    Pictures with the same text between their numbers share a template: its ``text``, the ``frames`` drawn
    with it, and a ``column`` for each number, one value a frame with blanks between, or one for all.

    >>> packed = pack(["<a x='1' y='5'/>", "<a x='2' y='5'/>"], ["One.", "Two."])
    >>> json.loads(gzip.decompress(packed))["templates"]
    [{'text': ["<a x='", "' y='", "'/>"], 'frames': [0, 1], 'columns': ['1 2', '5']}]
    >>> unpack(packed)
    (("<a x='1' y='5'/>", "<a x='2' y='5'/>"), ('One.', 'Two.'))
    """
    shared: dict[tuple[str, ...], list[tuple[int, list[str]]]] = {}
    for frame, picture in enumerate(pictures):
        parts = _NUMBER.split(picture)
        shared.setdefault(tuple(parts[::2]), []).append((frame, parts[1::2]))
    templates = [
        {
            "text": text,
            "frames": [frame for frame, _ in rows],
            "columns": [
                column[0] if len(set(column)) == 1 else " ".join(column)
                for column in zip(*(numbers for _, numbers in rows), strict=True)
            ],
        }
        for text, rows in shared.items()
    ]
    content = {"sentences": list(sentences), "templates": templates}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def unpack(packed: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Take pictures and sentences out again, as _sphinx/static/explore.js does."""
    content = json.loads(gzip.decompress(packed))
    pictures = {}
    for template in content["templates"]:
        columns = [column.split(" ") for column in template["columns"]]
        for row, frame in enumerate(template["frames"]):
            numbers = [column[row if len(column) > 1 else 0] for column in columns]
            parts = zip(template["text"], [*numbers, ""], strict=True)
            pictures[frame] = "".join(part for pair in parts for part in pair)
    return tuple(pictures[frame] for frame in sorted(pictures)), tuple(content["sentences"])


def _write(path: Path, content: bytes) -> None:
    """Write a file in one step, so that another process never reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
        part.write(content)
    os.replace(part.name, path)


def _draw_all(explorer: Explorer) -> list[tuple[str, str]]:
    jobs = [(explorer.draw, setting) for setting in explorer.settings]
    workers = min(_cores(), len(jobs))
    # A new process cannot import what a notebook's cell defines.
    if workers == 1 or explorer.draw.__module__ == "__main__" or "<" in explorer.draw.__qualname__:
        return [_draw_one(job) for job in jobs]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_draw_one, jobs, chunksize=-(-len(jobs) // (2 * workers))))


def _draw_one(job: tuple[Callable[..., tuple[Picture, str]], Setting]) -> tuple[str, str]:
    draw, setting = job
    fig, sentence = draw(**setting)
    return svg(fig), sentence


def _cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
