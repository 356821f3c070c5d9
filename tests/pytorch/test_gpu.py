"""The sentence about a GPU: the same words where there is none, the same steps' peaks where there is one."""

import re

import pytest
import torch
from torch import Tensor, nn

from remat.pytorch import checkpoint_segments, gpu, gpu_peaks, mlp, peak_bytes

WIDTH, BATCH = 64, 2048
UNIT = WIDTH * BATCH * 4


def chain() -> tuple[nn.Module, dict[str, object], Tensor]:
    stages = mlp(8, WIDTH)
    model, inputs = nn.Sequential(*stages), torch.ones(BATCH, WIDTH)
    return model, {"all": model, "4 + 4": lambda x: checkpoint_segments(stages, [4, 4], x)}, inputs


def test_without_a_gpu_it_says_so_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def run(x: Tensor) -> Tensor:
        raise AssertionError("it ran")

    said = gpu_peaks(nn.Linear(2, 2), {"a": run}, torch.ones(2, 2))
    assert said == gpu_peaks(nn.Linear(3, 3), {"b": run}, torch.ones(3, 3), unit=1, unit_name="bytes")
    assert "no CUDA GPU" in said and "torch.cuda.max_memory_allocated" in said


def test_with_a_gpu_it_names_it_and_each_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    monkeypatch.setattr(gpu, "peaks_on", lambda device, *_: {"all": 3 * UNIT, "4 + 4": UNIT, device: 0})
    said = gpu_peaks(*chain(), unit=UNIT, unit_name="activations")
    assert "Tesla T4" in said and "in activations: all 3.00, 4 + 4 1.00, cuda 0.00." in said


def test_peaks_are_those_of_the_steps_that_the_book_measures() -> None:
    model, runs, inputs = chain()

    def step() -> None:
        output = model(inputs.clone())
        output.mean().backward()

    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    step()
    found = gpu.peaks_on("cpu", model, runs, inputs)
    assert found["all"] == peak_bytes(step)
    assert found["4 + 4"] < 0.7 * found["all"]


@pytest.mark.parametrize("unit", [0, -1, "MB"])
def test_a_unit_that_is_none_is_refused(unit: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"got {unit!r}")):
        gpu_peaks(nn.Linear(2, 2), {}, torch.ones(2, 2), unit=unit)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_model_comes_back_and_peaks_are_close_to_a_cpus() -> None:
    model, runs, inputs = chain()
    there = gpu.peaks_on("cuda", model, runs, inputs)
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    here = gpu.peaks_on("cpu", model, runs, inputs)
    assert there == pytest.approx(here, rel=0.05)
