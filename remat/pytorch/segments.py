"""Checkpoint a list of modules cut into segments of any lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from remat import _check


def mlp(n: int, width: int, *, seed: int = 0) -> list[nn.Module]:
    """Return n stages, each a Linear(width, width) followed by a GELU; the same seed gives the same weights.

    The global random state is left as it was.

    Raises:
        ValueError: n or width is not a positive whole number.

    >>> stages = mlp(3, 8)
    >>> len(stages), [type(part).__name__ for part in stages[0]]
    (3, ['Linear', 'GELU'])
    """
    n, width = _check.count("n", n), _check.count("width", width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(n)]


def checkpoint_segments(
    layers: Sequence[Callable[[Tensor], Tensor]],
    lengths: Sequence[int],
    x: Tensor,
    *,
    keep_last: bool = True,
) -> Tensor:
    """Run layers one after another, checkpointed in consecutive segments of the given lengths.

    Each segment keeps its input and is run again during backward (``torch.utils.checkpoint``, non-reentrant,
    random state restored). The gradients equal those of a plain run bit for bit.

    Args:
        layers: the layers, each a function of the one before's result.
        lengths: how many layers each segment holds, first to last; they sum to ``len(layers)``.
        x: the input of the first layer.
        keep_last: run the last segment plainly, as ``checkpoint_sequential`` does: its backward comes first,
            so what it dropped would have to be made again at once.

    Returns:
        The last layer's result.

    Raises:
        ValueError: a length is not a positive whole number, or they do not sum to the number of layers.

    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", section 4; uneven segments.

    >>> checkpoint_segments(mlp(6, 8), [3, 2, 1], torch.ones(4, 8)).shape
    torch.Size([4, 8])
    """
    for index, length in enumerate(lengths):
        _check.count(f"lengths[{index}]", length)
    if sum(lengths) != len(layers):
        raise ValueError(
            f"lengths must sum to the number of layers, {len(layers)}: {list(lengths)} sums to {sum(lengths)}"
        )
    for end, length in zip(accumulate(lengths), lengths, strict=True):
        segment = _composed(layers[end - length : end])
        plain = keep_last and end == len(layers)
        x = segment(x) if plain else checkpoint(segment, x, use_reentrant=False)
    return x


def _composed(layers: Sequence[Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    return run
