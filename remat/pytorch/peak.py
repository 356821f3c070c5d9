"""Measure the peak of the memory that a training step allocates."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch._C._profiler import _ExtraFields_Allocation


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    # Torch 2.13's profiler prints two lines on stderr per use, unless this is set when it first starts.
    name = "KINETO_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "99"
    try:
        yield
    finally:
        del os.environ[name]


def live_bytes(step: Callable[[], object]) -> list[int]:
    """Run step once and return how many of the bytes it allocated are alive, event by event.

    Every request to PyTorch's CPU allocator counts, also the temporary results inside an operation, in the
    order in which the profiler saw them. What a math library takes from the system by itself does not.

    Args:
        step: a function without arguments; it runs once, on the CPU.

    Returns:
        Bytes, one entry per event, starting from 0 before the first one.

    >>> live_bytes(lambda: torch.ones(10).exp())
    [0, 40, 80, 40, 0]
    """
    with _quiet_kineto(), torch.autograd.profiler.profile(use_kineto=True, profile_memory=True) as profiler:
        result = step()
        del result  # what step returns is released inside, like everything else it leaves unreferenced
    live, history = 0, [0]
    sizes: dict[int, int] = {}  # by address: a release of what lived before the step is not the step's
    for _, address, change in sorted(_allocations(profiler)):
        if change >= 0:
            sizes[address] = change
        elif sizes.pop(address, None) is None:
            continue
        live += change
        history.append(live)
    return history


def _allocations(profiler: torch.autograd.profiler.profile) -> Iterator[tuple[int, int, int]]:
    """When, at which address, and how many bytes (negative for a release), in no order."""
    assert profiler.kineto_results is not None
    pending = list(profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        what = event.extra_fields
        if isinstance(what, _ExtraFields_Allocation) and what.device.type == "cpu":
            yield event.start_time_ns, what.ptr, what.alloc_size


def peak_bytes(step: Callable[[], object], *, device: str | torch.device = "cpu") -> int:
    """Run step once and return the peak, in bytes, of the memory it allocated and had not yet released.

    It includes activations, gradients and temporary results, each from the moment it is allocated until it is
    released. It leaves out what lived before the step (parameters, the batch, an optimizer's state): to leave
    out the parameters' gradients too, let them exist beforehand (``parameter.grad = torch.zeros_like(...)``),
    for then backward adds to them in place.

    On a CPU the profiler's allocation events are added up (see `live_bytes`); memory that lived before and is
    released by the step changes nothing. On CUDA the caching allocator's own statistics give the peak above
    what was allocated at the start, so there such a release does lower the result.

    Args:
        step: a function without arguments; it runs once.
        device: where its tensors live, "cpu" or a CUDA device.

    Returns:
        Bytes.

    Raises:
        ValueError: device is neither the CPU nor a CUDA device.

    >>> peak_bytes(lambda: torch.ones(10).exp())
    80
    """
    kind = str(device).split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'cpu' or a CUDA device, got {str(device)!r}")
    if kind == "cpu":
        return max(live_bytes(step))
    where = torch.device(device)
    torch.cuda.synchronize(where)
    torch.cuda.reset_peak_memory_stats(where)
    before = torch.cuda.memory_allocated(where)
    step()
    torch.cuda.synchronize(where)
    return torch.cuda.max_memory_allocated(where) - before
