"""Put one training step beside another: peaks on the same terms, and times as ratios."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import torch
from torch import Tensor, nn

from remat import _check
from remat.pytorch.peak import peak_bytes
from remat.pytorch.tape import Stage, zero_gradients


def step_peak(step: Callable[[], object], stages: Sequence[Stage] | nn.Module, x: Tensor) -> int:
    """Measure the peak of a training step on the terms of `remat.replay`: the input counts, weights do not.

    The step runs twice, once to warm up. Gradients of parameters exist while it is measured and are put back
    afterwards.

    Args:
        step: forward, loss and backward; a function without arguments.
        stages: the modules it trains.
        x: its input.

    Returns:
        Bytes.

    >>> layer = nn.Linear(8, 8)
    >>> x = torch.ones(4, 8)
    >>> step_peak(lambda: layer(x).mean().backward(), layer, x)  # input, output, loss, their gradients
    552
    """
    with zero_gradients([stages] if isinstance(stages, nn.Module) else stages):
        step()
        return peak_bytes(step, device=x.device) + x.untyped_storage().nbytes()


def time_ratios(steps: Mapping[str, Callable[[], object]], *, repeats: int = 7) -> dict[str, float]:
    """Time steps in turns and return the median of each against the first one's.

    Args:
        steps: by name, functions without arguments; the first one is the measure of the others.
        repeats: how many rounds.

    Returns:
        Ratios by name; 1 for the first. Each is the median over rounds of the ratio within a round, so that
        a machine that is slow for a while slows both sides.

    Raises:
        ValueError: steps is empty or repeats is not a positive whole number.

    >>> time_ratios({"plain": lambda: None, "other": lambda: None}, repeats=3)["plain"]
    1.0
    """
    _check.count("repeats", repeats)
    if not steps:
        raise ValueError("steps must name at least one step to time")
    for step in steps.values():
        step()
    rounds = []
    for _ in range(repeats):
        seconds = {}
        for name, step in steps.items():
            start = _now()
            step()
            seconds[name] = _now() - start
        rounds.append(seconds)
    first = next(iter(steps))
    return {name: median(seconds[name] / seconds[first] for seconds in rounds) for name in steps}


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
