"""Planners that use the link: move what a stage keeps to the host and fetch it before its backward.

How far a planner looks ahead is its own affair: the plan says when each copy is issued, and the clock of
``replay`` says who waits for whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np

from remat import _check
from remat.chain import Action, Backward, Chain, Drop, Fetch, Forward, Keep, Offload, Output, Tape
from remat.schedules import Schedule
from remat.segments import Segment, as_segments


def offload_all(chain: Chain, *, buffers: int = 2) -> Schedule:
    """Keep nothing on the device but the last few stages: copy each stage's input and tape out and back.

    A stage may start once the copy of the stage ``buffers`` before it is out; on the way back, a stage is
    fetched as soon as the backward ``buffers`` after it has made room. The last stages never leave.

    Args:
        chain: the description.
        buffers: how many stages the device holds at once; 1 does not overlap copies with compute.

    Raises:
        ValueError: if buffers is not a positive whole number.

    Source: the two-stream schedule of vDNN (Rhu et al. 2016), with a fixed number of buffers.

    >>> from remat.chain import chain_of
    >>> from remat.hardware import Link
    >>> from remat.replay import replay
    >>> line = chain_of([1] * 12, saved=3, needs="tape")
    >>> for bandwidth in (1, 4):
    ...     counted = replay(line, offload_all(line), link=Link("a wire", bandwidth, bandwidth, "an example"))
    ...     print(counted.peak, counted.host_peak, counted.stall_s)
    11 39 48
    11 39 0.0
    """
    n, buffers = len(chain), _check.count("buffers", buffers)

    def left_by(i: int) -> tuple[Output | Tape, ...]:
        """What backward of stage i needs and nobody before it; the chain's input stays."""
        tape = (Tape(i),) if chain.needs == "tape" else ()
        return (*tape, Output(i - 1)) if i > 1 else tape

    def actions() -> Iterator[Action]:
        everything: Keep = "tape" if chain.needs == "tape" else "output"
        for i in range(1, n + 1):
            if i > buffers:
                yield from map(Drop, left_by(i - buffers))
            yield Forward(i, everything)
            if i <= n - buffers:
                yield from map(Offload, left_by(i))
        for i in range(n, 0, -1):
            ahead = i - buffers + 1
            if 1 <= ahead <= n - buffers:
                yield from map(Fetch, left_by(ahead))
            yield Backward(i)

    return Schedule(f"offload all, {buffers} buffers", tuple(actions()))


def offload_checkpoints(chain: Chain, lengths: Iterable[int] | None = None, *, buffers: int = 2) -> Schedule:
    """Keep checkpoints only, and those on the host: recompute every segment from a fetched checkpoint.

    A checkpoint, the input of a segment, leaves as soon as it is made, and a segment may start once there is
    room for the checkpoint that it makes. On the way back, a checkpoint is fetched as soon as a backward has
    made room. The last checkpoints never leave.

    Args:
        chain: the description.
        lengths: of the segments, first to last; segments of one stage if left out.
        buffers: how many checkpoints the device holds at once; with 1 none is fetched ahead of its segment,
            though a first forward holds two all the same, the one that it reads and the one that it makes.

    Raises:
        ValueError: if the lengths do not add up to the chain, or buffers is not a positive whole number.

    Source: Rajbhandari et al. 2021 (ZeRO-Infinity), section 5.1: CPU offload of activation checkpoints.

    >>> from remat.chain import chain_of
    >>> from remat.hardware import Link
    >>> from remat.replay import replay
    >>> line = chain_of([1] * 12, saved=3, needs="tape")
    >>> print(replay(line, offload_checkpoints(line), link=Link("a wire", 1, 1, "an example")))
    peak 8, 12 stages recomputed at a cost of 12
    """
    buffers = _check.count("buffers", buffers)
    lengths = [1] * len(chain) if lengths is None else lengths
    segments: tuple[Segment, ...] = as_segments(chain, lengths)
    ends = np.cumsum([0] + [segment.length for segment in segments]).tolist()
    bounds = list(pairwise(ends))
    tape = chain.needs == "tape"

    # How many segments after the one that read it a checkpoint makes room; none can before it was read.
    behind = max(1, buffers - 1)

    def leaves(q: int) -> bool:
        """Tell whether the input of segment q, counted from 0, goes to the host; the chain's input stays."""
        return 1 <= q < len(bounds) - behind

    def actions() -> Iterator[Action]:
        for q, (start, end) in enumerate(bounds):
            if leaves(q - behind):
                yield Drop(Output(ends[q - behind]))
            for i in range(start + 1, end + 1):
                yield Forward(i, "output" if i == end else "nothing")
            if leaves(q + 1):
                yield Offload(Output(end))
        for q, (start, end) in reversed(list(enumerate(bounds))):
            if leaves(q - buffers + 1):
                yield Fetch(Output(ends[q - buffers + 1]))
            if tape:
                yield Drop(Output(end))
            for i in range(start + 1, end + tape):
                yield Forward(i, "tape" if tape else "output")
            for i in range(end, start, -1):
                yield Backward(i)

    return Schedule(f"offload checkpoints, {buffers} buffers", tuple(actions()))
