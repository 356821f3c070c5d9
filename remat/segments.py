"""A chain cut into segments: from the cuts to a plan, and what each segment costs, all at once.

A plan of segments recomputes each stage at most once. During the first forward a segment leaves its input
(a checkpoint) or, if it is *kept*, all that its backward needs. The backward takes the segments from the
last to the first and replays those that were not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import pairwise
from math import gcd, lcm

import numpy as np
import numpy.typing as npt

from remat import _check
from remat.chain import Action, Backward, Chain, Drop, Forward, Keep, Output

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive stages that are treated alike.

    Attributes:
        length: how many stages.
        kept: whether the first forward leaves all that backward needs, so that nothing is replayed.
    """

    length: int
    kept: bool = False


def as_segments(
    chain: Chain, lengths: Iterable[int | Segment], *, keep_last: bool = False
) -> tuple[Segment, ...]:
    """Check lengths (or ready segments) against a chain and return them as segments.

    Raises:
        ValueError: if a length is not a positive whole number or they do not add up to the chain.
    """
    if not isinstance(lengths, Iterable):
        raise ValueError(f"lengths must be a list of whole numbers or segments, got {lengths!r}")
    segments = [
        item if isinstance(item, Segment) else Segment(_check.count("a segment's length", item))
        for item in lengths
    ]
    total = sum(_check.count("a segment's length", segment.length) for segment in segments)
    if total != len(chain):
        raise ValueError(f"lengths must add up to the {len(chain)} stages of the chain, got {total}")
    if keep_last:
        segments[-1] = Segment(segments[-1].length, kept=True)
    return tuple(segments)


def segment_actions(chain: Chain, segments: Sequence[Segment]) -> Iterator[Action]:
    """Yield the actions of a plan of segments, in order.

    >>> from remat.chain import chain_of
    >>> for action in segment_actions(chain_of([1, 1]), [Segment(2)]):
    ...     print(action)
    Forward(stage=1, keep='nothing')
    Forward(stage=2, keep='output')
    Forward(stage=1, keep='output')
    Backward(stage=2)
    Backward(stage=1)
    """
    tape = chain.needs == "tape"
    everything: Keep = "tape" if tape else "output"
    ends = np.cumsum([0] + [segment.length for segment in segments]).tolist()
    for (start, end), segment in zip(pairwise(ends), segments, strict=True):
        for i in range(start + 1, end + 1):
            yield Forward(i, everything if segment.kept else "output" if i == end else "nothing")
    for (start, end), segment in zip(reversed(list(pairwise(ends))), reversed(segments), strict=True):
        if not segment.kept:
            if tape:
                yield Drop(Output(end))  # the taping forward makes it again
            for i in range(start + 1, end + tape):
                yield Forward(i, everything)
        for i in range(end, start, -1):
            yield Backward(i)


def marks(segments: Sequence[Segment]) -> tuple[Bools, Bools]:
    """Tell for each stage whether a segment ends there and whether it is kept; kept stages each end one."""
    last, kept = np.zeros((2, sum(segment.length for segment in segments)), dtype=bool)
    end = 0
    for segment in segments:
        start, end = end, end + segment.length
        kept[start:end] = segment.kept
        last[start if segment.kept else end - 1 : end] = True
    return last, kept


_segment = cache(Segment)


def from_marks(last: Bools, kept: Bools) -> tuple[Segment, ...]:
    """Read segments back from marks; stages kept one after the other become one segment.

    >>> from_marks(*marks([Segment(2), Segment(1, kept=True), Segment(1, kept=True)]))
    (Segment(length=2, kept=False), Segment(length=2, kept=True))
    """
    inside = np.zeros_like(kept)
    inside[:-1] = kept[:-1] & kept[1:]
    ends = np.flatnonzero(last & ~inside)
    lengths = np.diff(ends, prepend=-1)
    return tuple(map(_segment, lengths.tolist(), kept[ends].tolist()))


