"""Checks that measure what is saved for backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from remat.exercises import activations
from remat.exercises.verdict import Verdict, judged, right, wanted, wrong
from remat.pytorch.saved import saved_tensors


class GatedFeedForward(nn.Module):
    """The layer of the first exercises, y = x + (SiLU(x·W₁) ⊙ x·W₂)·W₃, as a PyTorch module.

    Args:
        h: hidden size.
        f: inner size.
    """

    def __init__(self, h: int, f: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(h, f), nn.Linear(h, f), nn.Linear(f, h)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's result for x of [s, b, h]."""
        result: Tensor = x + self.down(F.silu(self.gate(x)) * self.up(x))
        return result


def saved(function: object, *, seed: int = 0) -> Verdict:
    """Check a function that counts what a gated feed-forward saves, and measure the same on PyTorch.

    Args:
        function: of s, b, h and f; returns bytes in 16 bits.
        seed: of the sizes that it is tried on.

    >>> saved(lambda s, b, h, f: ...).kind
    'not solved yet'
    """
    verdict = activations.saved(function, seed=seed)
    if verdict.kind != "right":
        return verdict
    assert callable(function)
    cases = activations.layer_cases(seed)[:3]
    measured = []
    for s, b, h, f in cases:
        layer = GatedFeedForward(h, f)
        with saved_tensors(layer) as record:
            layer(torch.randn(s, b, h))
        measured.append(record.bytes_as())
    counted = [function(*case) for case in cases]
    agree = "the same" if measured == counted else "something else"
    s, b, h, f = cases[0]
    return right(
        f"{verdict.why} PyTorch's hooks count {agree}: at s = {s}, b = {b}, h = {h} and f = {f} the module "
        f"saves {measured[0]:,} bytes, and you say {counted[0]:,}."
    )


WORTH: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(32, 32),
    "gelu": lambda: nn.GELU(),
    "linear, gelu": lambda: nn.Sequential(nn.Linear(32, 32), nn.GELU()),
    "softmax": lambda: nn.Softmax(dim=-1),
    "wide feed-forward": lambda: nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)),
    "dropout": lambda: nn.Dropout(0.1),
}


@cache
def _saves() -> dict[str, tuple[int, int]]:
    """Measure what each module saves plainly and inside a checkpoint, bytes."""
    found = {}
    for name, make in WORTH.items():
        module = make()
        both = []
        for run in (module, partial(checkpoint, module, use_reentrant=False)):
            x = torch.randn(64, 32, requires_grad=True)
            with saved_tensors(module) as record:
                run(x)
            both.append(record.bytes)
        found[name] = (both[0], both[1])
    return found


@judged
def worth(answer: object) -> Verdict:
    """Check for which modules a checkpoint around them saves less than they save by themselves.

    Args:
        answer: a dict from the names of modules to True or False.

    >>> worth(dict.fromkeys(WORTH, ...))
    Not solved yet: put True or False in place of the three dots and run both cells again.
    """
    wanted(answer, "a dict")
    if not isinstance(answer, Mapping):
        wrong(f"a dict from names to True or False is asked for, and this is {answer!r}.", "not a dict")
    for name, (plain, inside) in _saves().items():
        guess = answer.get(name)
        wanted(guess, "True or False")
        if not isinstance(guess, bool):
            wrong(f"{name}: True or False is asked for, and this is {guess!r}.", "not True or False")
        if guess != (inside < plain):
            trap = "wrapped a lone operation" if guess else "forgot what is saved inside"
            wrong(
                f"{name}: it saves {plain:,} bytes by itself and {inside:,} inside a checkpoint, which keeps "
                "its input in any case.",
                trap,
            )
    return right("A checkpoint pays where more is saved inside than its input: around several operations.")
