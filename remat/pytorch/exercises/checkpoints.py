"""Checks of checkpoints: how high they peak, and whether randomness comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

from remat.chain import chain_of
from remat.exercises.verdict import Verdict, called, judged, right, wanted, whole, wrong
from remat.frontier import frontier
from remat.pytorch.peak import peak_bytes
from remat.pytorch.segments import checkpoint_segments, mlp

STAGES, WIDTH, BATCH = 16, 64, 256
UNIT = 4 * WIDTH * BATCH  # bytes of one activation


def _step(run: Callable[[Tensor], Tensor]) -> int:
    """Measure the peak of one step, the first linear layer's input apart."""
    torch.manual_seed(1)
    x = torch.randn(BATCH, WIDTH)

    def step() -> None:
        run(x).mean().backward()  # type: ignore[no-untyped-call]

    return peak_bytes(step)


@cache
def _stages() -> nn.ModuleList:
    stages = nn.ModuleList(mlp(STAGES, WIDTH))
    for parameter in stages.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return stages


def _gradients(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Return the gradients of one step."""
    stages = _stages()
    stages.zero_grad(set_to_none=False)
    torch.manual_seed(1)
    run(torch.randn(BATCH, WIDTH)).mean().backward()  # type: ignore[no-untyped-call]
    return [parameter.grad.clone() for parameter in stages.parameters() if parameter.grad is not None]


@cache
def _sequential_peaks() -> dict[int, int]:
    """Measure checkpoint_sequential for every number of segments it takes here."""
    model = nn.Sequential(*_stages())

    def run(segments: int) -> Callable[[Tensor], Tensor]:
        run: Any = checkpoint_sequential  # it ships without types
        return lambda x: cast(Tensor, run(model, segments, x, use_reentrant=False))

    return {segments: _step(run(segments)) for segments in range(2, STAGES + 1)}


@judged
def segments(lengths: object) -> Verdict:
    """Check lengths of segments: they must peak an activation lower than ``checkpoint_sequential``, measured.

    Args:
        lengths: of the segments of a model of 16 stages, first to last; the last runs plainly.

    >>> segments(...)
    Not solved yet: put lengths of segments in place of the three dots and run both cells again.
    """
    wanted(lengths, "lengths of segments")
    if isinstance(lengths, str) or not isinstance(lengths, Sequence):
        wrong(f"a list of lengths is asked for, and this is {lengths!r}.", "not lengths")
    for length in lengths:
        wanted(length, "lengths of segments")
        if not whole(length, 1, STAGES):
            wrong(f"a length is a whole number from 1, and this is {length!r}.", "not lengths")
    if sum(lengths) != STAGES:
        wrong(f"{list(lengths)} has {sum(lengths)} stages, the model {STAGES}.", "lengths do not add up")
    stages = list(_stages())

    def run(x: Tensor) -> Tensor:
        return checkpoint_segments(stages, lengths, x)

    mine = _step(run)
    best, peak = min(_sequential_peaks().items(), key=lambda item: item[1])
    said = (
        f"It peaks at {mine / UNIT:.1f} activations, measured; checkpoint_sequential with {best} segments, "
        f"its best, at {peak / UNIT:.1f}."
    )
    if mine > peak - UNIT:
        of_values = frontier(chain_of([1] * STAGES)).points[0].lengths
        if len(lengths) == 1:
            trap = "one segment over everything"
        elif list(lengths) == of_values:
            trap = "planned with values"
        elif lengths[-1] > lengths[0]:
            trap = "the long segment came last"
        elif len(set(lengths)) == 1:
            trap = "cut into equal segments"
        else:
            trap = ""
        wrong(
            f"{said} A late segment is replayed, or kept, while all earlier checkpoints are still there; "
            "and a replayed stage holds its tape.",
            trap,
        )
    same = all(map(torch.equal, _gradients(run), _gradients(nn.Sequential(*stages))))
    return right(f"{said} The gradients are {'the same, bit for bit' if same else 'not the same'}.")


@judged
def remember(function: object, *, seed: int = 0) -> Verdict:
    """Check a function that can run another one again with the same random numbers.

    Args:
        function: of a function and its argument x; returns the result, and a function without arguments that
            computes the same result again and leaves the random numbers that follow as they would have been.
        seed: of the random numbers.

    >>> remember(lambda function, x: ...)
    Not solved yet: put a result and a function in place of the three dots and run both cells again.
    """
    x = torch.ones(64)

    def noisy(x: Tensor) -> Tensor:
        return x * (torch.rand_like(x) > 0.5)

    what = "a result and a function"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        plain = [noisy(x), noisy(x)]
        torch.manual_seed(seed)
        runs = []
        for _ in plain:
            pair = called(function, what, noisy, x)
            if not isinstance(pair, Iterable) or isinstance(pair, Tensor) or len(pair := tuple(pair)) != 2:
                wrong(f"{what} are asked for, and this is {type(pair).__name__}.", "not a pair")
            if not isinstance(pair[0], Tensor) or not callable(pair[1]):
                wrong("the first must be the result, the second a function without arguments.", "not a pair")
            runs.append(pair)
        results = [result for result, _ in runs]
        if torch.equal(results[0], results[1]):
            wrong(
                "two calls one after the other give the same mask: seeding afresh makes every dropout of a "
                "model alike.",
                "seeded with a constant",
            )
        if not all(map(torch.equal, results, plain)):
            wrong("the first run itself draws other numbers than without you.", "disturbed the forward")
        torch.rand(5)  # the rest of the forward
        state = torch.get_rng_state()
        for index in (1, 0, 1):
            again = called(runs[index][1], "the result")
            if not isinstance(again, Tensor) or not torch.equal(again, results[index]):
                if isinstance(again, Tensor) and index == 1 and torch.equal(again, _after(noisy, x, seed)):
                    wrong(
                        "the second run goes on where the first one ended: save the state before the first.",
                        "saved the state too late",
                    )
                wrong(
                    "the second run draws another mask, so its gradients belong to another function, and no "
                    "error says so. Put the state of the generator back before it.",
                    "did not restore the state",
                )
        if not torch.equal(torch.get_rng_state(), state):
            wrong(
                "the same mask comes out, but what is drawn afterwards has changed: the next layer's dropout "
                "would repeat old numbers. Put back the state that was there before the second run.",
                "left the generator rewound",
            )
    return right("Same mask, and nobody else notices. This is what preserve_rng_state does in a checkpoint.")


def _after(noisy: Callable[[Tensor], Tensor], x: Tensor, seed: int) -> Tensor:
    """Draw what follows two runs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        noisy(x), noisy(x)
        return noisy(x)
