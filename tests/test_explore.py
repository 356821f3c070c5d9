"""Sliders: what a cell shows with frames and without, and the frames that a page shows."""

import gzip
import json
import re
import subprocess
import sys
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib.figure import Figure

import remat.explore.frames
from remat.explore import FOLDER_VARIABLE, MOST_FRAMES, Explorer, Slider, explore
from remat.explore.frames import Frames, fingerprint, frames, pack, unpack
from remat.explore.live import Board
from remat.explore.page import page
from remat.figures.saving import svg
from remat.figures.style import figure, finish

VIEW = "application/vnd.jupyter.widget-view+json"


def draw(*, s: int, link: str) -> tuple[Figure, str]:
    fig, (axes,) = figure(3, 2)
    axes.bar([0], [s / 1.7])
    finish(axes, x=f"{link}'s <x> & y", y='"y", GB')
    return fig, f"{link}'s s is {s:,}: 1 < 2 & so on."


def build(**changes: Any) -> Explorer:
    sliders = {
        "s": Slider("sequence, s", (1024, 2048, 4096), default=2048, unit="tokens", notes={2048: "GPT-3"}),
        "link": Slider("link", ("PCIe 4", "PCIe 5"), default="PCIe 5"),
    }
    arguments = {"name": "one", "alt": 'A bar, "s" high & wide', **sliders, **changes}
    return explore(arguments.pop("draw", draw), **arguments)


def shown(explorer: Explorer) -> list[dict[str, Any]]:
    """What a notebook cell that ends in the explorer shows, one bundle an output."""
    InteractiveShell.instance()
    with capture_output() as captured:
        explorer._ipython_display_()
    assert captured.stdout == captured.stderr == ""
    return [output.data for output in captured.outputs]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the frames of ``build()`` lie."""
    folder = tmp_path_factory.mktemp("frames")
    frames(build(), folder)
    return folder


# Sliders and settings


def test_settings_are_the_grid_with_the_last_slider_fastest() -> None:
    explorer = build()
    assert [tuple(setting.values()) for setting in explorer.settings] == [
        (s, link) for s in (1024, 2048, 4096) for link in ("PCIe 4", "PCIe 5")
    ]
    assert explorer.default == {"s": 2048, "link": "PCIe 5"} and explorer.default in explorer.settings


def test_values_are_written_with_separators_unit_and_note() -> None:
    assert build().sliders["s"].texts == ("1,024 tokens", "2,048 tokens (GPT-3)", "4,096 tokens")


def test_more_settings_than_frames_are_refused() -> None:
    def numbers(count: int) -> Slider:
        return Slider("n", tuple(range(count)), default=0)

    def empty(**_: int) -> tuple[Figure, str]:
        return figure()[0], ""

    assert len(explore(empty, name="n", alt="n", a=numbers(10), b=numbers(12)).settings) == MOST_FRAMES
    with pytest.raises(ValueError, match=r"'n' must have at most 120 settings together, got 11 × 11 = 121"):
        explore(empty, name="n", alt="n", a=numbers(11), b=numbers(11))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Two words"}, "name must be small letters"),
        ({"alt": " "}, "alt must say"),
        ({"s": 3}, "s must be a Slider, got 3"),
    ],
)
def test_a_bad_argument_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": (1,), "default": 1}, "values must be two or more"),
        ({"values": (1, 1), "default": 1}, "all different"),
        ({"values": (1, 2), "default": 3}, "default must be one of"),
        ({"values": (1, 2), "default": 1, "notes": {3: "x"}}, "notes must be on values"),
    ],
)
def test_a_bad_slider_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Slider("n", **arguments)


# With a kernel


def test_without_frames_a_cell_shows_widgets_picture_and_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    picture, sentence = shown(build())
    assert set(picture) == {VIEW, "image/png", "text/plain"}
    assert set(sentence) == {VIEW, "text/markdown", "text/plain"}
    assert picture[VIEW]["model_id"] != sentence[VIEW]["model_id"]
    assert b64decode(picture["image/png"])[1:4] == b"PNG"
    assert sentence["text/markdown"] == sentence["text/plain"] == "PCIe 5's s is 2,048: 1 < 2 & so on."


def test_what_nbval_compares_is_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    first, second = (
        [{kind: data for kind, data in bundle.items() if kind != VIEW} for bundle in shown(build())]
        for _ in range(2)
    )
    assert first == second
    assert repr(build()) == "Explorer('one', s, link)"


def test_without_frames_nothing_is_drawn_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    drawn = []

    def counting(**setting: Any) -> tuple[Figure, str]:
        drawn.append(setting)
        return draw(**setting)

    shown(build(draw=counting))
    assert drawn == [{"s": 2048, "link": "PCIe 5"}]


def test_moving_a_slider_changes_picture_and_sentence() -> None:
    board = Board(build())
    before = board.picture.value
    assert [slider.description for slider in board.sliders.values()] == ["sequence, s", "link"]
    assert board.sliders["s"].label == "2,048 tokens (GPT-3)"
    board.sliders["s"].value = 4096
    assert board.picture.value != before
    assert board.said == "PCIe 5's s is 4,096: 1 < 2 & so on."
    assert "1 &lt; 2 &amp; so on" in board.sentence.value
    board.sliders["s"].index = 1
    assert board.picture.value == before


def test_two_boards_do_not_share_their_sliders() -> None:
    one, two = Board(build()), Board(build(name="two"))
    one.sliders["link"].value = "PCIe 4"
    assert (one.setting["link"], two.setting["link"]) == ("PCIe 4", "PCIe 5")
    assert "PCIe 5" in two.said


def test_ipywidgets_is_missed_only_when_an_explorer_is_shown() -> None:
    program = """
