import math
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naive import pareto, segment_plans
from remat.chain import Chain, Stage, chain_of
from remat.cuts import every_cut
from remat.frontier import Frontier, Point, best, frontier, work_bounds
from remat.frontier import pareto as pareto_points
from remat.replay import replay
from remat.schedules import segmented, sequential, store_all, uniform
from remat.segments import Segment, SegmentCosts
from strategies import MODELS, chains, real

ROUND = 1 + 2**-40  # what sizes without a common measure may be rounded up by
# Sizes that no grid of a few slots fits: real ones, and large whole ones.
awkward = st.floats(0, 10, allow_subnormal=False) | st.integers(0, 10**6) | st.sampled_from([0, 1, 0.1])


def by_brute_force(chain: Chain) -> list[tuple[float, float]]:
    """Peak and work of every plan of segments, replayed one by one."""
    found = []
    for plan in segment_plans(len(chain), tape=chain.needs == "tape"):
        counted = replay(chain, segmented(chain, plan))
        found.append((counted.peak, counted.work))
    return found


def least_work(plans: list[tuple[float, float]], budget: float) -> float:
    return min((work for peak, work in plans if peak <= budget), default=math.inf)


def pairs(found: Frontier) -> list[tuple[float, float]]:
    return [(point.peak, point.work) for point in found.points]


# --- exact: dynamic programming is brute force ------------------------------------------------------------


@given(chains(most=6))
@settings(max_examples=60)
def test_the_frontier_is_that_of_all_plans_replayed(chain: Chain) -> None:
    found = frontier(chain)
    assert found.exact
    assert pairs(found) == pareto(by_brute_force(chain))


@given(chains(most=5, number=st.integers(0, 200) | st.integers(0, 2)))
@settings(max_examples=50)
def test_hundreds_of_budgets_are_exact_too(chain: Chain) -> None:
    found = frontier(chain, slots=10**4)
    assert found.exact
    assert pairs(found) == pareto(by_brute_force(chain))


