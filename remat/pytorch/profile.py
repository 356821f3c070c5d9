"""Measure a list of modules as a chain: what the planners need to know of each stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import torch
from torch import Tensor, nn

from remat import _check
from remat.chain import Chain
from remat.chain import Stage as Description
from remat.pytorch.again import buffers_of
from remat.pytorch.phases import phases
from remat.pytorch.tape import (
    Stage,
    Tape,
    checked_stages,
    name_of,
    needs_gradient,
    run_forward,
    run_loss,
    run_taping,
    zero_gradients,
)


def profile(
    stages: Sequence[Stage],
    x: Tensor,
    loss: Callable[[Tensor], Tensor] | None = None,
    *,
    repeats: int = 5,
) -> Chain:
    """Measure what each stage saves, needs for a while and takes, as a chain for the planners.

    Memory is what PyTorch's allocator hands out, in bytes: ``out`` the storage of the output, ``saved`` what
    is alive after a taping forward besides it, the scratches what each forward and the backward need beyond
    what they start with and leave. Parameters, buffers and gradients of parameters do not count: gradients
    exist while a backward is measured, as they do in all steps but a first one. The stages are run on x, each
    on the output of the one before; random state, buffers and gradients are left as they were.

    Args:
        stages: modules, or functions, of one tensor that return one tensor, in the order of forward.
        x: the input of the first stage.
        loss: a function of the last stage's output that returns one number; what it needs for a while, its
            backward included, becomes the chain's ``scratch_loss``. Nothing, if left out.
        repeats: how often forward and backward are timed; stages take turns, and medians count.

    Returns:
        A chain with needs="tape", one stage a module, in bytes and seconds.

    Raises:
        ValueError: repeats is not a positive whole number, or a stage fails on what the one before it
            returns, returns no tensor, or changes its input in place.

    >>> from remat.pytorch import mlp
    >>> chain = profile(mlp(3, 64), torch.ones(32, 64), repeats=1)
    >>> [(stage.name, stage.out, stage.saved) for stage in chain.stages][:2]
    [('Linear+GELU', 8192, 8192), ('Linear+GELU', 8192, 8192)]
    """
    stages, repeats = checked_stages(stages), _check.count("repeats", repeats)
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be a tensor, got {type(x).__name__}")
    needs = needs_gradient(stages, x)
    with _untouched(stages, x.device):
        inputs = [x.detach().requires_grad_(x.requires_grad)]
        if x.requires_grad:
            inputs[0].grad = torch.zeros_like(x)
        for i, stage in enumerate(stages, start=1):
            inputs.append(run_forward(stage, inputs[-1], i))
        timed = list(zip(*(_times(stages, inputs, needs) for _ in range(repeats)), strict=True))
        found = []
        for i, stage in enumerate(stages, start=1):
            forward_s, backward_s = (median(times) for times in zip(*timed[i - 1], strict=True))
            out, saved, forward, taping, backward = _memory(stage, inputs[i - 1], inputs[i], needs, i)
            found.append(
                Description(
                    out=out,
                    saved=saved,
                    scratch_forward=forward,
                    scratch_taping=taping,
                    scratch_backward=backward,
                    forward_s=forward_s,
                    backward_s=backward_s,
                    name=name_of(stage),
                )
            )
        scratch_loss = 0 if loss is None else _loss_memory(loss, inputs[-1])
    return Chain(tuple(found), input=x.untyped_storage().nbytes(), needs="tape", scratch_loss=scratch_loss)


def _memory(
    stage: Stage, x: Tensor, y: Tensor, needs: Sequence[bool], i: int
) -> tuple[int, int, int, int, int]:
    """Return the output's bytes, what a tape holds besides, and the three scratches."""
    out = y.untyped_storage().nbytes()
    view = y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    made = 0 if view else out  # the bytes of a view of its input are there already
    held: list[Tensor | Tape] = []
    gradient = torch.ones_like(y)

    def plain() -> None:
        held.append(run_forward(stage, x, i))

    def taping() -> None:
        held.extend(run_taping(stage, x, i, track=needs[i - 1]))

    def backward() -> None:
        tape = held[1]
        assert isinstance(tape, Tape)
        handed_on = tape.backward(gradient)  # counts from its birth, like all that backward makes
        if handed_on is not None:
            held.append(handed_on)

    one = phases([plain, held.clear], device=x.device)[0]
    taped, back, _ = phases([taping, backward, held.clear], device=x.device)
    saved = max(0, taped.after - made)
    return out, saved, max(0, one.peak - made), max(0, taped.peak - taped.after), back.peak - taped.after


def _loss_memory(loss: Callable[[Tensor], Tensor], y: Tensor) -> int:
    """Return the bytes that a loss and the gradient it makes need."""
    held: list[Tensor] = []

    def step() -> None:
        value, tape = run_loss(loss, y)
        gradient = tape.backward(torch.ones_like(value))
        held.extend([value] if gradient is None else [value, gradient])

    return phases([step, held.clear], device=y.device)[0].peak


def _times(
    stages: Sequence[Stage], inputs: Sequence[Tensor], needs: Sequence[bool]
) -> list[tuple[float, float]]:
    found = []
    for i, stage in enumerate(stages, start=1):
        x, gradient = inputs[i - 1], torch.ones_like(inputs[i])
        start = _now(x.device)
        _, tape = run_taping(stage, x, i, track=needs[i - 1])
        middle = _now(x.device)
        tape.backward(gradient)
        found.append((middle - start, _now(x.device) - middle))
    return found


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@contextmanager
def _untouched(stages: Sequence[Stage], device: torch.device) -> Iterator[None]:
    """Give each parameter a gradient to add to, and put back afterwards what running the stages changes."""
    parts = [stage for stage in stages if isinstance(stage, nn.Module)]
    buffers = [buffer for part in parts for buffer in buffers_of(part)]
    try:
        with (
            zero_gradients(stages),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        ):
            yield
    finally:
        for buffer in buffers:
            buffer.put_back()
