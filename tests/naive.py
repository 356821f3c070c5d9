"""A replay so plain that it can be believed, and brute force over plans.

It keeps no state: what is live after some actions is asked of those actions, each time from the start. Sums
are exact and plain. It knows nothing of ``remat.replay`` and of the planners.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from remat.chain import Action, Backward, Chain, Drop, Forward, Output, Tape
from remat.segments import Segment

Thing = Output | Tape


class Refused(Exception):
    """The plan may not do this; holds the number of the action (or of actions, if the plan ends early)."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


@dataclass(frozen=True)
class Moment:
    """Exact bytes at one moment."""

    kept: Fraction
    recomputed: Fraction
    gradient: Fraction
    scratch: Fraction = Fraction(0)

    @property
    def total(self) -> Fraction:
        return self.kept + self.recomputed + self.gradient + self.scratch


@dataclass(frozen=True)
class Count:
    """What a plan costs, exactly."""

    peak: Fraction
    work: Fraction
    recomputed: int
    forwards: int
    time_s: Fraction
    during: list[Moment]
    after: list[Moment]


def makes(action: Action, thing: Thing) -> bool:
    if not isinstance(action, Forward) or action.stage != thing.stage:
        return False
    return isinstance(thing, Output) or action.keep == "tape"


def is_live(past: Sequence[Action], thing: Thing) -> bool:
    times = [time for time, action in enumerate(past) if makes(action, thing)]
    if not times and thing != Output(0):
        return False
    made = times[-1] if times else -1
    if Drop(thing) in past[made + 1 :] or Backward(thing.stage) in past[made + 1 :]:
        return False
    maker = past[made] if times else None
    if isinstance(thing, Output) and isinstance(maker, Forward) and maker.keep == "nothing":
        for time in range(made + 1, len(past)):
            if isinstance(past[time], Forward):  # it lasts past this one only if a tape holds it by then
                return is_held(past[: time + 1], thing)
    return True


def is_held(past: Sequence[Action], thing: Thing) -> bool:
    """A tape holds the output of its stage and of the stage before."""
    return isinstance(thing, Output) and any(is_live(past, Tape(thing.stage + d)) for d in (0, 1))


def next_backward(chain: Chain, past: Sequence[Action]) -> int:
    return len(chain) - sum(isinstance(action, Backward) for action in past)


def has_run(past: Sequence[Action], stage: int) -> bool:
    return any(isinstance(action, Forward) and action.stage == stage for action in past)


def is_allowed(chain: Chain, past: Sequence[Action], action: Action) -> bool:
    n, last = len(chain), next_backward(chain, past)
    if isinstance(action, Forward):
        i = action.stage
        if not 1 <= i <= last or (action.keep == "tape" and chain.needs == "values"):
            return False
        return is_live(past, Output(i - 1)) and not is_live(past, Output(i))
    if isinstance(action, Backward):
        i = action.stage
        needed: list[Thing] = [Output(i - 1), Output(i)] + [Tape(i)] * (chain.needs == "tape")
        return 1 <= i == last and has_run(past, n) and all(is_live(past, thing) for thing in needed)
    return action.what != Output(0) and is_live(past, action.what) and not is_held(past, action.what)


def things(chain: Chain) -> list[Thing]:
    stages = range(1, len(chain) + 1)
    return [Output(0), *(Output(i) for i in stages), *(Tape(i) for i in stages)]


def size(chain: Chain, thing: Thing) -> Fraction:
    if thing == Output(0):
        return Fraction(chain.input)
    stage = chain.stages[thing.stage - 1]
    return Fraction(stage.out if isinstance(thing, Output) else stage.saved)


def moment(chain: Chain, past: Sequence[Action], extra: Sequence[Thing] = (), scratch: float = 0) -> Moment:
    """Add up what is live after ``past``, with ``extra`` things that are being made."""
    kept = recomputed = Fraction(0)
    for thing in things(chain):
        live = is_live(past, thing)
        runs = sum(isinstance(a, Forward) and a.stage == thing.stage for a in past) + (thing in extra)
        if live or thing in extra:
            if runs > 1:
                recomputed += size(chain, thing)
            else:
                kept += size(chain, thing)
    below = next_backward(chain, past)
    gradient = size(chain, Output(below)) if below and has_run(past, len(chain)) else Fraction(0)
    return Moment(kept, recomputed, gradient, Fraction(scratch))


def naive_replay(chain: Chain, actions: Iterable[Action]) -> Count:
    plan = list(actions)
    during, after = [], []
    work, time_s = Fraction(0), Fraction(0)
    for index, action in enumerate(plan):
        past = plan[:index]
        if not is_allowed(chain, past, action):
            raise Refused(index)
        if isinstance(action, Forward):
            stage = chain.stages[action.stage - 1]
            new = [thing for thing in things(chain) if thing != Output(0) and makes(action, thing)]
            scratch = stage.scratch_taping if action.keep == "tape" else stage.scratch_forward
            assert scratch is not None
            if action.stage == len(chain) and not has_run(past, action.stage):
                scratch = max(scratch, chain.scratch_loss)
            during.append(moment(chain, past, new, scratch))
            time_s += Fraction(stage.forward_s)
            if has_run(past, action.stage):
                work += Fraction(stage.forward_s)
        elif isinstance(action, Backward):
            stage = chain.stages[action.stage - 1]
            during.append(moment(chain, past, scratch=stage.scratch_backward))
            time_s += Fraction(stage.backward_s or 0)
        else:
            during.append(moment(chain, past))
        after.append(moment(chain, plan[: index + 1]))
    if next_backward(chain, plan):
        raise Refused(len(plan))
    ran = [action.stage for action in plan if isinstance(action, Forward)]
    return Count(
        peak=max(moment.total for moment in during + after),
        work=work,
        recomputed=len(ran) - len(set(ran)),
        forwards=len(ran),
        time_s=time_s,
        during=during,
        after=after,
    )


def way_on(chain: Chain, past: Sequence[Action]) -> Action:
    """Name an action that leads towards the end of the step, whatever happened before."""
    i = next_backward(chain, past)
    goal: list[Action] = [Backward(i)]
    if is_allowed(chain, past, goal[0]):
        return goal[0]
    taping = chain.needs == "tape"
    if not has_run(past, len(chain)):
        target = len(chain)
    elif taping and is_live(past, Output(i)):
        return Drop(Output(i))
    elif not is_live(past, Output(i - 1)):
        target = i - 1
    else:
        target = i
    nearest = max(j for j in range(target) if is_live(past, Output(j)))
    if is_live(past, Output(target)):  # not run yet, or about to be taped: make room
        return Drop(Output(target))
    return Forward(nearest + 1, "tape" if taping and nearest + 1 == i else "output")


def segment_plans(n: int, *, tape: bool) -> Iterator[tuple[Segment, ...]]:
    """Every plan of segments of n stages; with tapes a segment of one may also be kept."""
    if n == 0:
        yield ()
    for length in range(1, n + 1):
        for rest in segment_plans(n - length, tape=tape):
            yield (Segment(length), *rest)
            if tape and length == 1:
                yield (Segment(1, kept=True), *rest)


def pareto(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep the (peak, work) pairs that no other pair beats, by rising peak."""
    every = set(points)
    return sorted(
        (peak, work)
        for peak, work in every
        if not any(p <= peak and w <= work and (p, w) != (peak, work) for p, w in every)
    )
