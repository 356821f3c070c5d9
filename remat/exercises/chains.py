"""Checks of the exercises of chapter 2: plans for a chain, judged by replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random

from remat.chain import Chain, chain_of
from remat.exercises.plans import lengths_of, replayed, uneven
from remat.exercises.verdict import Verdict, called, judged, right, shown, wanted, whole, wrong
from remat.frontier import frontier
from remat.replay import replay
from remat.schedules import greedy, uniform


@judged
def every_k(function: object, *, seed: int = 0) -> Verdict:
    """Check a function that writes Chen's algorithm 1 out as actions.

    Args:
        function: of n, the number of stages, and k, the stages a segment; returns a list of actions.
        seed: of the chains that it is tried on.

    Source: Chen et al. 2016, algorithm 1.

    >>> every_k(lambda n, k: ...)
    Not solved yet: put a list of actions in place of the three dots and run both cells again.
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
                f"for n={n}, k={k} it recomputes for {counted.work:g} s, where {due.work:g} s are enough. "
                "The last stage of a segment need not run again: its output is the next checkpoint, or the "
                "loss's input.",
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
    """Check a function that finds the spacing of least peak for a chain of tapes.

    Args:
        function: of n, out and saved; returns k.
        seed: of the chains that it is tried on.

    >>> best_spacing(lambda n, out, saved: ...)
    Not solved yet: put a spacing in place of the three dots and run both cells again.
    """
    draw = Random(seed)
    cases = [(draw.randrange(20, 50), draw.randrange(1, 4), draw.randrange(4, 13)) for _ in range(5)]
    given = []
    for n, out, saved in cases:
        k = called(function, "a spacing", n, out, saved)
        if not whole(k, 1, n):
            wrong(
                f"for {shown(n, out, saved)}, k is a whole number from 1 to {n}, and this is {k!r}.",
                "no spacing",
            )
        given.append(int(k))
    rules: dict[str, Callable[[int, int, int], float]] = {
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
                f"{min(peaks.values()):g} is possible. A checkpoint is one output; a replayed stage is its "
                "output and its tape, so segments should be shorter than √n. A formula forgets the ends; "
                "replay does not.",
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
    Not solved yet: put lengths of segments in place of the three dots and run both cells again.
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
                f"within {budget:g} bytes, {plan.lengths} recomputes for {counted.work:g} s; "
                f"{point.work:g} are enough for sizes {[stage.out for stage in chain.stages]} and costs "
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
    Not solved yet: put sixteen sizes in place of the three dots and run both cells again.
    """
    wanted(sizes, "sixteen sizes")
    if isinstance(sizes, str) or not isinstance(sizes, Sequence) or len(sizes) != 16:
        wrong(f"a list of sixteen sizes is asked for, and this is {sizes!r}.", "not sixteen sizes")
    for size in sizes:
        wanted(size, "sixteen sizes")
        if not whole(size, 1, 9):
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
        f"The greedy's best threshold, {threshold:g}, peaks at {least:g}, and every 4 at {rule:g}. The "
        "greedy sees how much has gone by, not how large the output is on which it cuts."
    )
