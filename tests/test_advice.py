"""Strategies priced on one GPU: reference values, monotonicity, the refusal."""

from dataclasses import replace

import pytest

from remat.advice import STRATEGIES, Price, Setting, Strategy, advise, keeps, price, prices
from remat.chain import Chain
from remat.choice import option
from remat.cost import roofline
from remat.gpt import gpt_layer, shape
from remat.hardware import device, link
from remat.replay import replay
from remat.schedules import store_all

GPT3 = shape("GPT-3 175B")


def setting(s: int = 2048, wire: str = "PCIe 5", **options: object) -> Setting:
    chosen = {"t": 8, "p": 8, "spare": 10e9} | options
    return Setting(GPT3, s=s, device=device("H100"), link=link(wire), **chosen)  # type: ignore[arg-type]


def priced(s: int, wire: str, name: str) -> Price:
    return price(setting(s, wire), strategy(name))


def strategy(name: str) -> Strategy:
    return next(strategy for strategy in STRATEGIES if strategy.name == name)


def test_first_stage_of_gpt3_keeps_what_the_reference_says() -> None:
    kept = {p.strategy.name: round(p.kept / 1e9, 1) for p in prices(setting())}
    assert kept["keep all, tensor parallel"] == 55.6
    assert kept["keep all"] == 34.4
    assert kept["selective"] == 10.3
    state = prices(setting())[0].state
    assert round(state / 1e9, 1) == 43.5
    assert (
        round((state + next(p.kept for p in prices(setting()) if p.strategy.name == "selective")) / 1e9, 1)
        == 53.8
    )


@pytest.mark.parametrize(("wire", "percent"), [("PCIe 4", 57.8), ("PCIe 5", 19.2), ("NVLink-C2C", 13.3)])
def test_selective_and_offload_at_8192_costs_what_the_reference_says(wire: str, percent: float) -> None:
    # The first layer's input is the batch and is not copied, so the whole step waits a little less.
    assert 100 * priced(8192, wire, "selective + offload").overhead == pytest.approx(percent, abs=0.1)


def test_full_recompute_at_8192_costs_what_the_reference_says() -> None:
    assert round(100 * priced(8192, "PCIe 5", "full recompute").overhead, 1) == 27.6


def test_offload_beats_full_recompute_on_fast_links_only() -> None:
    for wire, better in (("PCIe 4", False), ("PCIe 5", True), ("NVLink-C2C", True)):
        offload, full = (priced(8192, wire, name) for name in ("selective + offload", "full recompute"))
        assert (offload.layer_s < full.layer_s) is better


@pytest.mark.parametrize("name", [s.name for s in STRATEGIES if not s.offload])
def test_activations_are_a_replay_of_the_layers_held(name: str) -> None:
    case, way = setting(p=16), strategy(name)
    layer = gpt_layer(s=2048, b=1, h=12288, a=96, t=8, sequence_parallel=way.sequence_parallel)
    chosen = option(layer, roofline(layer, case.device), kept=keeps(layer, way))
    line = Chain((chosen.stage(layer["out"].bytes),) * 96, layer["x"].bytes, "tape")
    assert price(case, way).activations == replay(line, store_all(line)).peak
    assert price(case, way).activations > price(case, way).kept


def test_later_stages_hold_less_and_the_last_one_its_own_layers_only() -> None:
    totals = [price(setting(stage=stage), strategy("selective")).total for stage in range(8)]
    assert totals == sorted(totals, reverse=True)
    assert setting(stage=7).layers == 12


def test_advice_is_the_fastest_that_fits() -> None:
    for s in (2048, 4096, 8192):
        for wire in ("PCIe 4", "PCIe 5", "NVLink-C2C"):
            chosen, everything = advise(setting(s, wire)), prices(setting(s, wire))
            assert chosen.fits
            assert chosen.layer_s == min(p.layer_s for p in everything if p.fits)


def test_more_memory_never_makes_the_advice_slower() -> None:
    case = setting(8192, "PCIe 4")
    times = [
        advise(replace(case, device=replace(case.device, memory=gb * 10**9))).layer_s
        for gb in (62, 80, 96, 141, 180, 600)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_nothing_fits_says_how_much_is_missing_and_what_would_do() -> None:
    case = setting(p=4)
    with pytest.raises(ValueError, match=r"17\.4 GB short even with full \+ offload") as refusal:
        advise(case)
    least = min(prices(case), key=lambda p: p.total)
    need = least.total + case.spare
    assert f"the least that fits is {need / 1e9:.1f} GB" in str(refusal.value)
    enough = replace(case, device=replace(case.device, memory=int(need) + 1))
    assert advise(enough).strategy == least.strategy


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"p": 7}, "p must divide L"),
        ({"stage": 8}, "stage must be a whole number from 0 to 7, got 8"),
        ({"spare": -1}, "spare must be a finite number 0 or more, got -1"),
    ],
)
def test_bad_settings_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        setting(**options)  # type: ignore[arg-type]
