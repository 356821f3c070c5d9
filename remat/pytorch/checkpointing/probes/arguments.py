"""Probes of what goes into a region and what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from remat.pytorch.checkpointing.trial import Checkpoint, leaf, outcome


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
