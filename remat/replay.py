"""The judge: runs a plan action by action and counts its memory, its work and its time.

It refuses a plan that uses what is not there. Every number that this book claims for a plan comes from here.

Sums are exact (whole numbers, or fractions inside), so a peak does not depend on the order of additions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral

from remat.chain import Action, Backward, Chain, Drop, Fetch, Forward, Offload, Output, Tape

Exact = int | Fraction


class ReplayError(ValueError):
    """A plan uses what is not there; the message names the action and says what is missing."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes live at one moment, by what they are there for."""

    kept: float  # left by the first forward of a stage: input, checkpoints, first tapes
    recomputed: float  # made again by a later forward
    gradient: float  # the gradient on its way down
    scratch: float  # what the running action needs for a while

    @property
    def total(self) -> float:
        """All of it, bytes."""
        return self.kept + self.recomputed + self.gradient + self.scratch


@dataclass(frozen=True, slots=True)
class Event:
    """One action on the clock: when it ran, what was live at its fullest and after it."""

    action: Action
    start_s: float
    end_s: float
    during: Memory
    after: Memory


@dataclass(frozen=True)
class Replay:
    """What a plan costs, as counted.

    Attributes:
        peak: most bytes live at once, the chain's input and the gradient included.
        work: seconds of forwards beyond the first of each stage (what recomputing costs).
        recomputed: how many forwards those are.
        forwards: forwards in all.
        time_s: seconds of the whole step, forwards and backwards.
        events: every action in order, with the memory during and after it.
    """

    peak: float
    work: float
    recomputed: int
    forwards: int
    time_s: float
    events: tuple[Event, ...]

    def __str__(self) -> str:
        return f"peak {self.peak:g}, {self.recomputed} stages recomputed at a cost of {self.work:g}"


def _exact(value: float) -> Exact:
    return value if isinstance(value, int) else Fraction(value)


def _plain(value: Exact) -> float:
    return value if isinstance(value, int) else float(value)


class _Machine:
    """The state of a replay. Internal: ``replay`` is the way in."""

    def __init__(self, chain: Chain) -> None:
        n = len(chain)
        self.chain, self.taping = chain, chain.needs == "tape"
        self.out: list[Exact] = [_exact(chain.input), *(_exact(stage.out) for stage in chain.stages)]
        self.saved: list[Exact] = [0, *(_exact(stage.saved) for stage in chain.stages)]
        self.live: dict[Output | Tape, bool] = {Output(0): False}  # -> whether it was recomputed
        self.kept: Exact = self.out[0]
        self.recomputed: Exact = 0
        self.gradient: Exact = 0
        self.running: Output | None = None  # the output that lasts only until the next forward
        self.seen = [False] * (n + 1)
        self.next_backward = n
        self.clock: Exact = 0
        self.work: Exact = 0
        self.again = self.forwards = 0
        self.peak: Exact = self.kept
        self.events: list[Event] = []

    def size(self, what: Output | Tape) -> Exact:
        return self.out[what.stage] if isinstance(what, Output) else self.saved[what.stage]

    def add(self, what: Output | Tape, recomputed: bool) -> None:
        self.live[what] = recomputed
        if recomputed:
            self.recomputed += self.size(what)
        else:
            self.kept += self.size(what)

    def free(self, what: Output | Tape) -> None:
        if what == self.running:
            self.running = None
        if self.live.pop(what):
            self.recomputed -= self.size(what)
        else:
            self.kept -= self.size(what)

    def holder(self, what: Output | Tape) -> Tape | None:
        """The live tape that holds an output: its own stage's, or that of the stage that read it."""
        if isinstance(what, Output):
            for tape in (Tape(what.stage), Tape(what.stage + 1)):
                if tape in self.live:
                    return tape
        return None

    def memory(self, scratch: Exact = 0) -> Memory:
        total = self.kept + self.recomputed + self.gradient + scratch
        self.peak = max(self.peak, total)
        return Memory(_plain(self.kept), _plain(self.recomputed), _plain(self.gradient), _plain(scratch))

    def forward(self, action: Forward) -> tuple[Exact, Memory]:
        i = self.stage(action.stage)
        if action.keep == "tape" and not self.taping:
            raise ReplayError('keep="tape" needs a chain with needs="tape"; a chain of values has no tapes')
        if action.keep not in ("nothing", "output", "tape"):
            raise ReplayError(f'keep must be "nothing", "output" or "tape", got {action.keep!r}')
        if i > self.next_backward:
            raise ReplayError(f"the backward of stage {i} has run, so nothing needs its output any more")
        if Output(i - 1) not in self.live:
            raise ReplayError(f"it reads output {i - 1}, which is not there")
        if Output(i) in self.live:
            raise ReplayError(f"it makes output {i}, which is there already: drop that first")
        stage, again, finished = self.chain.stages[i - 1], self.seen[i], self.running
        self.add(Output(i), again)
        if action.keep == "tape":
            self.add(Tape(i), again)
        during = self.memory(_exact(stage.scratch_forward))
        if finished is not None and self.holder(finished) is None:
            self.free(finished)
        self.running = Output(i) if action.keep == "nothing" else None
        if i == len(self.chain) and not again:
            self.gradient = self.out[i]  # the loss follows at once, and with it the first gradient
        self.seen[i] = True
        self.forwards += 1
        if again:
            self.again += 1
            self.work += _exact(stage.forward_s)
        return _exact(stage.forward_s), during

    def backward(self, action: Backward) -> tuple[Exact, Memory]:
        i = self.stage(action.stage)
        if i != self.next_backward:
            raise ReplayError(f"the next backward is that of stage {self.next_backward}")
        if not self.seen[len(self.chain)]:
            raise ReplayError(f"there is no gradient before stage {len(self.chain)} has run forward")
        needed: list[Output | Tape] = [Output(i - 1), Output(i)]
        if self.taping:
            needed.append(Tape(i))
        if missing := [what for what in needed if what not in self.live]:
            raise ReplayError(f"it reads {missing[0]}, which is not there")
        stage = self.chain.stages[i - 1]
        assert stage.backward_s is not None
        during = self.memory(_exact(stage.scratch_backward))
        for what in needed[1:]:
            self.free(what)
        self.gradient = self.out[i - 1] if i > 1 else 0
        self.next_backward -= 1
        return _exact(stage.backward_s), during

    def drop(self, action: Drop) -> tuple[Exact, Memory]:
        if not isinstance(action.what, Output | Tape):
            raise ReplayError(f"what must be an Output or a Tape, got {action.what!r}")
        if action.what not in self.live:
            raise ReplayError(f"{action.what} is not there")
        if tape := self.holder(action.what):
            raise ReplayError(f"{tape} still holds {action.what}")
        during = self.memory()
        self.free(action.what)
        return 0, during

    def refuse(self, action: Offload | Fetch) -> tuple[Exact, Memory]:
        raise ReplayError("there is no link to the host in this replay")

    def stage(self, stage: int) -> int:
        if isinstance(stage, bool) or not isinstance(stage, Integral) or not 1 <= stage <= len(self.chain):
            raise ReplayError(f"stage must be from 1 to {len(self.chain)}, got {stage!r}")
        return int(stage)


