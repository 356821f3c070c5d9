"""A second opinion on plans that copy: rules, a clock that ticks, memory from intervals.

``remat.replay`` computes each start as a maximum and keeps running sums. Here nothing is summed on the way:
two queues are served as time goes by, everything in memory is an interval with a beginning and an end, and
the memory at a moment is the sum of the intervals that cover it. Only ``judged``, which compares the two,
knows both.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from hypothesis import strategies as st

from naive import Refused, Thing, size, things
from remat.chain import Action, Backward, Chain, Drop, Fetch, Forward, Offload, Output, Tape
from remat.hardware import Link
from remat.replay import Replay, replay

# When something happens: the time; among things at the same time, the action's place in the plan; and within
# an action 0 its start, 1 its end, 2 the end of a copy that outlasts it.
Key = tuple[Fraction, int, int]
BEFORE: Key = (Fraction(-1), -1, 0)


@dataclass
class Copy:
    """One making of an output or a tape on the device; ``offload`` is the copy out of it, if there is one."""

    thing: Thing
    maker: int
    purpose: str
    freer: int | None = None
    offload: int | None = None


@dataclass
class Node:
    """An action on its stream, and the actions that must have ended before it starts."""

    stream: str
    seconds: Fraction
    after: set[int]


@dataclass
class World:
    """The state after some actions, and the story of how it came to be."""

    chain: Chain
    bandwidth: Fraction | None
    nodes: list[Node] = field(default_factory=list)
    plan: list[Action] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=lambda: [Copy(Output(0), -1, "kept")])
    hosted: list[tuple[Thing, int, int | None]] = field(default_factory=list)  # what, offload, fetch
    passing: Copy | None = None

    @property
    def below(self) -> int:
        """The stage whose backward is next."""
        return len(self.chain) - sum(isinstance(action, Backward) for action in self.plan)

    def ran(self, stage: int) -> int:
        return sum(isinstance(action, Forward) and action.stage == stage for action in self.plan)

    def find(self, thing: Thing) -> Copy | None:
        there = [copy for copy in self.copies if copy.thing == thing and copy.freer is None]
        assert len(there) <= 1
        return there[0] if there else None

    def has(self, thing: Thing) -> bool:
        return self.find(thing) is not None

    def host_has(self, thing: Thing) -> bool:
        return any(what == thing and fetch is None for what, _, fetch in self.hosted)

    def held(self, thing: Thing) -> bool:
        return isinstance(thing, Output) and any(self.has(Tape(thing.stage + d)) for d in (0, 1))

    def needed(self, i: int) -> list[Thing]:
        return [Output(i - 1), Output(i)] + [Tape(i)] * (self.chain.needs == "tape")

    def allows(self, action: Action) -> bool:
        if isinstance(action, Forward):
            i, taping = action.stage, action.keep == "tape"
            if not 1 <= i <= self.below or (taping and self.chain.needs == "values"):
                return False
            return self.has(Output(i - 1)) and not self.has(Output(i)) and not (taping and self.has(Tape(i)))
        if isinstance(action, Backward):
            if action.stage != self.below or not self.ran(len(self.chain)):
                return False
            return all(map(self.has, self.needed(action.stage)))
        if isinstance(action, Drop):
            return action.what != Output(0) and self.has(action.what) and not self.held(action.what)
        if self.bandwidth is None:
            return False
        if isinstance(action, Offload):
            return self.has(action.what) and not self.host_has(action.what)
        return self.host_has(action.what) and not self.has(action.what)

    def do(self, action: Action) -> None:
        index = len(self.plan)
        if not self.allows(action):
            raise Refused(index)
        if isinstance(action, Offload | Fetch):
            self._do_copy(index, action)
        else:
            self._do_compute(index, action)
        self.plan.append(action)

    def _do_copy(self, index: int, action: Offload | Fetch) -> None:
        assert self.bandwidth is not None
        after = {at for at, node in enumerate(self.nodes) if node.stream == "compute"}
        if isinstance(action, Offload):
            copy = self.find(action.what)
            assert copy is not None
            copy.offload = index
            after.add(copy.maker)
            self.hosted.append((action.what, index, None))
        else:
            self.copies.append(Copy(action.what, index, "fetched"))
            self.hosted = [
                (what, out, index if what == action.what and back is None else back)
                for what, out, back in self.hosted
            ]
        self.nodes.append(Node("copy", size(self.chain, action.what) / self.bandwidth, after - {-1}))

    def _do_compute(self, index: int, action: Forward | Backward | Drop) -> None:
        after: set[int] = set()
        seconds = Fraction(0)
        if isinstance(action, Drop):
            freed = [action.what]
            copy = self.find(action.what)
            assert copy is not None
            after = {copy.maker} | ({copy.offload} if copy.offload is not None else set())
        elif isinstance(action, Backward):
            freed = self.needed(action.stage)[1:]
            after = {copy.maker for thing in self.needed(action.stage) if (copy := self.find(thing))}
            seconds = Fraction(self.chain.stages[action.stage - 1].backward_s or 0)
        else:
            i = action.stage
            source = self.find(Output(i - 1))
            assert source is not None
            after = {source.maker}
            seconds = Fraction(self.chain.stages[i - 1].forward_s)
            made = [Copy(Output(i), index, "recomputed" if self.ran(i) else "kept")]
            if action.keep == "tape":
                made.append(Copy(Tape(i), index, made[0].purpose))
            self.copies += made
            gone = self.passing
            freed = [gone.thing] if gone and gone.freer is None and not self.held(gone.thing) else []
            self.passing = made[0] if action.keep == "nothing" else None
        for thing in freed:
            there = self.find(thing)
            assert there is not None
            there.freer = index
        self.nodes.append(Node("compute", seconds, after - {-1}))


def world_of(chain: Chain, plan: Iterable[Action], bandwidth: float | None) -> World:
    """Walk through a plan; raises ``Refused`` with the number of the first action that is not allowed."""
    world = World(chain, None if bandwidth is None else Fraction(bandwidth))
    for action in plan:
        world.do(action)
    if world.below:
        raise Refused(len(world.plan))
    return world


def serve(nodes: Sequence[Node]) -> tuple[list[Fraction], list[Fraction]]:
    """Serve two queues as time goes by: return when each action starts and when it ends."""
    start, end = [Fraction(-1)] * len(nodes), [Fraction(-1)] * len(nodes)
    queues = {
        stream: deque(index for index, node in enumerate(nodes) if node.stream == stream)
        for stream in ("compute", "copy")
    }
    running: dict[str, int] = {}
    finished: set[int] = set()
    now = Fraction(0)
    while running or any(queues.values()):
        moved = False
        for stream, queue in queues.items():
            if stream in running and end[running[stream]] <= now:
                finished.add(running.pop(stream))
                moved = True
            if stream not in running and queue and nodes[queue[0]].after <= finished:
                index = running[stream] = queue.popleft()
                start[index], end[index] = now, now + nodes[index].seconds
                moved = True
        if not moved:
            assert running, "both streams wait for ever"
            now = min(end[index] for index in running.values())
    return start, end


@dataclass(frozen=True)
class Span:
    """Bytes in one place from one moment to another."""

    place: str  # a purpose on the device, or "host"
    bytes: Fraction
    first: Key
    last: Key | None
    thing: Thing | None = None

    def covers(self, key: Key) -> bool:
        return self.first <= key and (self.last is None or key < self.last)


class Timeline:
    """A plan on the clock."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.start, self.end = serve(world.nodes)
        self.spans = list(self._spans())
        edges = {key for span in self.spans for key in (span.first, span.last) if key not in (None, BEFORE)}
        self.keys = sorted(edges.union(*map(self.edges, range(len(self.start)))))

    def edges(self, index: int) -> tuple[Key, Key]:
        return (self.start[index], index, 0), (self.end[index], index, 1)

    def _spans(self) -> Iterable[Span]:
        chain, plan = self.world.chain, self.world.plan
        for copy in self.world.copies:
            first = BEFORE if copy.maker < 0 else self.edges(copy.maker)[0]
            last = None
            if copy.freer is not None:
                last = self.edges(copy.freer)[1]
                if copy.offload is not None and self.end[copy.offload] > last[0]:
                    last = (self.end[copy.offload], copy.freer, 2)
            yield Span(copy.purpose, size(chain, copy.thing), first, last, copy.thing)
        for what, out, back in self.world.hosted:
            last = None if back is None else self.edges(back)[1]
            yield Span("host", size(chain, what), self.edges(out)[0], last, what)
        loss = plan.index(next(a for a in plan if isinstance(a, Forward) and a.stage == len(chain)))
        for index, action in enumerate(plan):
            if isinstance(action, Forward | Backward):
                stage = chain.stages[action.stage - 1]
                scratch = (
                    stage.scratch_backward
                    if isinstance(action, Backward)
                    else stage.scratch_taping
                    if action.keep == "tape"
                    else stage.scratch_forward
                )
                if index == loss:
                    scratch = max(scratch, chain.scratch_loss)
                yield Span("scratch", Fraction(scratch), *self.edges(index))
        ends = {a.stage: self.edges(index)[1] for index, a in enumerate(plan) if isinstance(a, Backward)}
        ends[len(chain) + 1] = self.edges(loss)[1]
        for i in range(1, len(chain) + 1):
            yield Span("gradient", size(chain, Output(i)), ends[i + 1], ends[i])

    def at(self, key: Key) -> dict[str, Fraction]:
        """Bytes in each place."""
        places = dict.fromkeys(("kept", "recomputed", "fetched", "gradient", "scratch", "host"), Fraction(0))
        for span in self.spans:
            if span.covers(key):
                places[span.place] += span.bytes
        return places

    def on_device(self, key: Key) -> list[Thing]:
        """The outputs and tapes on the device, one entry for each making."""
        return [span.thing for span in self.spans if span.thing and span.place != "host" and span.covers(key)]

    def totals(self) -> list[tuple[Fraction, Fraction, Fraction]]:
        """Time, bytes on the device, bytes on the host: at the beginning and at every edge."""
        told = []
        for key in [(Fraction(0), -1, 0), *self.keys]:
            places = self.at(key)
            host = places.pop("host")
            told.append((key[0], sum(places.values(), Fraction(0)), host))
        return told

    @cached_property
    def waits(self) -> list[Fraction]:
        """How long its stream stood idle before each action."""
        idle_since = {"compute": Fraction(0), "copy": Fraction(0)}
        waits = []
        for index, node in enumerate(self.world.nodes):
            waits.append(self.start[index] - idle_since[node.stream])
            idle_since[node.stream] = self.end[index]
        return waits


