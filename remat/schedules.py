"""Planners for chains: each takes a chain and returns a plan that replay can judge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from remat import _check
from remat.chain import Action, Backward, Chain, Drop, Forward, Output
from remat.replay import replay
from remat.segments import Segment, as_segments, segment_actions


@dataclass(frozen=True)
class Schedule:
    """A plan with a name: an iterable of actions.

    Attributes:
        name: how tables and figures call it.
        actions: the plan itself.
        segments: the segments it was built from, empty if it recomputes a stage more than once.
    """

    name: str
    actions: tuple[Action, ...] = field(repr=False)
    segments: tuple[Segment, ...] = ()

    def __iter__(self) -> Iterator[Action]:
        return iter(self.actions)

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def lengths(self) -> list[int]:
        """The lengths of the segments."""
        return [segment.length for segment in self.segments]


def segmented(
    chain: Chain, lengths: Iterable[int | Segment], *, keep_last: bool = False, name: str = ""
) -> Schedule:
    """Cut a chain into segments of given lengths.

    Args:
        chain: the description.
        lengths: how many stages each segment has, or ready ``Segment`` objects, first to last.
        keep_last: whether the first forward keeps all that the last segment's backward needs, so that it is
            not replayed (as ``torch.utils.checkpoint.checkpoint_sequential`` does).
        name: the plan's name; the lengths if left out.

    Raises:
        ValueError: if the lengths do not add up to the chain.

    Source: Chen et al. 2016, algorithm 1.

    >>> from remat.chain import chain_of
    >>> line = chain_of([1] * 16)
    >>> print(replay(line, segmented(line, [1, 5, 4, 3, 2, 1])))
    peak 8, 10 stages recomputed at a cost of 10
    """
    segments = as_segments(chain, lengths, keep_last=keep_last)
    name = name or str([segment.length for segment in segments])
    return Schedule(name, tuple(segment_actions(chain, segments)), segments)


def store_all(chain: Chain) -> Schedule:
    """Keep everything, recompute nothing.

    >>> from remat.chain import chain_of
    >>> line = chain_of([1] * 1024)
    >>> print(replay(line, store_all(line)))
    peak 1026, 0 stages recomputed at a cost of 0
    """
    return segmented(chain, [Segment(len(chain), kept=True)], name="store all")


def uniform(chain: Chain, k: int, *, keep_last: bool = False) -> Schedule:
    """Keep a checkpoint every k stages; the last segment is shorter where k does not divide n.

    Raises:
        ValueError: if k is not from 1 to n.

    Source: Chen et al. 2016, algorithm 1 and section 4.1.

    >>> from remat.chain import chain_of
    >>> line = chain_of([1] * 1024)
    >>> print(replay(line, uniform(line, 32)))
    peak 65, 992 stages recomputed at a cost of 992
    """
    n = len(chain)
    k = _check.count("k", k, most=n)
    lengths = [k] * (n // k) + ([n % k] if n % k else [])
    return segmented(chain, lengths, keep_last=keep_last, name=f"every {k}")


def sequential(chain: Chain, segments: int) -> Schedule:
    """Cut as PyTorch's ``checkpoint_sequential`` does: equal segments, the rest in the last, which is kept.

    Raises:
        ValueError: if segments is not from 1 to n.

    Source: PyTorch 2.13, torch/utils/checkpoint.py.

    >>> from remat.chain import chain_of
    >>> sequential(chain_of([1] * 9), 5).lengths
    [1, 1, 1, 1, 5]
    """
    n = len(chain)
    segments = _check.count("segments", segments, most=n)
    size = n // segments
    lengths = [size] * (segments - 1)
    return segmented(
        chain,
        [*lengths, n - sum(lengths)],
        keep_last=True,
        name=f"checkpoint_sequential, {segments} segments",
    )


def recursive(chain: Chain, k: int) -> Schedule:
    """Cut into k + 1 equal parts, and each part again, down to single stages.

    The first forward runs through all stages and leaves the first k checkpoints; each replay runs only as
    far as the last checkpoint of its part. A stage is recomputed about once a level.

    Raises:
        ValueError: if k is not a positive whole number.

    Source: Chen et al. 2016, section 4.4.

    >>> from remat.chain import chain_of
    >>> line = chain_of([1] * 1024)
    >>> counted = replay(line, recursive(line, 1))
    >>> counted.peak, counted.forwards / 1024
    (13, 5.5)
    """
    k = _check.count("k", k)
    tape = chain.needs == "tape"

    def cuts(start: int, end: int) -> list[int]:
        inner = (start + round((end - start) * q / (k + 1)) for q in range(1, k + 1))
        return [cut for cut in dict.fromkeys(inner) if start < cut < end]

    def forwards(start: int, end: int, checkpoints: list[int]) -> Iterator[Action]:
        for i in range(start + 1, end + 1):
            yield Forward(i, "output" if i in checkpoints else "nothing")

    def backwards(start: int, end: int, marks: list[int]) -> Iterator[Action]:
        """Differentiate stages start+1 … end, with the outputs at start, at marks and at end there."""
        if end - start == 1:
            if tape:
                yield Drop(Output(end))
                yield Forward(end, "tape")
            yield Backward(end)
            return
        for low, high in reversed(list(zip([start, *marks], [*marks, end], strict=True))):
            inner = cuts(low, high)
            if inner:
                yield from forwards(low, inner[-1], inner)
            yield from backwards(low, high, inner)

    n = len(chain)
    top = cuts(0, n)
    actions = (*forwards(0, n, [*top, n]), *backwards(0, n, top))
    return Schedule(f"recursive, k = {k}", actions)


def greedy(chain: Chain, threshold: float) -> Schedule:
    """Cut after each output that takes the running sum of sizes over a threshold.

    Args:
        chain: the description.
        threshold: bytes, the B of the paper: what a segment may hold before it is cut.

    Raises:
        ValueError: if threshold is negative or not finite.

    Source: Chen et al. 2016, algorithm 3.

    >>> from remat.chain import chain_of
    >>> uneven = chain_of([1, 4] * 8, costs=[4, 1] * 8)
    >>> print(replay(uneven, greedy(uneven, 2)))
    peak 38, 8 stages recomputed at a cost of 32
    """
    threshold = _check.amount("threshold", threshold)
    lengths, held, length = [], 0.0, 0
    for stage in chain.stages:
        held, length = held + stage.out, length + 1
        if held > threshold:
            lengths.append(length)
            held, length = 0.0, 0
    if length:
        lengths.append(length)
    return segmented(chain, lengths, name=f"greedy, B = {threshold:g}")


def greedy_within(chain: Chain, budget: float) -> Schedule:
    """Search the greedy's threshold for the least work within a memory budget.

    The thresholds tried are the running sums of the sizes, evenly thinned out to about 200.

    Args:
        chain: the description.
        budget: bytes.

    Raises:
        ValueError: if no threshold tried stays within the budget; the message says the least peak found.

    Source: Chen et al. 2016, section 4.2 (the search over B).

    >>> from remat.chain import chain_of
    >>> uneven = chain_of([1, 4] * 8, costs=[4, 1] * 8)
    >>> print(replay(uneven, greedy_within(uneven, 27)))
    peak 20, 10 stages recomputed at a cost of 25
    """
    budget = _check.amount("budget", budget)
    sums, total = [0.0], 0.0
    for stage in chain.stages:
        total += stage.out
        sums.append(total)
    tried = []
    for threshold in sums[:: max(1, len(sums) // 200)]:
        schedule = greedy(chain, threshold)
        counted = replay(chain, schedule)
        tried.append((counted.work, counted.peak, schedule))
    within = [entry for entry in tried if entry[1] <= budget]
    if not within:
        least = min(peak for _, peak, _ in tried)
        raise ValueError(
            f"budget must be at least {least} bytes for the greedy cuts of this chain, got {budget}"
        )
    return min(within, key=lambda entry: entry[:2])[2]
