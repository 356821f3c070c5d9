"""Run a plan on PyTorch: the action stream that replay counts, carried out on a list of modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor, nn

from remat.chain import Action, Backward, Forward, chain_of
from remat.hardware import Link
from remat.machine import Machine, ReplayError, Thing
from remat.pytorch.step import Step
from remat.pytorch.tape import Stage, checked_stages


@dataclass(frozen=True)
class Run:
    """What happened while a plan ran.

    Attributes:
        loss: the loss, without a graph.
        forwards: how many forwards of stages ran.
        copied_out: bytes copied to the host.
        copied_back: bytes copied back.
        host_peak: the most bytes that the host held at once.
        random_bytes: bytes of random state kept for stages that ran again and had drawn numbers.
    """

    loss: Tensor
    forwards: int
    copied_out: int
    copied_back: int
    host_peak: int
    random_bytes: int


def run(
    schedule: Iterable[Action],
    stages: Sequence[Stage],
    x: Tensor,
    loss: Callable[[Tensor], Tensor],
    *,
    restore_buffers: bool = False,
) -> Run:
    """Run one training step by a plan: forward, loss and backward of a list of modules.

    Each action of the plan is done as it stands, in order: a stage runs when the plan says so, keeps what
    the plan says, and its output or tape is dropped, copied to the host or back when the plan says so.
    Gradients are added to the parameters' ``grad``, bit for bit those of plain training. The random state of
    a stage that runs again is put back (PyTorch's own generators, not others), and weights that several
    stages share are handled. On a CPU, offloading moves bytes into memory that PyTorch did not allocate, and
    the generator's state (5,056 bytes, twice for a moment) is held beyond what replay counts while a stage
    that will run again runs for the first time, to see whether it draws.

    Args:
        schedule: the plan, for a chain with needs="tape" and one stage for each of ``stages``.
        stages: modules, or functions, of one tensor that return one tensor, in the order of forward.
        x: the input of the first stage. If it requires a gradient, it gets one.
        loss: a function of the last stage's output that returns one number.
        restore_buffers: let stages run again although they change their buffers in forward (BatchNorm's
            running statistics); the changes of the first forward remain, once.

    Returns:
        The loss and counts.

    Raises:
        ValueError: the plan is not one for this number of stages, or is one for a chain of values; a stage
            fails on what the one before it returns, returns no tensor, changes its input in place, or
            changes a buffer though it runs again; or the loss is not a scalar tensor.

    Source: the actions of ``remat.chain``; `remat.replay.replay` counts the same plan on paper.

    >>> import torch
    >>> from remat.pytorch import mlp
    >>> from remat.schedules import segmented
    >>> stages, x = mlp(4, 8), torch.ones(2, 8)
    >>> plan = segmented(chain_of([1] * 4, needs="tape"), [2, 2])
    >>> done = run(plan, stages, x, lambda y: y.square().mean())
    >>> done.forwards, stages[0][0].weight.grad.shape
    (8, torch.Size([8, 8]))
    """
    stages = checked_stages(stages)
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be a tensor, got {type(x).__name__}")
    actions = _checked(schedule, len(stages))
    frees = _judged(actions, len(stages))
    step = Step(actions, stages, x, loss, restore_buffers=restore_buffers)
    shared = _shared_parameters(stages)
    earlier = [(parameter, parameter.grad) for parameter in shared if parameter.grad is not None]
    for parameter, _ in earlier:
        parameter.grad = None
    try:
        for action, freed in zip(actions, frees, strict=True):
            step.do(action, freed)
        assert step.value is not None
        return Run(
            loss=step.value,
            forwards=sum(isinstance(action, Forward) for action in actions),
            copied_out=step.host.out,
            copied_back=step.host.back,
            host_peak=step.host.peak,
            random_bytes=step.again.random_bytes,
        )
    finally:
        step.clear()
        # Autograd adds up what a shared weight receives before it adds that to ``grad``; so do we.
        for parameter, gradient in earlier:
            parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)


def _checked(schedule: Iterable[Action], n: int) -> tuple[Action, ...]:
    """Check that a plan is one for n stages and tapes, and return its actions.

    Raises:
        ValueError: it does not; the message says why.
    """
    if not isinstance(schedule, Iterable):
        raise ValueError(f"schedule must be a plan, an iterable of actions, got {schedule!r}")
    actions = tuple(schedule)
    if strange := [action for action in actions if not isinstance(action, Action)]:
        raise ValueError(f"schedule must hold actions only, got {strange[0]!r}")
    try:
        hash(actions)
    except TypeError as error:
        raise ValueError(f"schedule must hold actions on stages given by their number: {error}") from None
    stages = [a.stage for a in actions if isinstance(a, Backward) and isinstance(a.stage, int)]
    if stages and max(stages) != n:
        raise ValueError(f"schedule is a plan for {max(stages)} stages, and there are {n}")
    if stages and not any(isinstance(action, Forward) and action.keep == "tape" for action in actions):
        raise ValueError(
            'schedule is a plan for a chain with needs="values"; PyTorch\'s backward needs the tape of a '
            'taping forward: plan for the same chain with needs="tape"'
        )
    return actions


@lru_cache(maxsize=16)
def _judged(actions: tuple[Action, ...], n: int) -> tuple[tuple[Thing, ...], ...]:
    """Let the machine of the replay go through a plan, and return what each action frees."""
    machine = Machine(chain_of([1] * n, needs="tape"), Link("any link", 1, 1, "only the order matters"))
    frees = []
    for index, action in enumerate(actions):
        try:
            frees.append(machine.step(action).frees)
        except ReplayError as error:
            raise ValueError(f"schedule is refused at action {index}, {action}: {error}") from None
    if machine.next_backward:
        raise ValueError(f"schedule ends before the backward of stage {machine.next_backward} has run")
    return tuple(frees)


def _shared_parameters(stages: Sequence[Stage]) -> list[nn.Parameter]:
    """Parameters that several stages use."""
    found = Counter(
        parameter
        for stage in {id(stage): stage for stage in stages}.values()
        if isinstance(stage, nn.Module)
        for parameter in set(stage.parameters())
    )
    twice = Counter(map(id, stages))
    again = {
        parameter
        for stage in stages
        if twice[id(stage)] > 1 and isinstance(stage, nn.Module)
        for parameter in stage.parameters()
    }
    return list({parameter for parameter, count in found.items() if count > 1} | again)
