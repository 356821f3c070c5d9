"""The exact frontier of a chain: the least work at each memory budget, over all plans of segments.

Found by dynamic programming (``dynamic``), for chains of thousands of stages too; ``cuts`` lists every
plan of a short chain, as a check.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from remat import _check
from remat.chain import Chain
from remat.dynamic import Table
from remat.schedules import Schedule, segmented, store_all
from remat.segments import Segment, SegmentCosts, from_marks, marks


@dataclass(frozen=True)
class Point:
    """One plan on a frontier: what it is claimed to need and to cost.

    Attributes:
        peak: bytes.
        work: seconds of recomputed forwards.
        segments: the plan.
    """

    peak: float
    work: float
    segments: tuple[Segment, ...]

    @property
    def lengths(self) -> list[int]:
        """The lengths of the segments."""
        return [segment.length for segment in self.segments]

    def schedule(self, chain: Chain) -> Schedule:
        """Turn the point into a plan for the chain that it was found on."""
        return segmented(chain, self.segments)


def pareto(points: Iterable[Point]) -> tuple[Point, ...]:
    """Keep the points that no other point beats in peak or in work, by rising peak."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.peak, point.work)):
        if not best or point.work < best[-1].work:
            best.append(point)
    return tuple(best)


def plain(value: float) -> float:
    """Turn a numpy number into an int where it is whole, else a float, so that tables read well."""
    plain = float(value)
    return int(plain) if plain.is_integer() else plain


@dataclass(frozen=True)
class Frontier:
    """The frontier that dynamic programming found.

    Attributes:
        chain: the description.
        points: by rising peak and falling work; their claims are what replay counts.
        slot: bytes of one slot of the memory grid.
        exact: whether the grid holds every possible peak, so that no plan of segments is better. If not,
            sizes were rounded up to the grid: a budget is never broken, and ``bounds`` says what may be lost.
    """

    chain: Chain
    points: tuple[Point, ...]
    slot: float
    exact: bool

    def within(self, budget: float) -> Point:
        """Return the point of least work within a budget in bytes.

        Raises:
            ValueError: if the budget is below the least peak; the message says the least.
        """
        budget = _check.amount("budget", budget)
        fitting = [point for point in self.points if point.peak <= budget]
        if not fitting:
            least = self.points[0].peak
            found = "possible with one recompute per stage" if self.exact else "found on this memory grid"
            raise ValueError(f"budget must be at least {least} bytes, the least peak {found}, got {budget}")
        return fitting[-1]

    def best(self, budget: float) -> Schedule:
        """Return the plan of least work within a budget in bytes.

        Raises:
            ValueError: if the budget is below the least peak; the message says the least.
        """
        return self.within(budget).schedule(self.chain)


