"""Report the same measurement on a CUDA GPU, where there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from remat import _check
from remat.pytorch.peak import peak_bytes


def gpu_peaks(
    model: nn.Module,
    runs: Mapping[str, Callable[[Tensor], Tensor]],
    inputs: Tensor,
    *,
    unit: float = 1e6,
    unit_name: str = "MB",
) -> str:
    """Say in a sentence how high a training step peaks on this machine's CUDA GPU, or that there is none.

    Each run is measured for one step: forward from a copy of inputs, the mean of its output, backward.
    Parameters and their gradients exist beforehand and do not count.

    Args:
        model: holds every parameter that the runs use; on a GPU while they are measured, and back afterwards.
        runs: by name, what the step's forward does with the inputs; each returns one tensor.
        inputs: the batch.
        unit: bytes of one unit in which peaks are given.
        unit_name: what that unit is called, in the plural.

    Returns:
        A sentence in Markdown. Without a GPU it is always the same one.

    Raises:
        ValueError: unit is not a number above 0.

    Source: PyTorch's ``torch.cuda.max_memory_allocated``.

    >>> layer = nn.Linear(8, 8)
    >>> print(gpu_peaks(layer, {"linear": layer}, torch.ones(4, 8)))  # doctest: +SKIP
    There is no CUDA GPU on the machine that ran this, so these are a CPU's figures. ...
    """
    _check.amount("unit", unit, positive=True)
    if not torch.cuda.is_available():
        return (
            "There is no CUDA GPU on the machine that ran this, so these are a CPU's figures. "
            "Where there is one, this line gives the peaks by `torch.cuda.max_memory_allocated` as well."
        )
    peaks = peaks_on("cuda", model, runs, inputs)
    shown = ", ".join(f"{name} {peak / unit:.2f}" for name, peak in peaks.items())
    return (
        f"On the GPU of the machine that ran this, a {torch.cuda.get_device_name()}, "
        f"`torch.cuda.max_memory_allocated` rises in one step by, in {unit_name}: {shown}."
    )


def peaks_on(
    device: str, model: nn.Module, runs: Mapping[str, Callable[[Tensor], Tensor]], inputs: Tensor
) -> dict[str, int]:
    """Return the peak of one step of each run, in bytes, with model and inputs on a device.

    Args:
        device: "cpu" or a CUDA device.
        model: holds every parameter that the runs use; it is moved there, and back to the inputs' device.
        runs: by name, what the step's forward does with the inputs; each returns one tensor.
        inputs: the batch.

    Returns:
        Bytes, as `peak_bytes` counts them, by name.

    >>> layer = nn.Linear(8, 8)
    >>> peaks_on("cpu", layer, {"linear": layer}, torch.ones(4, 8))
    {'linear': 680}
    """

    def measure(run: Callable[[Tensor], Tensor]) -> int:
        def step() -> None:
            output = run(there.clone())
            output.mean().backward()  # type: ignore[no-untyped-call]

        step()  # once to warm up: a GPU's libraries allocate their workspaces then
        return peak_bytes(step, device=device)

    model.to(device)
    there = inputs.to(device)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    try:
        return {name: measure(run) for name, run in runs.items()}
    finally:
        model.to(inputs.device)
