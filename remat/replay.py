"""The judge: runs a plan action by action and counts its memory, its work and its time.

It refuses a plan that uses what is not there. Every number that this book claims for a plan comes from here.

With a link to the host it is also the clock of two streams, one for compute and one for copies, each in
order. A copy starts once all compute issued before it has finished; a compute action waits for what it reads,
and dropping what is being copied, out or back, waits for the copy. What happens at the very same time happens
in the plan's order.

Sums are exact, so a peak does not depend on the order of additions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from remat.chain import Action, Chain, Output
from remat.hardware import Link
from remat.machine import Effect, Machine, Purpose, ReplayError, Stream, Thing

__all__ = ["Event", "Memory", "Moment", "Replay", "ReplayError", "replay"]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes live on the device at one moment, by what they are there for."""

    kept: float  # left by the first forward of a stage: input, checkpoints, first tapes
    recomputed: float  # made again by a later forward
    fetched: float  # back from the host
    gradient: float  # the gradient on its way down
    scratch: float  # what the running action needs for a while

    @property
    def total(self) -> float:
        """All of it, bytes."""
        return self.kept + self.recomputed + self.fetched + self.gradient + self.scratch


@dataclass(frozen=True, slots=True)
class Event:
    """One action on the clock.

    Attributes:
        action: what was done.
        stream: "compute" or "copy".
        start_s: when it started, seconds.
        end_s: when it ended.
        wait_s: how long its stream stood idle before it.
        during: what was live just after its start.
        after: what was live just after its end.
    """

    action: Action
    stream: Stream
    start_s: float
    end_s: float
    wait_s: float
    during: Memory
    after: Memory


@dataclass(frozen=True, slots=True)
class Moment:
    """The memory from one moment to the next, on both sides of the link."""

    time_s: float
    device: float
    host: float


@dataclass(frozen=True)
class Replay:
    """What a plan costs, as counted.

    Attributes:
        peak: most bytes live at once on the device, the chain's input and the gradient included.
        host_peak: most bytes held by the host.
        work: seconds of forwards beyond the first of each stage (what recomputing costs).
        recomputed: how many forwards those are.
        forwards: forwards in all.
        stall_s: seconds that compute waited for copies.
        time_s: seconds of the whole step, waits included. Collectives between GPUs are left out.
        events: every action, with its times and the memory during and after it, in the plan's order.
        moments: the memory over time.
    """

    peak: float
    host_peak: float
    work: float
    recomputed: int
    forwards: int
    stall_s: float
    time_s: float
    events: tuple[Event, ...]
    moments: tuple[Moment, ...]

    def __str__(self) -> str:
        stall = f", {self.stall_s:g} s waiting for copies" if self.stall_s else ""
        return f"peak {self.peak:g}, {self.recomputed} stages recomputed at a cost of {self.work:g}{stall}"