# --- what replay counts beside it -----------------------------------------------------------------------


Number = float | Fraction


def wire(bandwidth: float) -> Link:
    return Link("a wire", bandwidth, bandwidth, "a test")


def without_repeats(told: Iterable[tuple[Number, Number, Number]]) -> list[tuple[float, float, float]]:
    """Times and memory as floats, without the moments at which nothing changes."""
    changes: list[tuple[float, float, float]] = []
    for time, device, host in told:
        if not changes or changes[-1][1:] != (float(device), float(host)):
            changes.append((float(time), float(device), float(host)))
    return changes


def judged(chain: Chain, plan: Iterable[Action], bandwidth: float) -> tuple[Replay, Timeline]:
    """Replay a plan both ways and compare all that replay reports."""
    plan = list(plan)
    counted, timeline = replay(chain, plan, link=wire(bandwidth)), Timeline(world_of(chain, plan, bandwidth))
    world = timeline.world
    assert [event.action for event in counted.events] == plan
    for index, event in enumerate(counted.events):
        assert event.stream == world.nodes[index].stream
        assert (event.start_s, event.end_s, event.wait_s) == (
            float(timeline.start[index]), float(timeline.end[index]), float(timeline.waits[index])
        ), event  # fmt: skip
        for memory, key in zip((event.during, event.after), timeline.edges(index), strict=True):
            places = timeline.at(key)
            del places["host"]
            assert {place: getattr(memory, place) for place in places} == {
                place: float(value) for place, value in places.items()
            }, event
    totals = timeline.totals()
    assert without_repeats((m.time_s, m.device, m.host) for m in counted.moments) == without_repeats(totals)
    assert counted.peak == float(max(device for _, device, _ in totals))
    assert counted.host_peak == float(max(host for _, _, host in totals))
    assert counted.time_s == float(max(timeline.end))
    stall = sum(
        (wait for wait, node in zip(timeline.waits, world.nodes, strict=True) if node.stream == "compute"),
        Fraction(0),
    )
    assert counted.stall_s == float(stall)
    forwards = [action.stage for action in plan if isinstance(action, Forward)]
    assert counted.forwards == len(forwards)
    assert counted.recomputed == len(forwards) - len(chain)
    again = sum((Fraction(chain.stages[i - 1].forward_s) for i in forwards), Fraction(0))
    assert counted.work == float(again - sum(Fraction(stage.forward_s) for stage in chain.stages))
    return counted, timeline


