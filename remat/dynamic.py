"""The dynamic program behind the frontier: the least work for each suffix of a chain and each free memory.

A suffix only feels what comes before it through the memory that earlier checkpoints hold. So its state is the
memory that is left, on a grid of equal slots, and the peak of a plan is relative to what comes before.
"""

from __future__ import annotations

from typing import overload

import numpy as np

from remat.segments import Ints, Segment, SegmentCosts

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
        self._total = np.empty((_BLOCK, n))
        for start in range(n - 1, -1, -1):
            self._fill(start)

    @overload
    def _round(self, quanta: int) -> int: ...
    @overload
    def _round(self, quanta: Ints) -> Ints: ...
    def _round(self, quanta: int | Ints) -> int | Ints:
        return -(-quanta // self.slot) if self.up else quanta // self.slot

    def _split(self, held: int) -> tuple[int, int]:
        """Whole slots that held quanta take, and the rest in parts of a slot, rounded up."""
        whole, rest = divmod(held, self.slot)
        return whole, -(-rest * _FINE // self.slot) if self.up else 0

    def _fill(self, start: int) -> None:
        """Choose the segment that starts after start, for every number of free slots."""
        costs = self.costs
        peak, own_work = costs.replayed(start)
        need = self._round(peak)
        whole, rest = self._split(int(costs.out[start]))
        best = np.full(self.slots + 1, np.inf)
        choice = np.zeros(self.slots + 1, dtype=np.int32)
        # In blocks of budgets: a small budget reaches few segments, so most of a full table is not built.
        for low in range(max(whole + bool(rest), int(need.min())), self.slots + 1, _BLOCK):
            high = min(low + _BLOCK, self.slots + 1)
            some = int(np.flatnonzero(need < high)[-1]) + 1
            columns, own = slice(start + 1, start + 1 + some), own_work[:some]
            total = self._total[: high - low, :some]
            np.add(self.work[low - whole : high - whole, columns], own, out=total)
            if rest:
                tight = self.fine[low - whole : high - whole, columns] < rest
                np.add(self.work[low - whole - 1 : high - whole - 1, columns], own, out=total, where=tight)
            if need[:some].max() > low:
                total[need[:some] > np.arange(low, high)[:, None]] = np.inf
            at = total.argmin(axis=1)
            best[low:high] = total[np.arange(high - low), at]
            choice[low:high] = start + 1 + at
        if costs.tape:
            kept_peak, held = costs.kept(start)
            whole, rest = self._split(held)
            low = max(self._round(kept_peak), whole + bool(rest))
            if low <= self.slots:
                rows = np.arange(low, self.slots + 1) - whole
                rows -= self.fine[rows, start + 1] < rest
                better = self.work[rows, start + 1] <= best[low:]
                best[low:][better] = self.work[rows, start + 1][better]
                choice[low:][better] = 0
        self.work[:, start] = best
        self.choice[:, start] = choice
        if self.up:
            self._leave(start, peak)

    def _leave(self, start: int, peak: Ints) -> None:
        """Note what the chosen plans leave over of their slots."""
        rows = np.flatnonzero(np.isfinite(self.work[:, start]))
        choice = self.choice[rows, start]
        kept, end = choice == 0, np.where(choice == 0, start + 1, choice)
        own, held = self.costs.kept(start)
        holds = np.where(kept, held, self.costs.out[start])
        whole, rest = holds // self.slot, -(-(holds % self.slot) * _FINE // self.slot)
        after = rows - whole
        after -= self.fine[after, end] < rest
        used = np.maximum(
            holds + self.slot * after - self.slack[after, end], np.where(kept, own, peak[end - start - 1])
        )
        self.slack[rows, start] = slack = self.slot * rows - used
        self.fine[rows, start] = np.minimum(slack * _FINE // self.slot, _FINE)

    def segments(self, m: int) -> tuple[Segment, ...]:
        """Walk the choices for m free slots; stages kept one after the other become one segment."""
        segments: list[Segment] = []
        start, costs = 0, self.costs
        while start < len(costs):
            end = int(self.choice[m, start])
            kept, end = end == 0, end or start + 1
            whole, rest = self._split(costs.kept(start)[1] if kept else int(costs.out[start]))
            m -= whole + bool(self.fine[m - whole, end] < rest)
            if kept and segments and segments[-1].kept:
                segments[-1] = Segment(segments[-1].length + 1, kept=True)
            else:
                segments.append(Segment(end - start, kept=kept))
            start = end
        return tuple(segments)

    def levels(self) -> list[int]:
        """The budgets, in slots, at which the least work falls."""
        least = self.work[:, 0]
        before = np.r_[np.inf, least[:-1]]
        return [int(m) for m in np.flatnonzero(least < before)]