class _Clock:
    """Puts effects on two streams and remembers when memory changes, in the machine's parts."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.free: dict[Stream, int] = {"compute": 0, "copy": 0}
        self.ready: dict[Thing, int] = {Output(0): 0}
        self.copied: dict[Thing, int] = {}  # when the copy out of something ends
        self.purpose: dict[Thing, Purpose] = {Output(0): "kept"}
        self.stall = 0
        self.times: list[tuple[Stream, int, int, int]] = []  # stream, start, end, wait of each action
        # (time, index of the action, 0 start / 1 end / 2 later, changes by purpose, change on the host);
        # the first three tell any two apart, so they are the order of a sort
        self.changes: list[tuple[int, int, int, list[tuple[Purpose, int]], int]] = []

    def put(self, index: int, effect: Effect) -> None:
        stream, size = effect.stream, self.machine.size
        earliest = max([self.free[stream], *(self.ready[thing] for thing in effect.reads)])
        if stream == "copy":
            earliest = max(earliest, self.free["compute"])
        elif effect.waits:
            earliest = max([earliest, *(self.copied.get(thing, 0) for thing in effect.frees)])
        start, end = earliest, earliest + effect.seconds
        wait = start - self.free[stream]
        self.free[stream] = end
        if stream == "compute":
            self.stall += wait
        self.times.append((stream, start, end, wait))

        begin: list[tuple[Purpose, int]] = [(effect.purpose, size(thing)) for thing in effect.makes]
        finish: list[tuple[Purpose, int]] = [("gradient", effect.gradient)] if effect.gradient else []
        if effect.scratch:
            begin.append(("scratch", effect.scratch))
            finish.append(("scratch", -effect.scratch))
        for thing in effect.frees:
            purpose, late = self.purpose.pop(thing), self.copied.pop(thing, 0)
            if late > end:  # memory that is being copied out is not reused before the copy is done
                self.changes.append((late, index, 2, [(purpose, -size(thing))], 0))
            else:
                finish.append((purpose, -size(thing)))
        for thing in effect.makes:
            self.ready[thing], self.purpose[thing] = end, effect.purpose
        if stream == "copy" and not effect.makes:
            self.copied[effect.reads[0]] = end
        self.changes.append((start, index, 0, begin, max(effect.host, 0)))
        self.changes.append((end, index, 1, finish, min(effect.host, 0)))


def replay(chain: Chain, actions: Iterable[Action], *, link: Link | None = None) -> Replay:
    """Run a plan for one training step on paper and count what it costs.

    The loss follows the first forward of the last stage; from then on one gradient is alive, that of the
    output now being differentiated. A backward frees its stage's output and tape.

    Args:
        chain: the description.
        actions: the plan, an iterable of actions (a ``Schedule`` is one).
        link: the link to the host; without one, a plan that offloads is refused.

    Returns:
        Peaks in bytes, work, waits and time in seconds, and the events.

    Raises:
        ReplayError: (a ValueError) at the first action that uses what is not there, naming it; or if the
            plan ends before every backward has run.

    >>> from remat.chain import Backward, Forward, chain_of
    >>> plan = [Forward(1), Forward(2, "output"), Forward(1, "output"), Backward(2), Backward(1)]
    >>> print(replay(chain_of([1, 1]), plan))
    peak 4, 1 stages recomputed at a cost of 1
    >>> replay(chain_of([1, 1]), [Backward(2)])
    Traceback (most recent call last):
        ...
    remat.machine.ReplayError: action 0, Backward(stage=2): there is no gradient before stage 2 has run ...
    """
    if not isinstance(actions, Iterable):
        raise ReplayError(f"actions must be an iterable of actions, got {actions!r}")
    machine = Machine(chain, link)
    clock, done = _Clock(machine), []
    for index, action in enumerate(actions):
        if not isinstance(action, Action):
            raise ReplayError(f"action {index} must be an Action, got {action!r}")
        try:
            clock.put(index, machine.step(action))
        except ReplayError as error:
            raise ReplayError(f"action {index}, {action}: {error}") from None
        done.append(action)
    if machine.next_backward:
        raise ReplayError(f"the plan ends before the backward of stage {machine.next_backward} has run")
    return _report(machine, clock, done)


def _report(machine: Machine, clock: _Clock, actions: list[Action]) -> Replay:
    """Sweep over the changes of memory in the order of time."""

    def bytes_(parts: int) -> float:
        return parts if machine.byte_parts == 1 else parts / machine.byte_parts

    def seconds(parts: int) -> float:
        return parts if machine.second_parts == 1 else parts / machine.second_parts

    live: dict[Purpose, int] = dict.fromkeys(get_args(Purpose), 0)
    live["kept"] = total = peak = machine.out[0]
    host = host_peak = 0
    plain = {purpose: bytes_(parts) for purpose, parts in live.items()}
    memory, seen = Memory(**plain), {}  # after the start and the end of each action
    moments = [Moment(0, bytes_(total), 0)]
    for time, index, edge, changes, on_host in sorted(clock.changes):
        for purpose, change in changes:
            live[purpose] += change
            total += change
            plain[purpose] = bytes_(live[purpose])
        if changes:
            memory = Memory(**plain)
        host += on_host
        peak, host_peak = max(peak, total), max(host_peak, host)
        seen[index, edge] = memory
        if changes or on_host:
            moments.append(Moment(seconds(time), bytes_(total), bytes_(host)))
    events = tuple(
        Event(action, stream, seconds(start), seconds(end), seconds(wait), seen[index, 0], seen[index, 1])
        for index, (action, (stream, start, end, wait)) in enumerate(zip(actions, clock.times, strict=True))
    )
    return Replay(
        peak=bytes_(peak),
        host_peak=bytes_(host_peak),
        work=seconds(machine.work),
        recomputed=machine.again,
        forwards=machine.forwards,
        stall_s=seconds(clock.stall),
        time_s=seconds(max(clock.free.values())),
        events=events,
        moments=tuple(moments),
    )
