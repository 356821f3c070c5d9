import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naive import naive_replay
from remat.chain import Chain, chain_of
from remat.replay import replay
from remat.segments import Segment, SegmentCosts, as_segments, from_marks, marks, segment_actions
from strategies import MODELS, chains, lengths, real


@st.composite
def segments_of(draw: st.DrawFn, chain: Chain) -> tuple[Segment, ...]:
    return tuple(Segment(length, kept=draw(st.booleans())) for length in draw(lengths(len(chain))))


@given(st.data())
@settings(max_examples=100)
def test_what_segments_are_claimed_to_cost_is_what_both_replays_count(data: st.DataObject) -> None:
    chain = data.draw(chains(most=7))
    segments = data.draw(segments_of(chain))
    peak, work = SegmentCosts(chain).claim(segments)
    counted = replay(chain, segment_actions(chain, segments))
    assert (peak, work) == (counted.peak, counted.work)
    naive = naive_replay(chain, segment_actions(chain, segments))
    assert (peak, work) == (naive.peak, naive.work)


@given(st.data())
@settings(max_examples=60)
def test_a_claim_on_real_sizes_is_rounded_up_and_by_next_to_nothing(data: st.DataObject) -> None:
    chain = data.draw(chains(most=30, number=real | st.sampled_from([1e-9, 1e9, 0.1])))
    segments = data.draw(segments_of(chain))
    peak, work = SegmentCosts(chain).claim(segments)
    counted = replay(chain, segment_actions(chain, segments))
    whole = (
        chain.input
        + chain.scratch_loss
        + sum(
            s.out + s.saved + s.scratch_forward + (s.scratch_taping or 0) + s.scratch_backward
            for s in chain.stages
        )
    )
    assert counted.peak * (1 - 2**-52) <= peak <= counted.peak + whole * 2**-40
    assert math.isclose(work, counted.work, rel_tol=1e-12)


@pytest.mark.parametrize("needs", MODELS)
@pytest.mark.parametrize("factor", [2**40, 10**15, 10**30, 2**61 - 1])
def test_sizes_near_and_beyond_64_bits_do_not_overflow(needs: str, factor: int) -> None:
    chain = chain_of([3 * factor, 5 * factor + 1, 7 * factor], saved=[factor] * 3, needs=needs)  # type: ignore[arg-type]
    segments = as_segments(chain, [1, 2])
    peak, _ = SegmentCosts(chain).claim(segments)
    assert math.isclose(peak, replay(chain, segment_actions(chain, segments)).peak, rel_tol=1e-9)


@given(st.data())
def test_a_plan_of_segments_recomputes_each_stage_at_most_once(data: st.DataObject) -> None:
    chain = data.draw(chains())
    segments = data.draw(segments_of(chain))
    counted = replay(chain, segment_actions(chain, segments))
    replayed = [segment.length - (chain.needs == "values") for segment in segments if not segment.kept]
    assert counted.recomputed == sum(replayed)
    assert counted.forwards == len(chain) + counted.recomputed


@given(chains())
def test_keeping_is_a_matter_of_single_stages(chain: Chain) -> None:
    n = len(chain)
    together = list(segment_actions(chain, [Segment(n, kept=True)]))
    one_by_one = list(segment_actions(chain, [Segment(1, kept=True)] * n))
    assert together == one_by_one
    if chain.needs == "values":  # a segment of one has nothing to replay
        assert together == list(segment_actions(chain, [Segment(1)] * n))


@given(st.data())
def test_marks_tell_all_that_segments_tell(data: st.DataObject) -> None:
    chain = data.draw(chains())
    segments = data.draw(segments_of(chain))
    last, kept = marks(segments)
    assert len(last) == len(kept) == len(chain)
    again = from_marks(last, kept)
    assert list(segment_actions(chain, again)) == list(segment_actions(chain, segments))
    assert not any(before.kept and after.kept for before, after in pairwise(again))


def test_lengths_become_segments() -> None:
    chain = chain_of([1] * 5)
    assert as_segments(chain, [2, Segment(3, kept=True)]) == (Segment(2), Segment(3, kept=True))
    assert as_segments(chain, [2, 3], keep_last=True) == (Segment(2), Segment(3, kept=True))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([2, 2], "lengths must add up to the 5 stages of the chain, got 4"),
        ([], "lengths must add up to the 5 stages of the chain, got 0"),
        ([5, 1], "lengths must add up to the 5 stages of the chain, got 6"),
        ([5, 0], "a segment's length must be a whole number at least 1, got 0"),
        ([6, -1], "a segment's length must be a whole number at least 1, got -1"),
        ([2.0, 3.0], "a segment's length must be a whole number at least 1, got 2.0"),
        ([True, 4], "a segment's length must be a whole number at least 1, got True"),
        ([Segment(6), Segment(-1)], "a segment's length must be a whole number at least 1, got -1"),
        ("5", "a segment's length must be a whole number at least 1, got '5'"),
        (5, "lengths must be a list of whole numbers or segments, got 5"),
        (None, "lengths must be a list of whole numbers or segments, got None"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_segments(chain_of([1] * 5), lengths)  # type: ignore[arg-type]
