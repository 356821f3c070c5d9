import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat.choice import kept
from remat.gpt import gpt_layer
from remat.memory import micro_batches_in_flight, model_state, stage_activations

GPT3 = {"s": 2048, "b": 1, "h": 12288, "a": 96, "t": 8}


@pytest.mark.parametrize(
    ("sequence_parallel", "recompute", "units", "gigabytes"),
    [
        (False, "none", 23, 55.6),
        (True, "none", 14.25, 34.4),
        (False, "selective", 13, 31.4),
        (True, "selective", 4.25, 10.3),
        (False, "full", 2, 4.8),
    ],
)
def test_the_first_pipeline_stage_of_gpt_3(
    sequence_parallel: bool, recompute: str, units: float, gigabytes: float
) -> None:
    layer = gpt_layer(**GPT3, sequence_parallel=sequence_parallel)
    names = kept(layer, recompute=recompute)
    assert layer.bytes_of(names) / layer.unit == units
    assert round(stage_activations(layer, L=96, p=8, kept=names) / 1e9, 1) == gigabytes


def test_the_model_state_of_gpt_3_and_what_the_two_together_save() -> None:
    state = model_state(174_000_000_000, t=8, p=8).total
    assert state == 43.5e9
    plain, split = gpt_layer(**GPT3), gpt_layer(**GPT3, sequence_parallel=True)
    before = stage_activations(plain, L=96, p=8)
    after = stage_activations(split, L=96, p=8, kept=kept(split, recompute="selective"))
    assert round(before / after, 1) == 5.4
    assert round((state + after) / 1e9, 1) == 53.8


def test_thirty_two_layers_of_the_second_text() -> None:
    layer = gpt_layer(s=2048, b=1, h=4096, a=32)
    assert stage_activations(layer, L=32) == 32 * 956_301_312
    assert round(stage_activations(layer, L=32) / 1e9, 1) == 30.6


@given(st.integers(1, 12), st.integers(1, 6), st.data())
def test_layers_times_micro_batches_add_up_over_a_pipeline(p: int, each: int, data: st.DataObject) -> None:
    layer = gpt_layer(s=4, b=1, h=4, a=2)
    stage = data.draw(st.integers(0, p - 1))
    assert micro_batches_in_flight(p, stage=stage) == len(range(stage, p))
    found = stage_activations(layer, L=p * each, p=p, stage=stage)
    assert found == layer.saved_bytes * each * (p - stage)
    # With p micro-batches in flight the first stage holds as much as one GPU without a pipeline.
    assert stage_activations(layer, L=p * each, p=p) == stage_activations(layer, L=p * each)


@given(st.integers(1, 10**12), st.integers(1, 64), st.sampled_from([1, 2, 8]), st.integers(1, 8))
def test_each_stage_of_zero_splits_one_part_more(parameters: int, data: int, t: int, p: int) -> None:
    states = [model_state(parameters, t=t, p=p, data=data, zero=zero) for zero in range(4)]
    here = parameters / t / p
    for part, bytes_each, first in (("weights", 2, 3), ("gradients", 2, 2), ("optimizer", 12, 1)):
        for zero, state in enumerate(states):
            expected = here * bytes_each / (data if zero >= first else 1)
            assert math.isclose(getattr(state, part), expected)
    assert math.isclose(states[0].total, 16 * here)
    assert math.isclose(states[3].total, 16 * here / data)


def test_the_figures_of_the_zero_paper() -> None:
    """Figure 1: 7.5e9 parameters on 64 GPUs, in GB."""
    totals = [model_state(7_500_000_000, data=64, zero=zero).total / 1e9 for zero in range(4)]
    assert [round(total, 1) for total in totals] == [120.0, 31.4, 16.6, 1.9]


BAD = [0, -1, 1.5, True, "8", None, math.nan]


@pytest.mark.parametrize("value", BAD)
def test_sizes_must_be_positive_whole_numbers(value: object) -> None:
    layer = gpt_layer(s=4, b=1, h=4, a=2)
    must = "must be a whole number at least 1, got "
    with pytest.raises(ValueError, match=f"^parameters {must}"):
        model_state(value)  # type: ignore[arg-type]
    for name in ("t", "p", "data"):
        with pytest.raises(ValueError, match=f"^{name} {must}"):
            model_state(10, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^p {must}"):
        micro_batches_in_flight(value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^L {must}"):
        stage_activations(layer, L=value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^p {must}"):
        stage_activations(layer, L=4, p=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("zero", [-1, 4, 1.0, True, "1", None])
def test_zero_has_stages_0_to_3(zero: object) -> None:
    with pytest.raises(ValueError, match="zero must be a whole number from 0 to 3, got"):
        model_state(10, zero=zero)  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", [-1, 4, 0.5, None])
def test_a_pipeline_stage_is_one_of_p(stage: object) -> None:
    with pytest.raises(ValueError, match="stage must be a whole number from 0 to 3, got"):
        micro_batches_in_flight(4, stage=stage)  # type: ignore[arg-type]


def test_p_must_divide_the_layers_and_names_must_be_known() -> None:
    layer = gpt_layer(s=4, b=1, h=4, a=2)
    with pytest.raises(ValueError, match="p must divide L: p=5 leaves a remainder of 1 in L=96"):
        stage_activations(layer, L=96, p=5)
    with pytest.raises(ValueError, match="tensor must be one of 'x', .* got 'y'"):
        stage_activations(layer, L=96, kept=["y"])
