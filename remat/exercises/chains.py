"""Checks of the exercises of chapter 2: plans for a chain, judged by replay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from numbers import Integral
from random import Random

from remat.chain import Action, Backward, Chain, Drop, Fetch, Forward, Offload, chain_of
from remat.exercises.verdict import Verdict, called, judged, right, shown, wanted, wrong
from remat.frontier import frontier
from remat.hardware import Link
from remat.replay import Replay, ReplayError, replay
from remat.schedules import Schedule, greedy, segmented, uniform

ACTIONS = (Forward, Backward, Drop, Offload, Fetch)


def replayed(chain: Chain, plan: object, *, link: Link | None = None) -> Replay:
    """Replay the reader's plan.

    Raises:
        Stop: if it is no plan, or replay refuses it; the verdict says why.
    """
    if not isinstance(plan, Iterable):
        wrong(f"a list of actions is asked for, and this is {plan!r}.", "not a plan")
    actions: list[Action] = list(plan)
    wanted(actions[0] if actions else None, "actions")
    for action in actions:
        wanted(action, "actions")
        if not isinstance(action, ACTIONS):
            wrong(f"{action!r} is no action.", "not an action")
    try:
        return replay(chain, actions, link=link)
    except ReplayError as refusal:
        wrong(f"replay refuses it for {len(chain)} stages: {refusal}", _refused(str(refusal)))


def _refused(message: str) -> str:
    """Name the mistake behind a refusal."""
    if "there already" in message and "Forward" in message:
        return "replayed what was still there"
    if "fetch it first" in message:
        return "did not fetch in time"
    if "reads" in message:
        return "used what was not there"
    if "still holds" in message:
        return "dropped what a tape holds"
    if "ends before" in message or "plan ends" in message:
        return "stopped early"
    return "a plan that cannot run"


def lengths_of(answer: object, chain: Chain) -> Schedule:
    """Read the reader's lengths of segments as a plan.

    Raises:
        Stop: if they are no lengths, or do not add up to the chain.
    """
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        wrong(f"lengths of segments are asked for, and this is {answer!r}.", "not lengths")
    lengths = list(answer)
    for length in lengths:
        wanted(length, "lengths of segments")
        if isinstance(length, bool) or not isinstance(length, Integral) or length < 1:
            wrong(f"a length is a whole number from 1, and this is {length!r}.", "not lengths")
    if sum(lengths) != len(chain):
        wrong(
            f"{lengths} has {sum(lengths)} stages, the chain {len(chain)}.",
            "gave the cuts, not the lengths" if lengths == sorted(set(lengths)) else "lengths do not add up",
        )
    return segmented(chain, lengths)


def uneven(draw: Random, n: int) -> Chain:
    """Draw a chain of n stages of whole sizes and costs."""
    return chain_of([draw.randrange(1, 9) for _ in range(n)], costs=[draw.randrange(1, 9) for _ in range(n)])


@judged
def every_k(function: object, *, seed: int = 0) -> Verdict:
    """Check a function that writes Chen's algorithm 1 out as actions.

    Args:
        function: of n, the number of stages, and k, the stages a segment; returns a list of actions.
        seed: of the chains that it is tried on.

    Source: Chen et al. 2016, algorithm 1.

    >>> every_k(lambda n, k: ...)
    Not solved yet. put a list of actions in place of the three dots and run both cells again.
    """
    draw = Random(seed)
    for n, k in [(4, 2), (5, 2), *((n, draw.randrange(1, n + 1)) for n in (7, 9, 12))]:
        chain = uneven(draw, n)
        plan, due = called(function, "a list of actions", n, k), replay(chain, uniform(chain, k))
        counted = replayed(chain, plan)
        if counted.work > due.work:
            ends = {*range(k, n, k), n}
            last = sum(chain.stages[end - 1].forward_s for end in ends)
            wrong(
                f"for n={n}, k={k} it recomputes for {counted.work:g} s, where {due.work:g} s are enough. The "
                "last stage of a segment need not run again: its output is the next checkpoint, or the loss's input.",
                "replayed the last stage" if counted.work == due.work + last else "recomputed too much",
            )
        if counted.peak > due.peak:
            wrong(
                f"for n={n}, k={k} it peaks at {counted.peak:g}, a checkpoint every {k} at {due.peak:g}. "
                "In the first sweep only the last output of each segment is kept.",
                "kept everything" if counted.recomputed == 0 else "kept too much",
            )
    return right("Replay accepts it, and it peaks no higher and runs no more forwards than algorithm 1.")


@judged
def best_spacing(function: object, *, seed: int = 0) -> Verdict:
    """Check a function that finds the spacing of least peak where a replayed stage holds more than its output.

    Args:
        function: of n, out and saved; returns k.
        seed: of the chains that it is tried on.

    >>> best_spacing(lambda n, out, saved: ...)
    Not solved yet. put a spacing in place of the three dots and run both cells again.
    """
    draw = Random(seed)
    cases = [(draw.randrange(20, 50), draw.randrange(1, 4), draw.randrange(4, 13)) for _ in range(5)]
    given = []
    for n, out, saved in cases:
        k = called(function, "a spacing", n, out, saved)
        if isinstance(k, bool) or not isinstance(k, Integral) or not 1 <= k <= n:
            wrong(f"for {shown(n, out, saved)}, k is a whole number from 1 to {n}, and this is {k!r}.", "no spacing")
        given.append(int(k))
    rules = {
        "took the square root of n": lambda n, out, saved: n**0.5,
        "turned the ratio around": lambda n, out, saved: (n * (out + saved) / out) ** 0.5,
        "trusted the shortcut": lambda n, out, saved: (n * out / (out + saved)) ** 0.5,
    }
    for (n, out, saved), k in zip(cases, given, strict=True):
        chain = chain_of([out] * n, input=out, saved=saved, needs="tape")
        peaks = {j: replay(chain, uniform(chain, j)).peak for j in range(1, n + 1)}
        if peaks[k] > min(peaks.values()):
            trap = next(
                (
                    name
                    for name, rule in rules.items()
                    if all(abs(rule(*case) - mine) <= 1 for case, mine in zip(cases, given, strict=True))
                ),
                "",
            )
            wrong(
                f"for {shown(n=n, out=out, saved=saved)} your k = {k} peaks at {peaks[k]:g}, and "
                f"{min(peaks.values()):g} is possible. A checkpoint is one output; a replayed stage is its output "
                "and its tape, so segments should be shorter than √n. A formula forgets the ends; replay does not.",
                trap,
            )
    return right("The larger the tape, the shorter the segment.")


@judged
def within(function: object, *, seed: int = 0) -> Verdict:
    """Check a planner: the least work within a budget.

    Args:
        function: of a chain and a budget in bytes; returns lengths of segments.
        seed: of the chains that it is tried on.

    >>> within(lambda chain, budget: ...)
    Not solved yet. put lengths of segments in place of the three dots and run both cells again.
    """
    draw = Random(seed)
    small, heavy, alike = [], [], []
    for n in (4, 6, 7, 8, 8):
        chain = uneven(draw, n)
        points = frontier(chain).points
        point = draw.choice(points[1:] or points)
        budget = point.peak + draw.choice([0, 0.5])
        plan = lengths_of(called(function, "lengths of segments", chain, budget), chain)
        counted = replay(chain, plan)
        if counted.peak > budget:
            top = max(counted.events, key=lambda event: event.during.total).during
            wrong(
                f"within {budget:g} bytes, {plan.lengths} peaks at {counted.peak:g} on a chain of sizes "
                f"{[stage.out for stage in chain.stages]}; {top.gradient:g} of them are the gradient.",
                "forgot the gradient" if counted.peak - top.gradient <= budget else "broke the budget",
            )
        if counted.work > point.work:
            small.append(counted.peak == points[0].peak and counted.work == points[0].work)
            alike.append(len(set(plan.lengths[:-1])) <= 1 and plan.lengths[-1] <= plan.lengths[0])
            heavy.append(
                f"within {budget:g} bytes, {plan.lengths} recomputes for {counted.work:g} s, and {point.work:g} s "
                f"are enough on a chain of sizes {[stage.out for stage in chain.stages]} and costs "
                f"{[stage.forward_s for stage in chain.stages]}."
            )
    if heavy:
        trap = "sought the least peak, not the least work" if all(small) else ""
        wrong(heavy[0], trap or ("cut into equal segments" if all(alike) else "recomputed too much"))
    return right("It never breaks the budget, and no plan of segments does with less work.")


def _best_greedy(chain: Chain) -> tuple[float, float]:
    """Find the least peak over every threshold of Chen's algorithm 3, and the threshold that reaches it."""
    sums = [0, *accumulate(stage.out for stage in chain.stages)]
    thresholds = {b - a for i, a in enumerate(sums) for b in sums[i:]}
    return min((replay(chain, greedy(chain, threshold)).peak, threshold) for threshold in sorted(thresholds))