import sys
sys.modules["ipywidgets"] = None
from remat.explore import Slider, explore
from remat.figures.style import figure
shown = explore(lambda k: (figure()[0], ""), name="k", alt="k", k=Slider("k", (1, 2), default=1))
assert "IPython" not in sys.modules
try:
    shown._ipython_display_()
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == 'an explorer needs ipywidgets to be shown: pip install "remat[explore]"\n', (
        done.stderr
    )


# With frames


class Page(HTMLParser):
    """The elements of a page, and whether they close as they open."""

    VOID = ("img", "input")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts[self.elements[-1][1].get("class") or self.elements[-1][0]] = data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.elements if found == tag]


def test_with_frames_one_output_holds_every_form(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(kept))
    (bundle,) = shown(build())
    assert set(bundle) == {"text/html", "image/png", "text/markdown", "text/plain"}
    assert bundle["text/plain"] == bundle["text/markdown"] == draw(**build().default)[1]
    assert shown(build()) == [bundle]


def test_there_is_a_frame_for_every_setting_in_order(kept: Path) -> None:
    explorer = build()
    drawn = frames(explorer, kept)
    for setting, picture, sentence in zip(explorer.settings, drawn.pictures, drawn.sentences, strict=True):
        fig, said = draw(**setting)
        assert (picture, sentence) == (svg(fig), said)
    assert len(set(drawn.pictures)) == 6


def test_frames_are_the_same_bytes_every_time(kept: Path, tmp_path: Path) -> None:
    first, second = frames(build(), kept), frames(build(), tmp_path / "new folder")
    assert first.packed == second.packed
    assert page(build(), first) == page(build(), second)


def test_frames_are_drawn_once(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remat.explore.frames, "_draw_all", lambda _: pytest.fail("drawn again"))
    assert len(frames(build(), kept).pictures) == 6
    assert [path.suffix for path in kept.iterdir()] == [".gz"]


