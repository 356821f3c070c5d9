import pytest
from hypothesis import given, settings

from naive import pareto, segment_plans
from remat.chain import Chain, chain_of
from remat.cuts import every_cut
from remat.replay import replay
from remat.schedules import segmented
from remat.segments import Segment
from strategies import MODELS, chains

UNEVEN = chain_of([1, 4] * 8, costs=[4, 1] * 8)


@given(chains(most=6))
@settings(max_examples=40)
def test_every_plan_is_listed_once_with_what_replay_counts(chain: Chain) -> None:
    cuts = every_cut(chain)
    listed = {cuts.segments(i): (cuts.peak[i], cuts.work[i]) for i in range(len(cuts))}
    assert len(listed) == len(cuts)
    counted = {}
    for plan in segment_plans(len(chain), tape=chain.needs == "tape"):
        found = replay(chain, segmented(chain, plan))
        counted[plan] = (found.peak, found.work)
    assert listed == counted
    assert [(point.peak, point.work) for point in cuts.frontier] == pareto(counted.values())
    for point in cuts.frontier:
        assert counted[point.segments] == (point.peak, point.work)


def test_all_cuts_of_sixteen_even_layers() -> None:
    cuts = every_cut(chain_of([1] * 16))
    assert len(cuts) == 2**15
    assert cuts.peak.min() == 8
    assert cuts.work[cuts.peak == 8].min() == 10
    ties = ((cuts.peak == 8) & (cuts.work == 10)).nonzero()[0]
    assert len(ties) == 71
    assert [1, 5, 4, 3, 2, 1] in [[segment.length for segment in cuts.segments(i)] for i in ties]
    assert cuts.work[cuts.peak <= 9].min() == 9
    expected = [
        (8, 10),
        (9, 9),
        (10, 8),
        (11, 7),
        (12, 6),
        (13, 5),
        (14, 4),
        (15, 3),
        (16, 2),
        (17, 1),
        (18, 0),
    ]
    assert [(point.peak, point.work) for point in cuts.frontier] == expected


def test_all_cuts_of_sixteen_uneven_layers() -> None:
    cuts = every_cut(UNEVEN)
    assert [(point.peak, point.work) for point in cuts.frontier] == [
        (15, 15), (16, 11), (17, 7), (21, 6), (25, 5), (29, 4), (33, 3), (37, 2), (41, 1), (45, 0),
    ]  # fmt: skip
    within = cuts.peak <= 27
    assert cuts.work[within].min() == 5
    assert cuts.peak[within & (cuts.work == 5)].min() == 25
    modest = cuts.work <= 36
    assert cuts.peak[modest].min() == 15
    assert cuts.work[modest & (cuts.peak == 15)].min() == 15


def test_a_kept_stage_is_read_back_from_its_code() -> None:
    cuts = every_cut(chain_of([1, 1], needs="tape"))
    assert {cuts.segments(i) for i in range(len(cuts))} == {
        (Segment(2),),
        (Segment(1), Segment(1)),
        (Segment(1, kept=True), Segment(1)),
        (Segment(1), Segment(1, kept=True)),
        (Segment(1, kept=True), Segment(1, kept=True)),
    }


@pytest.mark.parametrize(("needs", "most"), list(zip(MODELS, (20, 14), strict=True)))
def test_a_long_chain_is_refused(needs: str, most: int) -> None:
    with pytest.raises(ValueError, match=f"chain must have at most {most} stages .* got {most + 1}"):
        every_cut(chain_of([1] * (most + 1), needs=needs))  # type: ignore[arg-type]