class SegmentCosts:
    """What each possible segment of a chain needs and costs, as arrays over its last stage.

    Sizes are whole multiples of ``quantum`` bytes: their largest common measure, or if that is too small for
    64-bit sums, 1 part in 2^50 of the whole chain, to which each is then rounded up. Peaks are relative to
    what earlier segments hold.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.tape = chain.needs == "tape"
        stages = chain.stages
        columns = [
            [chain.input, *(stage.out for stage in stages)],
            [0, *(stage.saved if self.tape else 0 for stage in stages)],
            [0, *(stage.scratch_forward for stage in stages)],
            # What a forward needs that leaves all that backward reads: replayed, or kept from the first.
            [0, *((stage.scratch_taping or 0) if self.tape else stage.scratch_forward for stage in stages)],
            [0, *(stage.scratch_backward for stage in stages)],
            [0] * len(stages) + [chain.scratch_loss],  # after the first forward of the last stage
        ]
        # Numbers above a common denominator: exact, and faster than fractions.
        ratios = [[size.as_integer_ratio() for size in column] for column in columns]
        parts = lcm(*(below for column in ratios for _, below in column))
        sizes = [[above * (parts // below) for above, below in column] for column in ratios]
        total, common = sum(map(sum, sizes)), gcd(*(size for column in sizes for size in column)) or 1
        self.exact = total <= 2**50 * common
        if self.exact:
            self.quantum = Fraction(common, parts)
            quanta = [[size // common for size in column] for column in sizes]
        else:
            self.quantum = Fraction(total, parts * 2**50)
            quanta = [[-(-size * 2**50 // total) for size in column] for column in sizes]
        self.out, self.saved, forward, self.scratch_replay, self.scratch_backward, loss = np.array(
            quanta, dtype=np.int64
        )
        # The first forward of a stage, if it keeps nothing but its output, or all that backward reads.
        self.scratch_first = np.maximum(forward, loss)
        self.scratch_kept = np.maximum(self.scratch_replay, loss)
        self.forward_s: Floats = np.array([0.0, *(stage.forward_s for stage in stages)])
        self.made: Ints = np.cumsum(self.out + self.saved)  # by the first stages together

    def __len__(self) -> int:
        return len(self.chain)

    @property
    def error(self) -> int:
        """The most quanta by which rounding may raise a peak: less than one for each size that it adds up."""
        return 0 if self.exact else 4 * len(self) + 4

    def quanta(self, bytes: float) -> int:
        """Return the most quanta that ``to_bytes`` turns into no more than so many bytes."""
        units = int(Fraction(bytes) / self.quantum)
        return units + (self.to_bytes(units + 1) <= bytes)  # a float may be the rounded sum of one more

    def to_bytes(self, units: int) -> float:
        """Turn a number of quanta into bytes."""
        value = int(units) * self.quantum
        return int(value) if value.denominator == 1 else float(value)

    @cached_property
    def sweep(self) -> Ints:
        """Per stage: what a forward that keeps nothing needs, input and output included, in quanta."""
        sweep: Ints = self.out[:-1] + self.out[1:] + self.scratch_first[1:]
        return sweep

    def replayed(self, start: int, end: int | None = None) -> tuple[Ints, Floats]:
        """Return the peak and the work of replayed segments of stages start+1 … j, for each j up to end.

        The peak counts the segment's own input, and what its forward, replay and backward add to it.
        """
        end = len(self) if end is None else end
        inside = slice(start + 1, end + 1)
        out, gradient = self.out[inside], self.out[inside]
        grown = self.made[inside] - self.made[start]
        # Backward(m): everything up to m, the gradient of m, scratch.
        peak = np.maximum.accumulate(grown + gradient + self.scratch_backward[inside])
        # Replaying m while the gradient of the last output waits; values keep that output too and skip its
        # forward, a tape is made for the last stage as for the others.
        replay = np.maximum.accumulate(grown + self.scratch_replay[inside])
        if self.tape:
            np.maximum(peak, replay + gradient, out=peak)
        else:
            np.maximum(peak[1:], replay[:-1] + out[1:] + gradient[1:], out=peak[1:])
        # The first forward through m. The segment's input is counted below, so not again where m reads it.
        sweep = self.sweep[start:end].copy()
        sweep[0] -= self.out[start]
        np.maximum(peak, np.maximum.accumulate(sweep), out=peak)
        again = self.forward_s[inside]
        if not self.tape:  # all but the last of a segment
            again = np.concatenate(([0.0], again[:-1]))
        return peak + self.out[start], np.cumsum(again)

    def kept(self, start: int) -> tuple[int, int]:
        """Return the peak of stage start+1 if it is kept, and what it holds until its backward."""
        m = start + 1
        held = int(self.out[start] + self.saved[m])
        backward = self.out[m] + self.scratch_backward[m]
        return int(held + self.out[m] + max(self.scratch_kept[m], backward)), held

    def claim(self, segments: Sequence[Segment]) -> tuple[float, float]:
        """Return the peak (bytes) and the work (seconds) of a plan; the replay must count the same."""
        return self.claim_marks(*marks(segments))

    def claim_marks(self, last: Bools, kept: Bools) -> tuple[float, float]:
        """Do as ``claim``, told for each stage whether a segment ends there and whether it is kept."""
        ends = np.flatnonzero(last) + 1
        starts = np.concatenate(([0], ends[:-1]))
        of: Ints = np.cumsum(last) - last  # the segment of each stage
        out, gradient, again = self.out[1:], self.out[1:], ~kept

        grown = self.made[1:] - self.made[starts][of]
        peak = grown + gradient + self.scratch_backward[1:]
        forward = grown + np.where(kept, self.scratch_kept[1:], self.scratch_replay[1:])
        waiting = out[ends - 1][of] * (1 if self.tape else 2)
        replays = again if self.tape else again & ~last
        np.maximum(peak, forward + np.where(replays, waiting, 0), out=peak, where=replays | ~again)
        sweep = self.sweep.copy()
        sweep[starts] -= self.out[starts]  # counted below
        np.maximum(peak, sweep, out=peak, where=again)  # a kept stage has no forward but its own

        held = self.out[starts] + np.where(kept, self.saved[1:], 0)[ends - 1]
        before = np.cumsum(held) - held
        work = self.forward_s[1:][replays].sum()
        peak += (before + self.out[starts])[of]
        return self.to_bytes(peak.max()), float(work)