@judged
def fooled(sizes: object) -> Verdict:
    """Check a chain on which Chen's algorithm 3 peaks higher than a checkpoint every four, at any threshold.

    Args:
        sizes: of the 16 outputs, whole numbers from 1 to 9.

    Source: Chen et al. 2016, algorithm 3.

    >>> fooled(...)
    Not solved yet. put sixteen sizes in place of the three dots and run both cells again.
    """
    wanted(sizes, "sixteen sizes")
    if isinstance(sizes, str) or not isinstance(sizes, Sequence) or len(sizes) != 16:
        wrong(f"a list of sixteen sizes is asked for, and this is {sizes!r}.", "not sixteen sizes")
    for size in sizes:
        wanted(size, "sixteen sizes")
        if isinstance(size, bool) or not isinstance(size, Integral) or not 1 <= size <= 9:
            wrong(f"a size is a whole number from 1 to 9, and this is {size!r}.", "not sixteen sizes")
    chain = chain_of(sizes)
    rule, (least, threshold) = replay(chain, uniform(chain, 4)).peak, _best_greedy(chain)
    if least <= rule:
        if len(set(sizes)) == 1:
            trap = "all sizes alike"
        elif replay(chain, greedy(chain, 2)).peak > rule:
            trap = "fooled one threshold, not all"
        else:
            trap = "not fooled"
        wrong(
            f"with a threshold of {threshold:g} the greedy peaks at {least:g}, every 4 at {rule:g}. "
            "It must miss the small outputs at every threshold.",
            trap,
        )
    return right(
        f"The greedy's best threshold, {threshold:g}, peaks at {least:g}, and every 4 at {rule:g}. The greedy sees "
        "how much has gone by, not how large the output is on which it cuts."
    )
