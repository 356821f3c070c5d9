"""Probes: each runs one small region under a checkpoint function and reports what happened.

A probe takes the function under trial, called as ``checkpoint(function, *arguments, **options)``, and returns
a few words. None of them knows which function it was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from inspect import signature
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from remat.pytorch.trial import Checkpoint, Gradients, Listed, leaf, outcome

# --- what is recorded, and what runs again --------------------------------------------------------


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
    region = Listed(lambda x: (x.sin().cos(), x.exp().tanh().sin()))
    first, second = checkpoint(region, leaf(1, 2))
    first.sum().backward()
    del second  # it was alive until here, as it is when a model returns it
    return region.again


def runs_again_per_backward(checkpoint: Checkpoint) -> str:
    """The same, for two backward passes over one retained graph."""
    region = Listed(_two_products)
    loss = checkpoint(region, *[torch.eye(2, requires_grad=True) for _ in range(3)]).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return region.again


def nested(checkpoint: Checkpoint) -> str:
    """How often a region runs that is checkpointed inside a checkpointed region, and with which gradients."""
    regions: list[Listed] = []

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x, inner = leaf(1, 2), Listed(torch.sin)
        regions.append(inner)
        return checkpoint(lambda x: checkpoint(inner, x).cos(), x).sum(), [x]

    verdict = outcome(attempt, checkpoint)
    return f"innermost runs {len(regions[-1].runs)} times, {verdict}"


def batches_counted(checkpoint: Checkpoint) -> str:
    """How many batches a BatchNorm inside the region counts in one step."""
    norm = nn.BatchNorm1d(2)
    checkpoint(lambda x: norm(x).tanh(), torch.eye(2, requires_grad=True)).sum().backward()
    assert norm.num_batches_tracked is not None
    return f"{int(norm.num_batches_tracked)} for one step"


# --- which derivatives can be asked for -----------------------------------------------------------


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
        loss.backward(inputs=list(leaves))
        return [each.grad for each in leaves]

    return outcome(_ordinary, checkpoint, differentiate=differentiate)


def gradient_of_gradient(checkpoint: Checkpoint) -> str:
    """Differentiate the squared gradient that ``backward(create_graph=True)`` left, a term outside included."""

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x = leaf(1, 2)
        return checkpoint(lambda x: x.sin().cos(), x).sum() + x.pow(4).sum(), [x]

    def differentiate(loss: Tensor, leaves: Sequence[Tensor]) -> Gradients:
        loss.backward(create_graph=True)
        penalty = torch.stack([each.grad.square().sum() for each in leaves if each.grad is not None]).sum()
        for each in leaves:
            each.grad = None  # a gradient with a graph holds its own leaf
        return torch.autograd.grad(penalty, leaves)

    return outcome(attempt, checkpoint, differentiate=differentiate)


# --- what goes in and what comes out --------------------------------------------------------------


def weights_only(checkpoint: Checkpoint) -> str:
    """Only the region's weight requires a gradient, not its input: a first layer on data."""

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        weight, head = leaf(1, 2), leaf(3, 4)
        y = checkpoint(lambda x: (x * weight).sin(), torch.ones(2))
        return (y * head).sum(), [weight]

    return outcome(attempt, checkpoint)


def list_alone(checkpoint: Checkpoint) -> str:
    """Every tensor comes in a list."""

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x, weight, head = leaf(1, 2), leaf(3, 4), leaf(5, 6)
        y = checkpoint(lambda pair: (pair[0] * pair[1]).sin(), [x, weight])
        return (y * head).sum(), [x, weight]

    return outcome(attempt, checkpoint)


def list_beside(checkpoint: Checkpoint) -> str:
    """A leaf comes in a list, beside a tensor that requires a gradient."""

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x, weight = leaf(1, 2), leaf(3, 4)
        return checkpoint(lambda x, rest: (x * rest[0]).sin(), x, [weight]).sum(), [x, weight]

    return outcome(attempt, checkpoint)


def dict_shared(checkpoint: Checkpoint) -> str:
    """A computed tensor comes in a dict, beside one that requires a gradient, and is used after it too."""

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x, weight = leaf(1, 2), leaf(3, 4)
        state = weight.exp()
        y = checkpoint(lambda x, rest: (x * rest["state"]).sin(), x, {"state": state})
        return y.sum() + state.sum(), [x, weight]

    return outcome(attempt, checkpoint)


def dict_returned(checkpoint: Checkpoint) -> str:
    """The result comes out in a dict."""

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x, head = leaf(1, 2), leaf(3, 4)
        return (checkpoint(lambda x: {"y": x.sin().cos()}, x)["y"] * head).sum(), [x]

    return outcome(attempt, checkpoint)


def other_outputs(checkpoint: Checkpoint) -> str:
    """A number, a text and None come out beside the tensor."""
    passed: list[bool] = []

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x = leaf(1, 2)
        y, *rest = checkpoint(lambda x: (x.sin().cos(), 7, "seven", None), x)
        passed.append(rest == [7, "seven", None])
        return y.sum(), [x]

    verdict = outcome(attempt, checkpoint)
    return verdict if all(passed) else f"{verdict}, other values lost"


def keyword(checkpoint: Checkpoint) -> str:
    """A tensor is passed to the region by keyword."""

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x, weight = leaf(1, 2), leaf(3, 4)
        return checkpoint(lambda x, *, weight: (x * weight).sin(), x, weight=weight).sum(), [x, weight]

    return outcome(attempt, checkpoint)


def contexts(checkpoint: Checkpoint) -> str:
    """``context_fn`` names a context for the forward and one for the recompute."""
    entered: list[str] = []

    @contextmanager
    def note(which: str) -> Iterator[None]:
        entered.append(which)
        yield

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        def context_fn() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return note("forward"), note("recompute")

        x = leaf(1, 2)
        return checkpoint(lambda x: x.sin().cos(), x, context_fn=context_fn).sum(), [x]

    verdict = outcome(attempt, checkpoint)
    return f"{verdict}; contexts entered: {', '.join(entered) or 'none'}"


def detached_inside(checkpoint: Checkpoint) -> str:
    """The region uses a tensor that it detached and one that it made under ``no_grad``."""

    def region(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.exp()
        return x.sin() * x.cos().detach() * scale

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x = leaf(1, 2)
        return checkpoint(region, x).sum(), [x]

    return outcome(attempt, checkpoint)


def detached_beside(checkpoint: Checkpoint) -> str:
    """The region returns a detached tensor beside another; does the caller see that it is detached?"""
    claims: list[bool] = []

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x = leaf(1, 2)
        y, statistic = checkpoint(lambda x: (x.sin(), x.exp().detach()), x)
        claims.append(statistic.requires_grad)
        return y.sum() + statistic.sum(), [x]

    verdict = outcome(attempt, checkpoint)
    if len(claims) < 2:  # the plain run's, and no second: forward raised
        return verdict
    return f"{verdict}; the detached one {'claims to require' if claims[-1] else 'requires no'} gradient"


def detached_only(checkpoint: Checkpoint) -> str:
    """The region returns nothing but a detached tensor."""

    def attempt(checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x = leaf(1, 2)
        return (x * checkpoint(lambda x: x.exp().detach(), x)).sum(), [x]

    return outcome(attempt, checkpoint)


# --- when the second run differs from the first ---------------------------------------------------


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