def _grid(quanta: int, slots: int) -> tuple[int, int]:
    """Choose the slot in quanta so that there are at most so many, and how many whole ones there are."""
    slot = max(1, -(-quanta // slots))
    return slot, quanta // slot


def _simple(costs: SegmentCosts, budget: float | None) -> list[Point]:
    """Return what plans without any planning need, so that no rounding lets one beat the frontier."""
    n = len(costs)
    plans: list[tuple[Segment, ...]] = [(Segment(n, kept=True),)]
    for count in np.unique(np.geomspace(1, n, num=min(n, 24)).round().astype(int)).tolist():
        whole, rest = divmod(n, count)
        plans += [(*[Segment(whole)] * (count - 1), Segment(whole + rest, kept=True))]  # as `sequential`
        lengths = [count] * whole + [rest] * bool(rest)  # as `uniform`
        plans += [(*map(Segment, lengths[:-1]), Segment(lengths[-1], kept=kept)) for kept in (False, True)]
    points = [Point(peak, plain(work), plan) for plan in plans for peak, work in [costs.claim(plan)]]
    return [point for point in points if budget is None or point.peak <= budget]


def frontier(chain: Chain, *, slots: int = 500, budget: float | None = None) -> Frontier:
    """Find the least work at each memory budget, over all plans of segments, by dynamic programming.

    The state is the memory left for a suffix of the chain once the checkpoints before it are paid for. All
    sizes that share a small enough common measure are treated exactly; otherwise memory goes on a grid and
    sizes are rounded up to it.

    Args:
        chain: the description.
        slots: the most slots that the memory grid may have.
        budget: bytes up to which to look; what storing everything needs if left out.

    Returns:
        The points of the frontier, with plans.

    Raises:
        ValueError: if slots is not a positive whole number, or no plan of segments stays within the budget
            (the message says the least).

    Time grows as stages² · slots, memory as stages · slots.

    >>> from remat.chain import chain_of
    >>> found = frontier(chain_of([1, 4] * 8, costs=[4, 1] * 8))
    >>> found.exact, [(point.peak, point.work) for point in found.points[:4]]
    (True, [(15, 15), (16, 11), (17, 7), (21, 6)])
    """
    slots = _check.count("slots", slots)
    costs = SegmentCosts(chain)
    everything = marks(store_all(chain).segments)
    most = costs.claim_marks(*everything)[0]
    if budget is not None and (budget := _check.amount("budget", budget)) >= most:
        budget = None
    slot, used = _grid(costs.quanta(most if budget is None else budget), slots)
    if budget is None and slot > 1:
        used += 2  # room for what rounding adds to a plan that needs all of it
    table = Table(costs, slot, used, up=True)
    plans = list(zip(*table.plans(table.levels()), strict=True))
    if budget is None:
        plans.append(everything)
    if (
        budget is not None and not plans
    ):  # a grid laid for more memory may fit better by luck, and else knows the least
        found = frontier(chain, slots=slots)
        found.within(budget)
        return replace(found, points=tuple(point for point in found.points if point.peak <= budget))
    points = []
    for last, kept in plans:
        peak, work = costs.claim_marks(last, kept)
        points.append(Point(peak, plain(work), from_marks(last, kept)))
    exact = slot == 1 and costs.exact
    if not exact:
        points += _simple(costs, budget)
    return Frontier(chain, pareto(points), slot=costs.to_bytes(slot), exact=exact)


def work_bounds(chain: Chain, budget: float, *, slots: int = 500) -> tuple[float, float]:
    """Bound the least work within a budget from both sides: what rounding to the grid may have cost.

    Args:
        chain: the description.
        budget: bytes.
        slots: the most slots that the memory grid may have.

    Returns:
        A work that no plan of segments within the budget undercuts (sizes rounded down to the grid), and
        the work of a plan that stays within it (sizes rounded up). Equal if the grid cost nothing.

    Raises:
        ValueError: as ``frontier``.

    >>> from remat.chain import chain_of
    >>> line = chain_of([1.1, 2.3, 0.7, 3.9] * 10, costs=[1, 2, 3, 4] * 10)
    >>> work_bounds(line, 40, slots=50)
    (28.0, 42.0)
    >>> work_bounds(line, 40, slots=1000)
    (41.0, 42.0)
    """
    budget = _check.amount("budget", budget)
    found = frontier(chain, slots=slots, budget=budget).within(budget)
    costs = SegmentCosts(chain)
    most = costs.claim(store_all(chain).segments)[0]
    slot, used = _grid(costs.quanta(min(budget, most)) + costs.error, slots)
    table = Table(costs, slot, used, up=False)
    return float(table.work[used, 0]), float(found.work)


def best(chain: Chain, budget: float, *, slots: int = 500) -> Schedule:
    """Find the plan of segments with the least work within a memory budget, on a grid laid for that budget.

    Args:
        chain: the description.
        budget: bytes.
        slots: the most slots that the memory grid may have.

    Raises:
        ValueError: as ``frontier``.

    >>> from remat.chain import chain_of
    >>> best(chain_of([1] * 16), 8).lengths
    [1, 5, 4, 3, 2, 1]
    """
    return frontier(chain, slots=slots, budget=budget).best(budget)
