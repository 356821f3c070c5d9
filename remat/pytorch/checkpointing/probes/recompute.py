"""Probes of what is recorded in forward, and what runs again."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from remat.pytorch.checkpointing.trial import Checkpoint, Listed, leaf, outcome


def records_graph(checkpoint: Checkpoint) -> str:
    """Whether an operation inside the region leaves a node in autograd's graph."""
    inside: list[Tensor] = []

    def region(x: Tensor) -> Tensor:
        inside.append(x.sin())
        return inside[-1].cos()

    y = checkpoint(region, leaf(1, 2))
    answer = "no" if inside[0].grad_fn is None else "yes"
    return f"{answer}; the result's node is {y.grad_fn.name() if y.grad_fn else 'missing'}"


def _two_products(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    # The last product saves its inputs, not its result: nothing in backward asks for that product.
    return (x @ v).tanh() @ w


def _run_again(checkpoint: Checkpoint, **options: Any) -> str:
    region = Listed(_two_products)
    matrices = [torch.eye(2, requires_grad=True) for _ in range(3)]
    checkpoint(region, *matrices, **options).sum().backward()
    return region.again


def runs_again(checkpoint: Checkpoint) -> str:
    """How many of a region's operations run a second time."""
    return _run_again(checkpoint)


def runs_again_without_early_stop(checkpoint: Checkpoint) -> str:
    """The same, with early stop turned off by ``set_checkpoint_early_stop``."""
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        return _run_again(checkpoint)


def runs_again_with_early_stop_false(checkpoint: Checkpoint) -> str:
    """The same, with the argument ``early_stop=False``."""
    if "early_stop" not in signature(torch.utils.checkpoint.checkpoint).parameters:
        return "no such argument in this version"
    return _run_again(checkpoint, early_stop=False)


def runs_again_for_one_output(checkpoint: Checkpoint) -> str:
    """The same, for a region of two independent outputs of which only the first reaches the loss."""
    alone = Listed(lambda x: x.sin().cos())
    checkpoint(alone, leaf(1, 2)).sum().backward()
    both = Listed(lambda x: (x.sin().cos(), x.exp().tanh().sin()))
    first, second = checkpoint(both, leaf(1, 2))
    first.sum().backward()
    del second  # alive until here, as what a model returns is
    return f"{both.again}; the first alone: {alone.again}"


def runs_again_per_backward(checkpoint: Checkpoint) -> str:
    """The same, for two backward passes over one retained graph."""
    region = Listed(_two_products)
    loss = checkpoint(region, *[torch.eye(2, requires_grad=True) for _ in range(3)]).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return region.again


def nested(checkpoint: Checkpoint) -> str:
    """How often a region starts that is checkpointed inside another, and with which gradients."""
    regions: list[Listed] = []

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x, inner = leaf(1, 2), Listed(torch.sin)
        regions.append(inner)
        return checkpoint(lambda x: checkpoint(inner, x).cos(), x).sum(), [x]

    verdict = outcome(attempt, checkpoint)
    return f"innermost starts {len(regions[-1].runs)} times, {verdict}"


def batches_counted(checkpoint: Checkpoint) -> str:
    """How many batches a BatchNorm inside the region counts in one step."""
    norm = nn.BatchNorm1d(2)
    checkpoint(lambda x: norm(x).tanh(), torch.eye(2, requires_grad=True)).sum().backward()
    assert norm.num_batches_tracked is not None
    return f"{int(norm.num_batches_tracked)} for one step"
