"""Sliders beside a figure, from one drawing function, for a notebook with a kernel and a page without.

With a kernel the sliders are ipywidgets, and the figure is drawn again when one moves. In the published page
they are plain HTML over pictures drawn when the book is built. Where neither works, as in GitHub's preview,
the picture and the sentence of the default setting stand.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from types import MappingProxyType

from remat.explore.slider import Setting, Slider, Value
from remat.figures.saving import Picture, png

__all__ = ["FOLDER_VARIABLE", "MOST_FRAMES", "Explorer", "Setting", "Slider", "Value", "explore"]

FOLDER_VARIABLE = "REMAT_FRAMES"  # set by `make book` alone: the folder in which drawn frames are kept
MOST_FRAMES = 120


@dataclass(frozen=True)
class Explorer:
    """A drawing function and its sliders; a notebook shows it as the last value of a cell.

    Attributes:
        name: short and unique on its page; the HTML's ids are made from it.
        draw: called with a value for each slider; returns the figure and a sentence.
        sliders: by the name of the argument, in the order shown.
        alt: what the picture shows, whatever the setting, for readers who cannot see it.
    """

    name: str
    draw: Callable[..., tuple[Picture, str]]
    sliders: Mapping[str, Slider]
    alt: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "sliders", MappingProxyType(dict(self.sliders)))
        if not re.fullmatch(r"[a-z][a-z0-9-]*", self.name):
            raise ValueError(f"name must be small letters, digits and hyphens, got {self.name!r}")
        if not self.alt.strip():
            raise ValueError("alt must say what the picture shows, got nothing")
        if not self.sliders:
            raise ValueError("sliders must be one or more, got none")
        for key, slider in self.sliders.items():
            if not isinstance(slider, Slider):
                raise ValueError(f"{key} must be a Slider, got {slider!r}")
        frames = prod(len(slider.values) for slider in self.sliders.values())
        if frames > MOST_FRAMES:
            sizes = " × ".join(str(len(slider.values)) for slider in self.sliders.values())
            raise ValueError(
                f"sliders of {self.name!r} must have at most {MOST_FRAMES} settings together, "
                f"got {sizes} = {frames}"
            )

    @property
    def default(self) -> Setting:
        """The setting shown first."""
        return {key: slider.default for key, slider in self.sliders.items()}

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Every setting, the last slider fastest."""
        columns = [slider.values for slider in self.sliders.values()]
        return tuple(dict(zip(self.sliders, row, strict=True)) for row in product(*columns))

    def __repr__(self) -> str:
        return f"Explorer({self.name!r}, {', '.join(self.sliders)})"

    def _ipython_display_(self) -> None:
        """Show it: the static explorer if frames are wanted, widgets otherwise."""
        from IPython.display import display

        if folder := os.environ.get(FOLDER_VARIABLE):
            display(self._static(Path(folder)), raw=True)  # type: ignore[no-untyped-call]
            return
        for bundle in self._live():
            display(bundle, raw=True)  # type: ignore[no-untyped-call]

    def _static(self, folder: Path) -> dict[str, object]:
        """One output: HTML with every frame, the default picture, the sentence."""
        from remat.explore.frames import frames
        from remat.explore.page import page

        drawn = frames(self, folder)
        fig, sentence = self.draw(**self.default)
        return {
            "text/html": page(self, drawn),
            "image/png": b64encode(png(fig)).decode(),
            "text/markdown": sentence,
            "text/plain": sentence,
        }

    def _live(self) -> tuple[dict[str, object], dict[str, object]]:
        """Two outputs, the board and the sentence: a viewer without widgets shows one form of each."""
        from remat.explore.live import Board

        board = Board(self)
        return (
            {
                **_view(board.top),
                "image/png": b64encode(board.picture.value).decode(),
                "text/plain": self.alt,
            },
            {**_view(board.sentence), "text/markdown": board.said, "text/plain": board.said},
        )


def _view(widget: object) -> dict[str, object]:
    """The part of an output that a front end with widgets shows."""
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}  # type: ignore[attr-defined]
    return {"application/vnd.jupyter.widget-view+json": view}


def explore(draw: Callable[..., tuple[Picture, str]], *, name: str, alt: str, **sliders: Slider) -> Explorer:
    """Put sliders beside a figure, and a sentence under it that states the answer for their setting.

    Args:
        draw: takes a value for each slider by name; returns a matplotlib figure and a sentence. Where frames
            are drawn ahead on several cores it must be importable, not defined in a notebook (or it is drawn
            on one).
        name: small letters, digits and hyphens; unique on its page.
        alt: what the picture shows, whatever the setting, for readers who cannot see it.
        **sliders: one for each argument of draw; at most 120 settings together.

    Returns:
        What a notebook shows. With the variable REMAT_FRAMES set to a folder it shows HTML with a picture of
        every setting, drawn once and kept in the folder; without it, widgets of ipywidgets 7.7.1 or later.

    Raises:
        ValueError: if there are more than 120 settings, no slider, or name or alt is not as said above.
        ModuleNotFoundError: when it is shown, if ipywidgets is missing.

    >>> from remat.figures.style import figure
    >>> def draw(k):
    ...     return figure()[0], f"k is {k}."
    >>> explore(draw, name="spacing", alt="An empty figure", k=Slider("spacing, k", (1, 2, 4), default=2))
    Explorer('spacing', k)
    >>> explore(draw, name="spacing", alt="Too many", k=Slider("k", range(121), default=2))
    Traceback (most recent call last):
        ...
    ValueError: sliders of 'spacing' must have at most 120 settings together, got 121 = 121
    """
    return Explorer(name, draw, sliders, alt)
