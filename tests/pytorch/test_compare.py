"""Phases of memory, peaks on replay's terms, and ratios of time."""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from remat.pytorch import Phase, mlp, peak_bytes, phases, step_peak, time_ratios


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(-3, 6), min_size=1, max_size=4), min_size=1, max_size=4))
def test_phases_count_what_is_alive(script: list[list[int]]) -> None:
    """Each phase allocates tensors (a positive size in KiB) or releases the oldest (0 or less)."""
    held: list[Tensor] = []

    def do(phase: list[int]) -> None:
        for size in phase:
            if size > 0:
                held.append(torch.empty(size * 1024, dtype=torch.uint8))
            elif held:
                held.pop(0)

    found = phases([lambda phase=phase: do(phase) for phase in script])
    queue: list[int] = []
    for phase, measured in zip(script, found, strict=True):
        peak = sum(queue)
        for size in phase:
            if size > 0:
                queue.append(size * 1024)
            elif queue:
                queue.pop(0)
            peak = max(peak, sum(queue))
        assert measured == Phase(peak, sum(queue))


def test_one_phase_is_peak_bytes() -> None:
    stages = nn.Sequential(*mlp(4, 16))
    x = torch.ones(32, 16)

    def step() -> None:
        stages(x).mean().backward()

    step()
    gc.collect()
    assert phases([step])[0].peak == peak_bytes(step)


def test_a_release_of_what_lived_before_does_not_count() -> None:
    held = [torch.ones(1000)]
    assert phases([held.clear, lambda: held.append(torch.ones(10)), held.clear]) == [
        Phase(0, 0),
        Phase(40, 40),
        Phase(40, 0),
    ]


def test_the_peak_of_a_step_counts_its_input_and_leaves_gradients_as_they_were() -> None:
    layer = nn.Linear(8, 8)
    x = torch.ones(4, 8)

    def step() -> None:
        layer(x).sum().backward()

    assert step_peak(step, [layer], x) == step_peak(step, layer, x)
    assert layer.weight.grad is None and layer.bias.grad is None
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert step_peak(step, layer, x) == x.nbytes + peak_bytes(step)


def test_ratios_are_of_the_first_and_need_a_step() -> None:
    calls: list[str] = []
    found = time_ratios({name: (lambda name=name: calls.append(name)) for name in "ab"}, repeats=3)
    assert found["a"] == 1 and found["b"] > 0
    assert calls == list("ab") * 4  # in turns, after one round to warm up
    with pytest.raises(ValueError, match="at least one step"):
        time_ratios({})
    with pytest.raises(ValueError, match="repeats must be"):
        time_ratios({"a": int}, repeats=0)
