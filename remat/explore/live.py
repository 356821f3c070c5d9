"""The explorer of a live notebook: ipywidgets, with what versions 7.7.1 and 8 have in common."""

from __future__ import annotations

from html import escape
from typing import Any

from remat.explore import Explorer
from remat.explore.slider import Setting
from remat.figures.saving import png

try:
    import ipywidgets as widgets
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        'an explorer needs ipywidgets to be shown: pip install "remat[explore]"', name="ipywidgets"
    ) from missing


class Board:
    """Sliders, picture and sentence of one explorer, tied together.

    Attributes:
        sliders: a widget for each slider, by name.
        picture: the widget that holds the PNG.
        sentence: the widget under it.
        top: sliders and picture together, side by side where there is room.
        said: the sentence as plain text.
    """

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._drawn: dict[tuple[object, ...], tuple[bytes, str]] = {}
        self.said = ""
        self.sliders = {
            key: widgets.SelectionSlider(
                options=list(zip(slider.texts, slider.values, strict=True)),
                value=slider.default,
                description=slider.label,
                style={"description_width": "11em"},
                layout=widgets.Layout(width="28em", max_width="100%"),
            )
            for key, slider in explorer.sliders.items()
        }
        self.picture = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
        self.sentence = widgets.HTML()
        self.top = widgets.Box(
            [widgets.VBox([*self.sliders.values()]), self.picture],
            layout=widgets.Layout(display="flex", flex_flow="row wrap", align_items="flex-start"),
        )
        self._show()
        for slider in self.sliders.values():
            slider.observe(self._show, names="value")

    @property
    def setting(self) -> Setting:
        """What the sliders say."""
        return {key: slider.value for key, slider in self.sliders.items()}

    def _show(self, _: Any = None) -> None:
        at = tuple(self.setting.values())
        if at not in self._drawn:
            fig, said = self._explorer.draw(**self.setting)
            self._drawn[at] = png(fig), said
        self.picture.value, self.said = self._drawn[at]
        self.sentence.value = (
            f'<p role="status" style="margin:0;line-height:1.5">{escape(self.said, quote=False)}</p>'
        )
