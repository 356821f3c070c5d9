"""One stage run on PyTorch, and the tape that its forward leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Stage = Callable[[Tensor], Tensor]


def name_of(stage: Stage) -> str:
    """Return what a table calls a stage: its class, or those of its parts.

    >>> name_of(nn.Sequential(nn.Linear(2, 2), nn.GELU()))
    'Linear+GELU'
    """
    if isinstance(stage, nn.Sequential) and 0 < len(stage) <= 4:
        return "+".join(type(part).__name__ for part in stage)
    if isinstance(stage, nn.Module):
        return type(stage).__name__
    return getattr(stage, "__name__", type(stage).__name__)


def checked_stages(stages: object) -> list[Stage]:
    """Check that there are stages and that each can be called.

    Raises:
        ValueError: there is none, or one of them is not callable.
    """
    listed = list(stages) if isinstance(stages, Sequence | nn.Sequential | nn.ModuleList) else []
    if not listed:
        raise ValueError(f"stages must be a list of at least one module, got {stages!r}")
    for i, stage in enumerate(listed, start=1):
        if not callable(stage):
            raise ValueError(f"stages must be modules or functions of one tensor, got {stage!r} as stage {i}")
    return listed


def needs_gradient(stages: Sequence[Stage], x: Tensor) -> list[bool]:
    """Tell for x and for each stage's output whether plain training would track it.

    What a function that is not a module reads cannot be seen, so its output counts as tracked.
    """
    needs = [x.requires_grad]
    for stage in stages:
        own = not isinstance(stage, nn.Module) or any(p.requires_grad for p in stage.parameters())
        needs.append(needs[-1] or own)
    return needs


@contextmanager
def zero_gradients(stages: Sequence[Stage]) -> Iterator[None]:
    """Let each parameter of the stages have a gradient of zeros to add to, and its own again afterwards."""
    modules = [stage for stage in stages if isinstance(stage, nn.Module)]
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    gradients = [(parameter, parameter.grad) for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


class _Enter(torch.autograd.Function):
    """The start of a stage's own graph: hands the gradient of its input over instead of passing it on."""

    @staticmethod
    def forward(ctx: Any, tracked: Tensor, x: Tensor, gradients: list[Tensor]) -> Tensor:
        ctx.gradients = gradients
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.gradients.extend(gradients)
        return None, None, None


class _Leave(torch.autograd.Function):
    """The end of a stage's own graph: an empty tensor stands for its output, so that nothing holds that."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, gradients: list[Tensor]) -> Tensor:
        ctx.gradients = gradients
        return y.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *empty: Tensor) -> Any:
        return ctx.gradients.pop(), None


@dataclass
class Tape:
    """The graph that a taping forward left.

    Attributes:
        root: where backward starts, None if nothing in the stage needs a gradient.
        received: where the gradient of the output is put for backward.
        made: where backward leaves the gradient of the input.
    """

    root: Tensor | None
    received: list[Tensor] = field(default_factory=list)
    made: list[Tensor] = field(default_factory=list)

    def backward(self, gradient: Tensor | None) -> Tensor | None:
        """Add to the parameters' gradients and return the input's, None where nothing needs one."""
        if self.root is None or gradient is None:
            return None
        root, self.root = self.root, None
        self.received.append(gradient)
        with torch.autocast(gradient.device.type, enabled=False):
            torch.autograd.backward(root, torch.empty_like(root))
        return self.made.pop() if self.made else None


def run_forward(stage: Stage, x: Tensor, i: int) -> Tensor:
    """Run stage number i without a graph.

    Raises:
        ValueError: it fails on the shape it gets, returns no tensor, or changes its input in place.
    """
    with torch.no_grad():
        return _checked(stage, x.detach(), i)


def run_taping(stage: Stage, x: Tensor, i: int, *, track: bool) -> tuple[Tensor, Tape]:
    """Run stage number i and keep its graph, apart from that of the stage before it.

    Args:
        stage: the stage.
        x: its input. That of stage 1 stays part of the graph it came from.
        i: its number, for messages.
        track: whether the input needs a gradient.

    Returns:
        The output without its graph, and the tape.

    Raises:
        ValueError: as ``run_forward``.
    """
    tape = Tape(None)
    with torch.enable_grad():
        y = _checked(stage, _entered(x, tape) if i > 1 and track else x, i)
        _leave(y, tape)
    return y.detach(), tape


def run_loss(loss: Callable[[Tensor], Tensor], y: Tensor) -> tuple[Tensor, Tape]:
    """Compute a loss with a graph of its own; return it without that, and the tape.

    Raises:
        ValueError: loss is not a function, does not return a tensor of one number, or does not depend on y.
    """
    if not callable(loss):
        raise ValueError(f"loss must be a function of the last stage's output, got {loss!r}")
    if not (y.is_floating_point() or y.is_complex()):
        raise ValueError(f"the last stage must return numbers that have gradients, got {y.dtype}")
    tape = Tape(None)
    with torch.enable_grad():
        value: object = loss(_entered(y, tape))
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise ValueError(f"loss must return one number as a tensor, such as a mean, got {got}")
        if not value.requires_grad:
            raise ValueError("loss must depend on the output it gets by operations that have gradients")
        _leave(value, tape)
    return value.detach(), tape


def _entered(x: Tensor, tape: Tape) -> Tensor:
    tracked = torch.empty(0, requires_grad=True)
    entered: Tensor = _Enter.apply(tracked, x.detach(), tape.made)  # type: ignore[no-untyped-call]
    return entered


def _leave(y: Tensor, tape: Tape) -> None:
    if y.requires_grad:
        tape.root = _Leave.apply(y, tape.received)  # type: ignore[no-untyped-call]


def _checked(stage: Stage, x: Tensor, i: int) -> Tensor:
    version = x._version
    if torch.is_autocast_enabled(x.device.type):
        torch.clear_autocast_cache()  # a weight's copy made without a graph must not serve a taping forward
    try:
        y: object = stage(x)
    except Exception as error:
        where = f"stage {i} ({name_of(stage)}) on an input of shape {list(x.shape)}"
        if type(error) is RuntimeError and "modified inplace" in str(error):
            raise ValueError(_in_place(stage, i)) from error
        if type(error) is RuntimeError:
            raise ValueError(f"{where} failed: {error}") from error
        error.add_note(f"This was {where}.")
        raise
    if not isinstance(y, Tensor):
        raise ValueError(f"stage {i} ({name_of(stage)}) must return one tensor, got {type(y).__name__}")
    if x._version != version:
        raise ValueError(_in_place(stage, i))
    if type(y) not in (Tensor, nn.Parameter) or y.layout != torch.strided:
        raise ValueError(f"stage {i} ({name_of(stage)}) must return a plain dense tensor, got {type(y)}")
    return y.resolve_conj().resolve_neg()


def _in_place(stage: Stage, i: int) -> str:
    return (
        f"stage {i} ({name_of(stage)}) changes its input in place, which is the output of the stage before "
        "that a replay may need: use inplace=False, or join the two into one stage"
    )
