"""Every plan of segments of a short chain, by brute force."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat.chain import Chain
from remat.frontier import Point, plain
from remat.segments import Floats, Ints, Segment, SegmentCosts


@dataclass(frozen=True)
class Cuts:
    """Every plan of segments of a short chain, as arrays.

    Attributes:
        chain: the description.
        peak: bytes, one entry a plan.
        work: seconds, one entry a plan.
        codes: one whole number a plan: bit i is set if a segment ends after stage i + 1, bit n + i if stage
            i + 1 is kept in the first forward (chains with needs="tape" only).
    """

    chain: Chain
    peak: Floats
    work: Floats
    codes: Ints

    def __len__(self) -> int:
        return len(self.codes)

    def segments(self, index: int) -> tuple[Segment, ...]:
        """Read a plan's segments from its code."""
        code, n, segments, start = int(self.codes[index]), len(self.chain), [], 0
        for i in range(n):
            if code >> i & 1:
                segments.append(Segment(i + 1 - start, kept=bool(code >> (n + i) & 1)))
                start = i + 1
        return tuple(segments)

    @cached_property
    def frontier(self) -> tuple[Point, ...]:
        """The plans that none beats in peak or in work, by rising peak."""
        order = np.lexsort((self.work, self.peak))
        least = np.minimum.accumulate(self.work[order])
        first = np.r_[True, least[1:] < least[:-1]]
        return tuple(
            Point(plain(self.peak[i]), plain(self.work[i]), self.segments(i)) for i in order[first].tolist()
        )


def every_cut(chain: Chain) -> Cuts:
    """List every plan of segments of a short chain with its peak and its work.

    A chain of values has 2^(n−1) of them. A chain of tapes has more, since each stage may also be kept
    taped in the first forward.

    Raises:
        ValueError: if the chain is too long to list (over 20 stages with values, 14 with tapes); use
            ``frontier`` there.

    >>> from remat.chain import chain_of
    >>> cuts = every_cut(chain_of([1] * 16))
    >>> len(cuts), [(point.peak, point.work) for point in cuts.frontier[:3]]
    (32768, [(8, 10), (9, 9), (10, 8)])
    """
    n, most = len(chain), 14 if chain.needs == "tape" else 20
    if n > most:
        raise ValueError(
            f"chain must have at most {most} stages to list every cut, got {n}; frontier() has no such limit"
        )
    costs = SegmentCosts(chain)
    # Plans of the suffix after each stage, longest suffix last; peaks relative to what comes before.
    peaks: list[Ints] = [np.zeros(0, np.int64)] * n + [np.zeros(1, np.int64)]
    works: list[Floats] = [np.zeros(0)] * n + [np.zeros(1)]
    codes: list[Ints] = [np.zeros(0, np.int64)] * n + [np.zeros(1, np.int64)]
    for start in range(n - 1, -1, -1):
        own_peak, own_work = costs.replayed(start)
        branches = [
            (end, own_peak[end - start - 1], own_work[end - start - 1], costs.out[start], 1 << (end - 1))
            for end in range(start + 1, n + 1)
        ]
        if costs.tape:
            peak, held = costs.kept(start)
            branches.append(
                (start + 1, np.int64(peak), np.float64(0), np.int64(held), (1 << start) | (1 << (n + start)))
            )
        peaks[start] = np.concatenate(
            [np.maximum(peak, held + peaks[end]) for end, peak, _, held, _ in branches]
        )
        works[start] = np.concatenate([work + works[end] for end, _, work, _, _ in branches])
        codes[start] = np.concatenate([code + codes[end] for end, _, _, _, code in branches])
    return Cuts(chain, peak=peaks[0].astype(np.float64) * float(costs.quantum), work=works[0], codes=codes[0])
