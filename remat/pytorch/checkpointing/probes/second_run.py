"""Probes of a second run that differs from the first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from remat.pytorch.checkpointing.trial import Checkpoint, leaf, outcome


def _other_shape(checkpoint: Checkpoint, **options: Any) -> str:
    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x, lengths = leaf(1, 2, 3, 4), iter([4, 1])
        return checkpoint(lambda x: x[: next(lengths)].square().sum(), x, **options), [x]

    return outcome(attempt, checkpoint)


def other_shape(checkpoint: Checkpoint) -> str:
    """The recompute works on one element instead of four; ``determinism_check="default"``."""
    return _other_shape(checkpoint, determinism_check="default")


def other_shape_unchecked(checkpoint: Checkpoint) -> str:
    """The same, ``determinism_check="none"``."""
    return _other_shape(checkpoint, determinism_check="none")


def other_values(checkpoint: Checkpoint) -> str:
    """The recompute multiplies by a counter that has moved on: the same shapes, other values."""

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x, counter = leaf(1, 2), iter([1, 2])
        return checkpoint(lambda x: (x * next(counter)).sin(), x).sum(), [x]

    return outcome(attempt, checkpoint)


def changed_argument(checkpoint: Checkpoint) -> str:
    """An argument is changed in place between forward and backward; a plain run would not mind."""

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x, scale = leaf(1, 2), torch.tensor([3.0, 4.0])
        loss = checkpoint(lambda x, scale: x.exp() * scale.sin(), x, scale).sum()
        scale.mul_(2)
        return loss, [x]

    return outcome(attempt, checkpoint)


def changed_in_list(checkpoint: Checkpoint) -> str:
    """The same, of an argument in a list."""

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x, scale = leaf(1, 2), torch.tensor([3.0, 4.0])
        loss = checkpoint(lambda x, rest: x.exp() * rest[0].sin(), x, [scale]).sum()
        scale.mul_(2)
        return loss, [x]

    return outcome(attempt, checkpoint)


def changes_argument(checkpoint: Checkpoint) -> str:
    """The region itself changes an argument in place: the recompute would change it again."""

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x, scale = leaf(1, 2), torch.tensor([3.0, 4.0])
        return checkpoint(lambda x, scale: x * scale.mul_(2), x, scale).sum(), [x]

    return outcome(attempt, checkpoint)