def test_frames_of_another_state_of_the_package_are_removed(tmp_path: Path) -> None:
    names = (
        "one-0123456789abcdef.json.gz",
        "one-two-0123456789abcdef.json.gz",
        "two-0123456789abcdef.json.gz",
    )
    for name in names:
        (tmp_path / name).touch()
    frames(build(draw=lambda **setting: draw(**setting)), tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left >= set(names[1:]) and names[0] not in left and len(left) == 3


def other_draw(*, s: int, link: str) -> tuple[Figure, str]:
    return draw(s=s, link=link)


@pytest.mark.parametrize(
    "changes",
    [
        {"draw": other_draw},
        {"name": "other"},
        {"s": Slider("sequence, s", (1024, 2048, 8192), default=2048, unit="tokens", notes={2048: "GPT-3"})},
        {"link": Slider("link", ("PCIe 4", "PCIe 5"), default="PCIe 4")},
    ],
    ids=["drawing function", "name", "a value", "a default"],
)
def test_the_fingerprint_follows_the_choices(changes: dict[str, Any]) -> None:
    assert fingerprint(build()) == fingerprint(build())
    assert fingerprint(build(**changes)) != fingerprint(build())


def test_the_fingerprint_follows_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remat.explore.frames, "PACKAGE", tmp_path)
    seen = [fingerprint(build())]
    for name, text in (("a.py", "x = 1"), ("a.py", "x = 2"), ("sub/b.py", "x = 2")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        seen.append(fingerprint(build()))
    assert len(set(seen)) == 4
    monkeypatch.setattr(remat.explore.frames, "version", lambda name: "0")
    assert fingerprint(build()) not in seen


def test_too_much_for_a_page_is_refused(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remat.explore.frames, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match=r"'one' must take at most 100 bytes packed, got [\d,]+: give"):
        frames(build(), kept)


def test_packing_loses_nothing() -> None:
    pictures = ["<a x='-1.5' y='5'/>", "<b/>", "<a x='2' y='5'/>", "12 1-2 3.", "", "<a x='-1.5' y='5'/>"]
    sentences = [f"Number {i} — “é”." for i in range(6)]
    packed = pack(pictures, sentences)
    assert unpack(packed) == (tuple(pictures), tuple(sentences))
    assert packed[4:8] == bytes(4)  # gzip's time stamp
    assert len(json.loads(gzip.decompress(packed))["templates"]) == 4


def test_the_page_is_well_formed_and_labels_its_inputs(kept: Path) -> None:
    drawn = frames(build(), kept)
    html = page(build(), drawn) + page(build(name="two"), drawn)
    read = Page(html)
    assert not read.open
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) == 6
    inputs = read.all("input")
    assert [label["for"] for label in read.all("label")] == [field["id"] for field in inputs]
    for field, slider in zip(inputs, [*build().sliders.values()] * 2, strict=True):
        texts = json.loads(field["data-texts"] or "")
        assert tuple(texts) == slider.texts
        assert field["aria-valuetext"] == texts[int(field["value"] or "")] == slider.text(slider.default)
        assert (field["min"], field["max"], field["step"]) == ("0", str(len(texts) - 1), "1")


def test_the_page_stands_without_scripts(kept: Path) -> None:
    explorer = build()
    drawn = frames(explorer, kept)
    read = Page(page(explorer, drawn))
    assert "hidden" in next(a for _, a in read.elements if a.get("class") == "remat-sliders")
    (image,) = read.all("img")
    at = explorer.settings.index(explorer.default)
    kind, _, picture = (image["src"] or "").partition(",")
    assert kind == "data:image/svg+xml" and unquote(picture) == drawn.pictures[at]
    assert image["alt"] == explorer.alt and int(image["width"] or 0) == 288
    assert read.texts["remat-sentence"] == drawn.sentences[at]
    assert b64decode(read.texts["remat-frames"]) == drawn.packed
    (status,) = (a for _, a in read.elements if a.get("role") == "status")
    assert status["aria-live"] == "polite"


def test_a_picture_carries_no_date_and_no_address(kept: Path) -> None:
    for picture in frames(build(), kept).pictures:
        assert picture.startswith("<svg ") and picture.endswith("</svg>")
        addresses = set(re.findall(r"https?://[^\"]*", picture))
        assert addresses == {
            "http://www.w3.org/2000/svg",
            "http://www.w3.org/1999/xlink",
        }  # names, not fetched
        assert "'s &lt;x&gt; &amp; y" in picture and "date" not in picture


def test_a_function_of_a_notebook_is_drawn_in_its_own_process(tmp_path: Path) -> None:
    here: list[int] = []

    def local(*, s: int, link: str) -> tuple[Figure, str]:
        here.append(s)
        return draw(s=s, link=link)

    drawn: Frames = frames(build(draw=local), tmp_path)
    assert len(here) == len(drawn.pictures) == 6
