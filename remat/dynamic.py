"""The dynamic program behind the frontier: the least work for each suffix of a chain and each free memory.

A suffix only feels what comes before it through the memory that earlier checkpoints hold. So its state is the
memory that is left, on a grid of equal slots, and the peak of a plan is relative to what comes before.
"""

from __future__ import annotations

from typing import overload

import numpy as np

from remat.segments import Bools, Floats, Ints, SegmentCosts

_BLOCK = 64  # budgets treated at once
_FINE = 2**14  # parts of a slot in which leftovers are compared; small enough for 16-bit numbers


class Table:
    """The dynamic program. ``work[m, i]`` is the least work for the stages after i with m slots free.

    Rounded up, each entry remembers how much of its m slots its plan leaves over (``slack``), so that
    roundings do not add up along a plan: a checkpoint first uses up what is left over behind it.
    """

    def __init__(self, costs: SegmentCosts, slot: int, slots: int, *, up: bool) -> None:
        self.costs, self.slot, self.slots, self.up = costs, slot, slots, up
        n = len(costs)
        self.work = np.full((slots + 1, n + 1), np.inf)
        self.work[:, n] = 0
        self.slack = np.zeros((slots + 1, n + 1), dtype=np.int64)  # quanta
        self.slack[:, n] = slot * np.arange(slots + 1)
        self.fine = np.zeros((slots + 1, n + 1), dtype=np.int16)  # the same in parts of a slot, rounded down
        self.fine[:, n] = _FINE
        self.fine[0, n] = 0
        # The last stage of the segment that starts after i; 0 says "keep stage i + 1 taped".
        self.choice = np.zeros((slots + 1, n), dtype=np.int32)
        # What a segment that starts after i holds while later ones run: row 0 replayed, row 1 kept. Whole
        # slots, and the rest in parts of a slot, rounded up.
        self.holds = np.stack([costs.out[:-1], costs.out[:-1] + costs.saved[1:]])
        self.whole = self.holds // slot
        self.rest = self._parts(self.holds % slot, up=True) if up else np.zeros_like(self.holds)
        for start in range(n - 1, -1, -1):
            self._fill(start)

    @overload
    def _round(self, quanta: int) -> int: ...
    @overload
    def _round(self, quanta: Ints) -> Ints: ...
    def _round(self, quanta: int | Ints) -> int | Ints:
        return -(-quanta // self.slot) if self.up else quanta // self.slot

    def _parts(self, quanta: Ints, *, up: bool) -> Ints:
        """Turn less than a slot into parts of a slot."""
        return -(-quanta * _FINE // self.slot) if up else quanta * _FINE // self.slot

    def _fill(self, start: int) -> None:
        """Choose the segment that starts after start, for every number of free slots."""
        peak, own_work = self.costs.replayed(start)
        need = self._round(peak)
        least_need = np.minimum.accumulate(need[::-1])[::-1]  # of this and of all longer segments
        whole, rest = int(self.whole[0, start]), int(self.rest[0, start])
        best, choice = self._keep(start), np.zeros(self.slots + 1, dtype=np.int32)
        first = max(whole + bool(rest), int(least_need[0]))
        for low in range(first, self.slots + 1, _BLOCK):
            high = min(low + _BLOCK, self.slots + 1)
            free = np.arange(low, high)
            # More memory never costs work: what the smallest budget of the block reaches bounds the others
            # from above, and what an end reaches with the largest bounds it from below. Few ends pass.
            bound = best[max(low - 1, 0) : low + 1].min()
            if bound == 0:  # nothing is recomputed any more
                choice[low:][best[low:] > 0] = choice[low - 1]
                best[low:] = 0
                break
            fit = int(np.searchsorted(least_need, high))
            hope = self.work[high - 1 - whole, start + 1 : start + 1 + fit] + own_work[:fit]
            hopeful = np.flatnonzero(hope <= bound)
            if not len(hopeful):
                continue
            some = slice(int(hopeful[0]), int(hopeful[-1]) + 1)
            ends = slice(start + 1 + some.start, start + 1 + some.stop)
            total = self.work[low - whole : high - whole, ends]
            if rest:  # where less than the rest is left over behind, the segment's input takes a slot more
                tight = self.fine[low - whole : high - whole, ends] < rest
                total = np.where(tight, self.work[low - whole - 1 : high - whole - 1, ends], total)
            total = total + own_work[some]
            if need[some].max() > low:
                total[need[some] > free[:, None]] = np.inf
            at = total.argmin(axis=1)
            least = total[free - low, at]
            better = least < best[low:high]
            best[low:high][better] = least[better]
            choice[low:high][better] = ends.start + at[better]
        self.work[:, start] = best
        self.choice[:, start] = choice
        if self.up and self.slot > 1:  # whole slots leave nothing over
            self._leave(start, peak)

    def _keep(self, start: int) -> Floats:
        """Return the work for each budget if the stage after start is kept taped."""
        work = np.full(self.slots + 1, np.inf)
        if self.costs.tape:
            whole, rest = int(self.whole[1, start]), int(self.rest[1, start])
            low = max(self._round(self.costs.kept(start)[0]), whole + bool(rest))
            after = np.arange(low, self.slots + 1) - whole
            after -= self.fine[after, start + 1] < rest
            work[low:] = self.work[after, start + 1]
        return work

    def _after(self, free: Ints, start: Ints | int, kept: Bools, end: Ints) -> Ints:
        """Return the slots that are free after a segment: what it holds first uses up what is left over."""
        row = kept.astype(np.int64)
        after: Ints = free - self.whole[row, start]
        after -= self.fine[after, end] < self.rest[row, start]
        return after

    def _leave(self, start: int, peak: Ints) -> None:
        """Note what the chosen plans leave over of their slots."""
        free = np.flatnonzero(np.isfinite(self.work[:, start]))
        choice = self.choice[free, start]
        kept = choice == 0
        end = np.where(kept, start + 1, choice)
        after = self._after(free, start, kept, end)
        behind = self.slot * after - self.slack[after, end]
        own = np.where(kept, self.costs.kept(start)[0], peak[end - start - 1])
        slack = self.slot * free - np.maximum(self.holds[kept.astype(np.int64), start] + behind, own)
        self.slack[free, start] = slack
        self.fine[free, start] = self._parts(np.minimum(slack, self.slot), up=False)

    def levels(self) -> Ints:
        """The budgets, in slots, at which the least work falls."""
        least = self.work[:, 0]
        return np.flatnonzero(least < np.r_[np.inf, least[:-1]])

    def plans(self, free: Ints) -> tuple[Bools, Bools]:
        """Walk the choices for several budgets in slots, all at once.

        Returns:
            One row a budget, one column a stage: whether a segment ends there, and whether the stage is kept.
        """
        n = len(self.costs)
        ends, keeps = np.zeros((2, len(free), n), dtype=bool)
        row, start = np.arange(len(free)), np.zeros(len(free), dtype=np.int64)
        while len(row):
            choice = self.choice[free, start]
            kept = choice == 0
            end = np.where(kept, start + 1, choice)
            ends[row, end - 1], keeps[row, end - 1] = True, kept
            free = self._after(free, start, kept, end)
            going = end < n
            row, free, start = row[going], free[going], end[going]
        return ends, keeps