def replay(chain: Chain, actions: Iterable[Action]) -> Replay:
    """Run a plan for one training step on paper and count what it costs.

    The loss follows the first forward of the last stage; from then on one gradient is alive, that of the
    output now being differentiated. A backward frees its stage's output and tape.

    Args:
        chain: the description.
        actions: the plan, an iterable of actions (a ``Schedule`` is one).

    Returns:
        Peak in bytes, work and time in seconds, and the events.

    Raises:
        ReplayError: (a ValueError) at the first action that uses what is not there, naming it; or if the
            plan ends before every backward has run.

    >>> from remat.chain import chain_of
    >>> plan = [Forward(1), Forward(2, "output"), Forward(1, "output"), Backward(2), Backward(1)]
    >>> print(replay(chain_of([1, 1]), plan))
    peak 4, 1 stages recomputed at a cost of 1
    >>> replay(chain_of([1, 1]), [Backward(2)])
    Traceback (most recent call last):
        ...
    remat.replay.ReplayError: action 0, Backward(stage=2): there is no gradient before stage 2 has run forward
    """
    if not isinstance(actions, Iterable):
        raise ReplayError(f"actions must be an iterable of actions, got {actions!r}")
    machine = _Machine(chain)
    steps: dict[type, Callable[..., tuple[Exact, Memory]]] = {
        Forward: machine.forward,
        Backward: machine.backward,
        Drop: machine.drop,
        Offload: machine.refuse,
        Fetch: machine.refuse,
    }
    for index, action in enumerate(actions):
        step = steps.get(type(action))
        if step is None:
            raise ReplayError(f"action {index} must be an Action, got {action!r}")
        try:
            seconds, during = step(action)
        except ReplayError as error:
            raise ReplayError(f"action {index}, {action}: {error}") from None
        start = machine.clock
        machine.clock += seconds
        machine.events.append(Event(action, _plain(start), _plain(machine.clock), during, machine.memory()))
    if machine.next_backward:
        raise ReplayError(f"the plan ends before the backward of stage {machine.next_backward} has run")
    return Replay(
        peak=_plain(machine.peak),
        work=_plain(machine.work),
        recomputed=machine.again,
        forwards=machine.forwards,
        time_s=_plain(machine.clock),
        events=tuple(machine.events),
    )
