"""Try a region under a checkpoint function and say, in words derived from the outcome, what happened."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

Checkpoint: TypeAlias = Callable[..., Any]  # called as checkpoint(function, *arguments, **options)
Attempt: TypeAlias = Callable[[Checkpoint], tuple[Tensor, Sequence[Tensor]]]  # gives a loss and its leaves
Gradients: TypeAlias = Sequence[Tensor | None]

reentrant: Checkpoint = partial(checkpoint, use_reentrant=True)
non_reentrant: Checkpoint = partial(checkpoint, use_reentrant=False)

OPTIONS = ("context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")


def plain(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call function without checkpointing it: what a checkpoint has to agree with.

    The options of ``torch.utils.checkpoint.checkpoint`` are dropped; other keywords are the function's.

    >>> plain(max, 1, 2, determinism_check="none")
    2
    """
    return function(*arguments, **{name: value for name, value in options.items() if name not in OPTIONS})


class _Listing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, names: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = names

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.detach.default:  # the checkpoint's own, one for each tensor it takes
            self.names.append(func.overloadpacket.__name__)
        return result


class Listed:
    """A function that lists the ATen operations of each of its runs, also of a run that is cut short.

    Attributes:
        runs: one list of names a run, in order; an operation that was stopped before it ran is not in it.

    >>> twice = Listed(lambda x: x.sin() + x)
    >>> _ = twice(torch.ones(2)), twice(torch.ones(2))
    >>> twice.runs
    [['sin', 'add'], ['sin', 'add']]
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.runs: list[list[str]] = []

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function and list what it runs."""
        names: list[str] = []
        self.runs.append(names)
        with _Listing(names):
            return self.function(*arguments, **keywords)

    @property
    def again(self) -> str:
        """How many of the first run's operations each later run repeated, in words ("2 + 2 of 3 again")."""
        later = " + ".join(str(len(run)) for run in self.runs[1:])
        return f"{later or 0} of {len(self.runs[0])} again"


def leaf(*values: float) -> Tensor:
    """Return a fresh vector of these values that requires a gradient."""
    return torch.tensor(values, dtype=torch.float32, requires_grad=True)


def by_backward(loss: Tensor, leaves: Sequence[Tensor]) -> Gradients:
    """Return the leaves' gradients, made by ``loss.backward()``."""
    torch.autograd.backward(loss)
    return [each.grad for each in leaves]


def compared(expected: Gradients, got: Gradients) -> str:
    """Say how gradients relate to the expected ones, bit for bit.

    >>> compared([torch.ones(2)], [torch.ones(2)]), compared([torch.ones(2)], [None])
    ('right gradients', 'no gradients')
    """
    pairs = list(zip(expected, got, strict=True))
    if all(b is None if a is None else b is not None and torch.equal(a, b) for a, b in pairs):
        return "right gradients"
    if all(b is None for _, b in pairs):
        return "no gradients"
    if any(b is None for a, b in pairs if a is not None):
        return "some gradients missing"
    return "wrong gradients, no error"


def outcome(
    attempt: Attempt,
    checkpoint: Checkpoint,
    *,
    differentiate: Callable[[Tensor, Sequence[Tensor]], Gradients] = by_backward,
) -> str:
    """Make an attempt, compare its gradients with those of a plain run, and say what happened.

    Args:
        attempt: builds fresh leaves, computes a loss from them with the checkpoint function that it is given,
            and returns both. It runs twice, and must start from the same state both times.
        checkpoint: the function under trial.
        differentiate: how gradients are asked for.

    Returns:
        "right gradients", "wrong gradients, no error", "no gradients", "some gradients missing" or
        "SomeError in forward" (or "in backward"); ", with a warning" follows if forward gave one.

    >>> outcome(lambda checkpoint: (checkpoint(torch.sum, x := leaf(1, 2)), [x]), non_reentrant)
    'right gradients'
    """
    where, warned = "forward", ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = differentiate(*attempt(plain))
        caught.clear()
        try:
            loss, leaves = attempt(checkpoint)
            warned = ", with a warning" if caught else ""
            where = "backward"
            verdict = compared(expected, differentiate(loss, leaves))
        except Exception as error:  # whichever it is, its type is the verdict
            verdict = f"{type(error).__name__} in {where}"
    return verdict + warned
