"""The explorers: their sliders, their frames, and the numbers in their sentences, found another way."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from naive import naive_replay
from remat import explorers
from remat.advice import STRATEGIES, Setting, prices
from remat.chain import Backward, Chain, chain_of
from remat.choice import kept, option
from remat.choices import every_choice
from remat.cost import flops, roofline
from remat.cuts import every_cut
from remat.explore import MOST_FRAMES, Explorer
from remat.explore.frames import MOST_BYTES, Frames, frames
from remat.explorers.draw import (
    HEADS,
    draw_budget,
    draw_choices,
    draw_ledger,
    draw_spacing,
    draw_timeline,
)
from remat.explorers.segment_model import LAYERS, draw_segment_model
from remat.figures.saving import svg
from remat.gpt import SHAPES, gpt_layer, shape
from remat.hardware import device, link
from remat.layer import Layer
from remat.offload import offload_all
from remat.schedules import uniform
from timeline import judged

ALL = {name: getattr(explorers, name)() for name in explorers.__all__}
FOLDER = Path(__file__).parents[1] / "_build" / "frames"  # where `make book` has just left them


def numbers(sentence: str) -> list[float]:
    """The numbers of a sentence, without those in the names of links."""
    plain = re.sub(r"PCIe \d|C2C", "", sentence)
    return [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*(?:\.\d+)?", plain)]


# What they have in common


@cache
def drawn(name: str) -> Frames:
    return frames(ALL[name], FOLDER)


def test_there_are_six() -> None:
    assert len(ALL) == 6 and {explorer.name for explorer in ALL.values()} == set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_frames_are_few_and_small(name: str) -> None:
    assert len(ALL[name].settings) == len(drawn(name).pictures) <= MOST_FRAMES
    assert len(drawn(name).packed) <= MOST_BYTES <= 80 * 1024


@pytest.mark.parametrize("name", ALL)
def test_every_slider_changes_the_picture_and_the_sentence_from_the_default(name: str) -> None:
    """From the setting shown first, either end of every slider shows something else than the other end."""
    explorer: Explorer = ALL[name]
    for key, slider in explorer.sliders.items():
        ends = [
            explorer.settings.index({**explorer.default, key: value})
            for value in (slider.values[0], slider.values[-1])
        ]
        assert len({drawn(name).pictures[end] for end in ends}) == 2, key
        assert len({drawn(name).sentences[end] for end in ends}) == 2, key


@pytest.mark.parametrize("name", ALL)
def test_frames_are_what_the_function_draws_here_and_now(name: str) -> None:
    explorer: Explorer = ALL[name]
    for at in {0, explorer.settings.index(explorer.default), len(explorer.settings) - 1}:
        fig, sentence = explorer.draw(**explorer.settings[at])
        assert (drawn(name).pictures[at], drawn(name).sentences[at]) == (svg(fig), sentence)


@pytest.mark.parametrize("name", ALL)
def test_all_pictures_of_an_explorer_are_of_one_size(name: str) -> None:
    assert len({re.search(r'viewBox="[^"]*"', picture)[0] for picture in drawn(name).pictures}) == 1  # type: ignore[index]


def test_hidden_sizes_have_the_heads_of_their_models() -> None:
    assert {(known.h, known.a) for known in SHAPES.values()} <= set(HEADS.items())
    assert HEADS[4096] == 32


# What they say


@pytest.mark.parametrize("setting", ALL["ledger"].settings[::7])
def test_ledger_says_what_the_papers_formula_gives(setting: dict[str, int]) -> None:
    s, h, a = setting["s"], setting["h"], setting["a"]
    core = 5 * a * s / h
    said = numbers(draw_ledger(s=s, h=h, a=a)[1])
    units = [34 + core, 34, 2]
    expected = [[float(f"{unit:.4g}"), round(s * h * unit / 1e9, 2)] for unit in units]
    assert said == [*expected[0], round(100 * core / (34 + core)), *expected[1], *expected[2]]


@pytest.mark.parametrize("k", range(1, 17))
def test_spacing_says_what_brute_force_finds(k: int) -> None:
    line = chain_of([1] * 16)
    counted, best = naive_replay(line, uniform(line, k)), every_cut(line).frontier
    sentence = draw_spacing(n=16, k=k)[1]
    expected = [k, 16, counted.peak, counted.work]
    if (counted.peak, counted.work) in [(point.peak, point.work) for point in best]:
        assert "on the frontier" in sentence
    else:
        expected.append(min(point.work for point in best if point.peak <= counted.peak))
        expected.append(min(point.peak for point in best if point.work <= counted.work))
    assert numbers(sentence) == expected


@pytest.mark.parametrize(("n", "k"), [(24, 4), (48, 6), (96, 8), (96, 16)])
def test_spacing_says_what_can_be_counted_by_hand(n: int, k: int) -> None:
    """Where k divides n: input, n/k checkpoints, k − 1 other outputs, one gradient; all but n/k run again."""
    assert numbers(draw_spacing(n=n, k=k)[1])[:4] == [k, n, 1 + n // k + (k - 1) + 1, n - n // k]


def extra(layer: Layer, costs: Mapping[str, float], word: str) -> float:
    """The recompute of a named choice as a share of the step, by lowering it to an option."""
    way, plain = (option(layer, costs, kept=kept(layer, recompute=name)) for name in (word, "none"))
    return (way.backward_s - plain.backward_s) / (3 * way.forward_s)


@pytest.mark.parametrize("setting", ALL["choices"].settings[::4])
def test_choices_says_what_options_cost(setting: dict[str, int]) -> None:
    s, h = setting["s"], setting["h"]
    layer = gpt_layer(s=s, b=1, h=h, a=HEADS[h], t=8, sequence_parallel=True)
    seconds = roofline(layer, device("H100"), residual_traffic=False)
    cheap, dear = extra(layer, flops(layer), "selective"), extra(layer, seconds, "selective")
    said = draw_choices(s=s, h=h)[1]
    assert numbers(said) == [
        34,
        float(f"{34 + 5 * HEADS[h] * s / h:.4g}"),
        round(100 * cheap, 2),
        round(100 * dear, 1),
        round(dear / cheap, 1),
        round(100 * extra(layer, seconds, "full"), 1),
    ]
    beaten = [
        choice
        for choice in every_choice(layer, seconds).frontier
        if choice.kept_bytes <= 34 * layer.unit / 8 and choice.share < dear - 1e-12
    ]
    assert ("is above the frontier" in said) == bool(beaten)


@pytest.mark.parametrize("setting", ALL["timeline"].settings[3::9])
def test_timeline_says_what_a_second_clock_tells(setting: dict[str, Any]) -> None:
    s, h, bandwidth = setting["s"], setting["h"], link(setting["link"]).bandwidth
    layer = gpt_layer(s=s, b=1, h=h, a=HEADS[h], t=8, sequence_parallel=True)
    costs = roofline(layer, device("H100"), residual_traffic=False)
    way = option(layer, costs, kept=kept(layer, recompute="selective"))
    line = Chain((way.stage(layer["out"].bytes),) * 8, layer["x"].bytes, "tape")
    counted, second = judged(line, offload_all(line), bandwidth)
    copy_s = layer.bytes_of(kept(layer, recompute="selective")) / bandwidth
    steady = max(0, copy_s - way.forward_s) + max(0, copy_s - way.backward_s)
    sentence = draw_timeline(**setting)[1]
    memory = [round(counted.host_peak / 1e9, 2), round(counted.peak / 1e9, 2)]
    end_ms = round(1e3 * float(max(second.end)), 1)
    assert sentence.startswith(f"On {setting['link']}, ")
    turn = next(i for i, node in enumerate(second.world.plan) if isinstance(node, Backward))
    idle = [
        sum(wait for wait, node in zip(waits, nodes, strict=True) if node.stream == "compute")
        for waits, nodes in (
            (second.waits[:turn], second.world.nodes[:turn]),
            (second.waits[turn:], second.world.nodes[turn:]),
        )
    ]
    if any(idle):
        stall_ms = round(1e3 * float(sum(idle)), 1)
        assert numbers(sentence) == [stall_ms, end_ms, round(1e3 * steady, 2), *memory]
        where = {(1, 1): "forward and backward;", (1, 0): "forward only;", (0, 1): "backward only;"}
        assert where[bool(idle[0]), bool(idle[1])] in sentence
    else:
        assert "every copy hides" in sentence and numbers(sentence) == [end_ms, *memory]


@pytest.mark.parametrize(("s", "name"), [(2048, "PCIe 4"), (8192, "PCIe 5"), (32768, "NVLink-C2C")])
def test_budget_says_what_the_prices_are(s: int, name: str) -> None:
    gpt3, h100 = shape("GPT-3 175B"), device("H100")
    setting = Setting(gpt3, s=s, device=h100, link=link(name), t=8, p=8, spare=10e9)
    state = 16 * gpt3.L * (12 * gpt3.h**2 + 13 * gpt3.h) / 64
    for strategy, found in zip(STRATEGIES, prices(setting), strict=True):
        sentence = draw_budget(s=s, link=name, strategy=strategy.name)[1]
        short = [] if found.fits else [round((state + found.activations) / 1e9 - 70, 1)]
        assert numbers(sentence) == [
            round(state / 1e9, 1),
            round(found.activations / 1e9, 1),
            round((state + found.activations) / 1e9, 1),
            70,
            *short,
            round(1e3 * found.layer_s, 2),
            round(100 * found.overhead, 1),
        ]
        assert ("it fits" in sentence) == found.fits == (state + found.activations <= 70e9)
        assert sentence.lower().startswith(f"{strategy.name.lower()}: ") and name in sentence


@pytest.mark.parametrize("setting", ALL["segments"].settings[::3] + ALL["segments"].settings[1::7])
def test_segments_says_what_the_formulas_give(setting: dict[str, Any]) -> None:
    """The formulas of the text, typed once more with the shapes of the models; replay's count likewise."""
    L, k, mode = setting["L"], setting["k"], setting["mode"]
    h, a = {956: (4096, 32), 2869: (12288, 96)}[setting["A"]]
    s, segments = 2048, -(-L // k)
    core = 5 * a * s / h
    A, m = s * h * (34 + core) / 1e9, core / (34 + core)
    f = s / (6 * h + s)
    units = {"none": L, "full": segments + k, "selective": L * (1 - m) + (segments + k) * m}[mode]
    spare = {"none": 20, "full": 18, "selective": 20}[mode]  # input or output, gradient, scratch of 16 sbh
    lean = {"none": L * (34 + core), "full": segments * 2 + k * (34 + core), "selective": L * 34 + core}[mode]
    counted = round((lean + spare) * s * h / 1e9, 1)
    sentence = draw_segment_model(**setting)[1]
    assert sentence.lower().startswith(f"{mode}: ")
    if mode == "none":
        assert numbers(sentence) == [L, round(1e3 * A), round(L * A, 1), counted]
        return
    layers = [segments, k] if mode == "full" else [round(units, 1)]
    forward = [1] if mode == "full" else [round(100 * f, 1)]
    compute = round(100 / 3 if mode == "full" else 100 * f / 3, 1)
    saving = round(100 * abs(1 - units / L), 1)
    assert numbers(sentence) == [
        *layers, L, round(units * A, 1), round(L * A, 1), saving, *forward, compute, counted,
    ]  # fmt: skip
    assert ("more than that" in sentence) == (units > L)


def test_segments_has_layers_of_known_models() -> None:
    assert {size: name for size, (name, _) in LAYERS.items()} == {956: "GPT-3 6.7B", 2869: "GPT-3 175B"}
    assert len(ALL["segments"].settings) == 90
