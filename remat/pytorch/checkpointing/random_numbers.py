"""What becomes of random numbers when a region runs twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import dropout

from remat import _check
from remat.pytorch.checkpointing.trial import Checkpoint, leaf, non_reentrant
from remat.pytorch.peak import peak_bytes

Region: TypeAlias = Callable[[Tensor], Tensor]


def global_generator(seed: int) -> Region:
    """Return a dropout of one half that draws from PyTorch's global generator (whoever calls seeds it)."""
    return lambda x: dropout(x, 0.5)


def own_generator(seed: int) -> Region:
    """Return the same from a ``torch.Generator`` of the region's own."""
    generator = torch.Generator().manual_seed(seed)
    return lambda x: _half(x, torch.rand(x.shape, generator=generator))


def own_generator_restored(seed: int) -> Region:
    """Return the same, but each run starts by putting the generator into the state it was made with."""
    generator = torch.Generator().manual_seed(seed)
    state = generator.get_state()

    def region(x: Tensor) -> Tensor:
        generator.set_state(state)
        return _half(x, torch.rand(x.shape, generator=generator))

    return region


def numpy_generator(seed: int) -> Region:
    """Return the same from a NumPy generator."""
    generator = np.random.default_rng(seed)
    return lambda x: _half(x, torch.from_numpy(generator.random(x.shape)))


def python_generator(seed: int) -> Region:
    """Return the same from Python's ``random``."""
    generator = random.Random(seed)
    return lambda x: _half(x, torch.tensor([generator.random() for _ in range(x.numel())]))


def counter(seed: int) -> Region:
    """Return a region that multiplies by how often it was called: no chance in it, and state all the same."""
    calls = count(seed + 1)
    return lambda x: x * torch.tensor(float(next(calls)))


def _half(x: Tensor, uniform: Tensor) -> Tensor:
    return x * (uniform < 0.5) * 2


SOURCES: dict[str, Callable[[int], Region]] = {
    "PyTorch's global generator": global_generator,
    "a `torch.Generator` of the region's own": own_generator,
    "… that the region puts back at the start of each run": own_generator_restored,
    "a NumPy generator": numpy_generator,
    "Python's `random`": python_generator,
    "a counter of calls": counter,
}


def wrong_share(
    source: Callable[[int], Region],
    *,
    preserve: bool,
    seed: int = 0,
    entries: int = 10_000,
    checkpoint: Checkpoint = non_reentrant,
    backend: str | Callable[..., Any] | None = None,
) -> float:
    """Checkpoint a region that scales its input elementwise, and return the share of wrong gradient entries.

    The region maps x to c·x with a random c, so the gradient of the sum is c, and at x = 1 so is the result:
    where the two differ, backward used another c than forward. The global random state is left as it was.

    Args:
        source: makes the region from a seed, which seeds PyTorch's global generator too.
        preserve: the flag ``preserve_rng_state``.
        seed: what to draw from.
        entries: how many entries x has.
        checkpoint: the function that runs the region.
        backend: compile the call with this backend of ``torch.compile``.

    Returns:
        Between 0 and 1.

    Raises:
        ValueError: entries is not a positive whole number.

    >>> wrong_share(global_generator, preserve=True), wrong_share(counter, preserve=True)
    (0.0, 1.0)
    """
    region, x = source(seed), leaf(*[1.0] * _check.count("entries", entries))

    def run(x: Tensor) -> Tensor:
        result: Tensor = checkpoint(region, x, preserve_rng_state=preserve)
        return result

    if backend is not None:
        run = torch.compile(run, backend=backend)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        y = run(x)
        torch.autograd.backward(y.sum())
    assert x.grad is not None
    return float((x.grad != y).float().mean())


def state_bytes(regions: int = 8, *, checkpoint: Checkpoint = non_reentrant) -> float:
    """Measure what ``preserve_rng_state`` holds for each region between forward and backward, on the CPU.

    Args:
        regions: how many regions stand in a row.
        checkpoint: the function that runs them.

    Returns:
        Bytes a region: the peak of a forward with the flag minus that of one without, divided.

    Raises:
        ValueError: regions is not a positive whole number.

    >>> state_bytes() == torch.get_rng_state().nbytes
    True
    """
    _check.count("regions", regions)

    def forward(*, preserve: bool) -> Tensor:
        x = leaf(1.0)
        for _ in range(regions):
            x = checkpoint(torch.sin, x, preserve_rng_state=preserve)
        return x

    forward(preserve=True)  # what is allocated once and for all
    kept = peak_bytes(lambda: forward(preserve=True))
    return (kept - peak_bytes(lambda: forward(preserve=False))) / regions