@given(chains(most=5), st.integers(1, 5))
@settings(max_examples=40)
def test_the_frontier_does_not_depend_on_how_many_budgets_are_treated_at_once(
    chain: Chain, block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remat.dynamic._BLOCK", block)
        assert pairs(frontier(chain)) == pareto(by_brute_force(chain))


def test_stages_that_cost_nothing_are_still_replayed_to_save_memory() -> None:
    stages = (Stage(1, scratch_backward=200, forward_s=0), *[Stage(1, saved=110, forward_s=0)] * 2)
    chain = Chain(stages, needs="tape")
    assert pairs(frontier(chain)) == pareto(by_brute_force(chain))


@given(chains(most=10))
@settings(max_examples=40)
def test_the_frontier_of_longer_chains_is_that_of_all_cuts(chain: Chain) -> None:
    found = frontier(chain, slots=2000)
    assert found.exact
    assert pairs(found) == [(point.peak, point.work) for point in every_cut(chain).frontier]


@given(chains(most=6), st.sampled_from([10**9, 2**20, 0.125, 3]))
@settings(max_examples=40)
def test_sizes_with_a_common_measure_are_treated_exactly(chain: Chain, unit: float) -> None:
    def scaled(stage: Stage) -> Stage:
        return Stage(
            unit * stage.out, unit * stage.saved, unit * stage.scratch_forward, unit * stage.scratch_backward,
            stage.forward_s, stage.backward_s, unit * (stage.scratch_taping or 0),
        )  # fmt: skip

    large = Chain(
        tuple(map(scaled, chain.stages)),
        input=unit * chain.input,
        needs=chain.needs,
        scratch_loss=unit * chain.scratch_loss,
    )
    found = frontier(large)
    assert found.exact
    assert pairs(found) == [(unit * peak, work) for peak, work in pairs(frontier(chain))]


@given(chains(most=5), st.data())
@settings(max_examples=60)
def test_a_budget_gives_the_part_of_the_frontier_below_it(chain: Chain, data: st.DataObject) -> None:
    plans = by_brute_force(chain)
    least = min(peak for peak, _ in plans)
    budget = data.draw(st.integers(0, int(max(peak for peak, _ in plans)) + 2) | st.floats(0, 60))
    if budget < least:
        for plan in (lambda: frontier(chain, budget=budget), lambda: frontier(chain).best(budget)):
            with pytest.raises(ValueError, match=f"budget must be at least {least} bytes.* got {budget}"):
                plan()
        return
    expected = [(peak, work) for peak, work in pareto(plans) if peak <= budget]
    assert pairs(frontier(chain, budget=budget)) == expected
    for schedule in (best(chain, budget), frontier(chain).best(budget)):
        counted = replay(chain, schedule)
        assert (counted.peak, counted.work) == expected[-1]
    assert work_bounds(chain, budget) == (expected[-1][1], expected[-1][1])


def test_the_two_chains_of_sixteen() -> None:
    even = frontier(chain_of([1] * 16))
    assert pairs(even) == [(8 + i, 10 - i) for i in range(11)]
    uneven = frontier(chain_of([1, 4] * 8, costs=[4, 1] * 8))
    assert pairs(uneven) == [
        (15, 15), (16, 11), (17, 7), (21, 6), (25, 5), (29, 4), (33, 3), (37, 2), (41, 1), (45, 0),
    ]  # fmt: skip
    assert (uneven.within(27).peak, uneven.within(27).work) == (25, 5)


# --- on a grid --------------------------------------------------------------------------------------------


@given(chains(most=5, number=awkward), st.sampled_from([1, 2, 3, 5, 10, 30, 100, 1000]), st.data())
@settings(max_examples=100)
def test_on_a_grid_a_budget_is_kept_and_the_bounds_hold(
    chain: Chain, slots: int, data: st.DataObject
) -> None:
    plans = by_brute_force(chain)
    peaks = sorted({peak for peak, _ in plans})
    budget = data.draw(st.sampled_from(peaks).map(lambda peak: peak * ROUND) | st.floats(0, 2 * peaks[-1]))
    optimum = least_work(plans, budget)
    try:
        schedule = best(chain, budget, slots=slots)
    except ValueError as error:
        # Refused: nothing fits, or nothing was found on this grid. The budget named is one that does.
        found = re.search(r"budget must be at least (\S+) bytes", str(error))
        assert found is not None
        assert float(found[1]) > budget
        assert float(found[1]) >= peaks[0]
        counted = replay(chain, best(chain, float(found[1]), slots=slots))
        assert counted.peak <= float(found[1])
        return
    counted = replay(chain, schedule)
    assert counted.peak <= budget
    assert all(point.peak <= budget for point in frontier(chain, budget=budget, slots=slots).points)
    low, high = work_bounds(chain, budget, slots=slots)
    assert low <= optimum * (1 + 2**-50) and optimum <= high * (1 + 2**-50)  # sums of seconds in floats
    assert math.isclose(high, counted.work)


@given(chains(most=5, number=awkward), st.sampled_from([1, 2, 3, 10, 100]))
@settings(max_examples=50)
def test_on_a_grid_points_are_plans_that_fall_and_end_in_storing_everything(chain: Chain, slots: int) -> None:
    found = frontier(chain, slots=slots)
    plans = by_brute_force(chain)
    for low, high in pairwise(found.points):
        assert low.peak < high.peak and low.work > high.work
    for point in found.points:
        counted = replay(chain, point.schedule(chain))
        assert counted.peak <= point.peak * ROUND and point.peak <= counted.peak * ROUND
        assert least_work(plans, point.peak) <= point.work * ROUND
    assert found.points[-1].work == 0
    assert found.points[-1].peak <= replay(chain, store_all(chain)).peak * ROUND
    assert not found.exact or found.slot == SegmentCosts(chain).to_bytes(1)


@pytest.mark.parametrize("needs", MODELS)
def test_a_thousand_slots_lose_little_on_a_chain_that_nobody_could_enumerate(needs: str) -> None:
    random = np.random.default_rng(7)
    sizes, costs, saved = random.uniform(1, 10, (3, 120))
    chain = chain_of(sizes, costs=costs, saved=saved if needs == "tape" else 0, needs=needs)  # type: ignore[arg-type]
    least = frontier(chain).points[0].peak
    for factor in (1.5, 2, 4):
        low, high = work_bounds(chain, factor * least, slots=1000)
        counted = replay(chain, best(chain, factor * least, slots=1000))
        assert counted.peak <= factor * least
        assert low <= high == pytest.approx(counted.work)
        assert high <= 1.1 * low


@pytest.mark.parametrize("kind", [float, int])
@pytest.mark.parametrize("needs", MODELS)
def test_a_coarse_grid_reaches_far_below_what_storing_everything_needs(needs: str, kind: type) -> None:
    """Roundings must not add up along a plan: 300 stages on 60 slots would take 300 slots otherwise."""
    random = np.random.default_rng(3)
    sizes, costs = random.uniform(1000, 10000, (2, 300)).astype(kind).tolist()
    chain = chain_of(sizes, costs=costs, needs=needs)  # type: ignore[arg-type]
    found = frontier(chain, slots=60)
    everything = replay(chain, store_all(chain)).peak
    assert found.points[0].peak < everything / 8  # without leftovers a sixth, or a fifth with tapes
    assert found.points[-1].work == 0
    assert found.points[-2].peak > 0.975 * everything  # and it reaches up to there


@pytest.mark.parametrize("needs", MODELS)
def test_a_budget_that_falls_short_by_one_byte_is_not_rounded_away(needs: str) -> None:
    slot = 2**20
    chain = chain_of([slot] * 8, input=slot + 1, needs=needs)  # type: ignore[arg-type]
    assert replay(chain, store_all(chain)).peak == 10 * slot + 1
    found = frontier(chain, budget=10 * slot, slots=10)
    assert found.points and all(point.peak <= 10 * slot for point in found.points)
    assert found.points[-1].work > 0


def test_a_budget_is_compared_with_peaks_as_they_are_printed() -> None:
    """Three times this size is no float; replay counts the nearest, which is a little less."""
    size = 1.6977625902807083
    chain = chain_of([size], input=size)
    peak = replay(chain, store_all(chain)).peak
    assert best(chain, peak).lengths == [1]
    assert work_bounds(chain, peak, slots=2) == (0, 0)


def test_storing_everything_is_found_on_a_grid_too_coarse_for_it() -> None:
    stages = (Stage(0.1), Stage(8118, saved=8118), Stage(1, scratch_backward=0.1), Stage(0.1, saved=0.1))
    chain = Chain(stages, input=0, needs="tape")
    for slots in range(1, 6):
        point = frontier(chain, slots=slots).points[-1]
        assert (point.work, point.peak) == (0, pytest.approx(replay(chain, store_all(chain)).peak))


def test_a_long_even_chain_is_solved_exactly_and_beats_equal_segments() -> None:
    """Values, unit sizes: lengths that fall by one towards the end need about √(2n), not 2√n."""
    chain = chain_of([1] * 400)
    found = frontier(chain)
    assert found.exact
    # Input, gradient and, behind j checkpoints, p − 2 − j outputs: lengths p − 2, …, 2, 1 fill a peak of p.
    p = next(p for p in range(3, 400) if sum(range(1, p - 1)) >= 400)
    assert p == 30 < replay(chain, segmented(chain, [20] * 20)).peak
    assert found.points[0].peak == p
    assert replay(chain, found.points[0].schedule(chain)).peak == p


# --- points -------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6))))
def test_pareto_keeps_what_nothing_beats(drawn: list[tuple[int, int]]) -> None:
    points = [Point(peak, work, (Segment(1),)) for peak, work in drawn]
    assert [(point.peak, point.work) for point in pareto_points(points)] == pareto(drawn)


def test_whole_numbers_stay_whole() -> None:
    point = frontier(chain_of([10**9] * 4)).points[0]
    assert (type(point.peak), type(point.work)) == (int, int)
    assert type(frontier(chain_of([1] * 4)).slot) is int


# --- bad input ----------------------------------------------------------------------------------------------

EVEN = chain_of([1] * 16)


@pytest.mark.parametrize("slots", [0, -1, 2.0, True, "9", None])
def test_slots_must_be_a_positive_whole_number(slots: object) -> None:
    for plan in (
        lambda: frontier(EVEN, slots=slots),  # type: ignore[arg-type]
        lambda: best(EVEN, 10, slots=slots),  # type: ignore[arg-type]
        lambda: work_bounds(EVEN, 10, slots=slots),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="^slots must be a whole number at least 1, got "):
            plan()


@pytest.mark.parametrize("budget", [-1, math.nan, math.inf, True, "9", [9], 1j])
def test_a_budget_must_be_a_number(budget: object) -> None:
    for plan in (
        lambda: frontier(EVEN, budget=budget),  # type: ignore[arg-type]
        lambda: frontier(EVEN).within(budget),  # type: ignore[arg-type]
        lambda: frontier(EVEN).best(budget),  # type: ignore[arg-type]
        lambda: best(EVEN, budget),  # type: ignore[arg-type]
        lambda: work_bounds(EVEN, budget),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="^budget must be a (finite )?number 0 or more, got "):
            plan()


@pytest.mark.parametrize("budget", [9, 9.0, np.float32(9.5), np.int64(9), np.float64(9)])
def test_a_budget_may_be_any_kind_of_number(budget: float) -> None:
    assert (best(EVEN, budget).lengths, work_bounds(EVEN, budget)) == (best(EVEN, 9).lengths, (9, 9))


def test_a_huge_budget_is_as_good_as_what_storing_everything_needs() -> None:
    for budget in (18, 10**9, 1e300, 10**30):
        assert work_bounds(EVEN, budget) == (0, 0)
        assert replay(EVEN, best(EVEN, budget)).work == 0


@pytest.mark.parametrize("budget", [0, 7, 7.999])
def test_a_budget_below_the_least_peak_is_refused_with_the_least(budget: float) -> None:
    for plan in (
        lambda: frontier(EVEN, budget=budget),
        lambda: frontier(EVEN).best(budget),
        lambda: best(EVEN, budget),
        lambda: work_bounds(EVEN, budget),
    ):
        with pytest.raises(ValueError, match=f"budget must be at least 8 bytes, .* got {budget}"):
            plan()


def test_the_least_peak_is_named_to_the_last_byte() -> None:
    chain = chain_of([1_234_567_891] * 16, input=1_234_567_891)
    with pytest.raises(ValueError, match=f"at least {8 * 1_234_567_891} bytes"):
        best(chain, 8 * 1_234_567_891 - 1)
    assert replay(chain, best(chain, 8 * 1_234_567_891)).peak == 8 * 1_234_567_891


@given(chains(most=3, number=st.sampled_from([0, 0.0, 1])))
def test_empty_tensors_and_free_stages_are_no_trouble(chain: Chain) -> None:
    found = frontier(chain)
    assert pairs(found) == pareto(by_brute_force(chain))
    if found.points[0].peak == 0:
        assert replay(chain, best(chain, 0)).peak == 0


@given(chains(most=12, number=real), st.integers(1, 30), st.data())
@settings(max_examples=60)
def test_no_rounding_lets_an_even_cut_beat_the_frontier(
    chain: Chain, slots: int, data: st.DataObject
) -> None:
    """However coarse the grid: PyTorch's own function never does better than what the planner says."""
    found = frontier(chain, slots=slots)
    simple = data.draw(
        st.sampled_from([store_all(chain)])
        | st.integers(1, len(chain)).map(lambda segments: sequential(chain, segments))
        | st.tuples(st.integers(1, len(chain)), st.booleans()).map(
            lambda k: uniform(chain, k[0], keep_last=k[1])
        )
    )
    counted = replay(chain, simple)
    peak = counted.peak * (1 + 1e-9)
    assert found.within(peak).work <= counted.work + 1e-9
    assert replay(chain, best(chain, peak, slots=slots)).work <= counted.work + 1e-9