# --- plans that copy ------------------------------------------------------------------------------------


def legal(world: World) -> list[Action]:
    """All that a plan may do next."""
    every: list[Action] = [
        Forward(i, keep) for i in range(1, len(world.chain) + 1) for keep in ("nothing", "output", "tape")
    ]
    every += [Backward(world.below)]
    for thing in things(world.chain):
        every += [Offload(thing), Fetch(thing), Drop(thing)]
    return [action for action in every if world.allows(action)]


def way_home(world: World) -> Action:
    """Name an action that leads towards the end of the step, whatever happened before."""
    i = world.below
    if world.allows(Backward(i)):
        return Backward(i)
    first = not world.ran(len(world.chain))
    target = len(world.chain) if first else i - 1
    if first or not world.has(Output(target)):
        if world.allows(Fetch(Output(target))):
            return Fetch(Output(target))
        nearest = max(j for j in range(target) if world.has(Output(j)))
        return Forward(nearest + 1, "output")
    taped = world.chain.needs == "values" or world.has(Tape(i))
    missing: Thing = Output(i) if taped else Tape(i)
    if world.allows(Fetch(missing)):
        return Fetch(missing)
    if not taped and world.has(Output(i)):  # it is made again with its tape
        return Drop(Output(i)) if world.allows(Drop(Output(i))) else Drop(Tape(i + 1))
    return Forward(i, "output" if taped else "tape")


@st.composite
def copying_plans(draw: st.DrawFn, chain: Chain, *, wander: int = 14) -> list[Action]:
    """A valid plan, most of them of no regular form: a walk over legal moves that is led home."""
    world = World(chain, Fraction(1))
    while world.below:
        if wander and draw(st.integers(0, 2)):
            wander -= 1
            kinds: dict[type, list[Action]] = {}
            for action in legal(world):
                kinds.setdefault(type(action), []).append(action)
            kind = draw(st.sampled_from(sorted(kinds, key=lambda kind: kind.__name__)))
            world.do(draw(st.sampled_from(kinds[kind])))
        else:
            world.do(way_home(world))
        assert len(world.plan) < 500
    return world.plan
