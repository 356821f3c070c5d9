"""Probes of which derivatives can be asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from remat.pytorch.checkpointing.trial import Checkpoint, Gradients, leaf, outcome


def _ordinary(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
    x = leaf(1, 2)
    return checkpoint(lambda x: x.sin().cos(), x).sum(), [x]


def backward(checkpoint: Checkpoint) -> str:
    """``loss.backward()``."""
    return outcome(_ordinary, checkpoint)


def autograd_grad(checkpoint: Checkpoint) -> str:
    """``torch.autograd.grad(loss, leaves)``."""
    return outcome(_ordinary, checkpoint, differentiate=torch.autograd.grad)


def backward_inputs(checkpoint: Checkpoint) -> str:
    """``loss.backward(inputs=leaves)``."""

    def differentiate(loss: Tensor, leaves: Sequence[Tensor]) -> Gradients:
        torch.autograd.backward(loss, inputs=list(leaves))
        return [each.grad for each in leaves]

    return outcome(_ordinary, checkpoint, differentiate=differentiate)


def gradient_of_gradient(checkpoint: Checkpoint) -> str:
    """The gradient of the squared gradient that ``backward(create_graph=True)`` left behind.

    The loss has a term outside the region too, as losses do.
    """

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x = leaf(1, 2)
        return checkpoint(lambda x: x.sin().cos(), x).sum() + x.pow(4).sum(), [x]

    def differentiate(loss: Tensor, leaves: Sequence[Tensor]) -> Gradients:
        torch.autograd.backward(loss, create_graph=True)
        penalty = torch.stack([each.grad.square().sum() for each in leaves if each.grad is not None]).sum()
        for each in leaves:
            each.grad = None  # a gradient with a graph holds its own leaf
        return torch.autograd.grad(penalty, leaves)

    return outcome(attempt, checkpoint, differentiate=differentiate)
