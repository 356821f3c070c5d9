import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naive import naive_replay, segment_plans
from remat.chain import Chain, Forward, chain_of
from remat.choice import kept
from remat.cuts import every_cut
from remat.frontier import best, frontier
from remat.gpt import gpt_layer
from remat.replay import replay
from remat.schedules import (
    Schedule,
    greedy,
    greedy_within,
    recursive,
    segmented,
    sequential,
    store_all,
    uniform,
)
from remat.segments import SegmentCosts
from strategies import MODELS, chains, lengths, real, whole

# --- every planner's claim is what replay counts ----------------------------------------------------------

Claim = tuple[float, float] | None  # peak and work; None where the planner claims nothing but a valid plan


def of_segments(chain: Chain, *schedules: Schedule) -> Iterator[tuple[Schedule, Claim]]:
    for schedule in schedules:
        yield schedule, SegmentCosts(chain).claim(schedule.segments)


def all_k(chain: Chain) -> range:
    return range(1, len(chain) + 1)


def of_recursive(chain: Chain) -> Iterator[tuple[Schedule, Claim]]:
    for k in all_k(chain):
        yield recursive(chain, k), None


def of_greedy_within(chain: Chain) -> Iterator[tuple[Schedule, Claim]]:
    budget = replay(chain, store_all(chain)).peak
    try:
        schedule = greedy_within(chain, budget)
    except ValueError:  # with tapes a greedy cut may need more than keeping everything
        return
    assert replay(chain, schedule).peak <= budget
    yield from of_segments(chain, schedule)


def of_frontier(chain: Chain) -> Iterator[tuple[Schedule, Claim]]:
    for slots in (3, 20, 500):
        for point in frontier(chain, slots=slots).points:
            yield point.schedule(chain), (point.peak, point.work)


def of_best(chain: Chain) -> Iterator[tuple[Schedule, Claim]]:
    for slots in (7, 500):
        found = frontier(chain, slots=slots)
        for point in found.points:
            yield found.best(point.peak), (point.peak, point.work)
            yield from of_segments(chain, best(chain, point.peak, slots=slots))


def of_every_cut(chain: Chain) -> Iterator[tuple[Schedule, Claim]]:
    cuts = every_cut(chain)
    for index in range(0, len(cuts), max(1, len(cuts) // 20)):
        yield segmented(chain, cuts.segments(index)), (float(cuts.peak[index]), float(cuts.work[index]))
    for point in cuts.frontier:
        yield point.schedule(chain), (point.peak, point.work)


PLANNERS: dict[str, Callable[[Chain], Iterator[tuple[Schedule, Claim]]]] = {
    "store_all": lambda chain: of_segments(chain, store_all(chain)),
    "uniform": lambda chain: of_segments(chain, *(uniform(chain, k) for k in all_k(chain))),
    "uniform, last kept": lambda chain: of_segments(
        chain, *(uniform(chain, k, keep_last=True) for k in all_k(chain))
    ),
    "sequential": lambda chain: of_segments(chain, *(sequential(chain, k) for k in all_k(chain))),
    "recursive": of_recursive,
    "greedy": lambda chain: of_segments(chain, *(greedy(chain, b) for b in (0, 1, 2.5, 9, 1e9))),
    "greedy_within": of_greedy_within,
    "frontier": of_frontier,
    "best": of_best,
    "every_cut": of_every_cut,
}


@pytest.mark.parametrize("needs", MODELS)
@pytest.mark.parametrize("number", [whole, real], ids=["whole", "real"])
@pytest.mark.parametrize("planner", PLANNERS)
@given(st.data())
@settings(max_examples=20)
def test_what_a_planner_claims_is_what_replay_counts(
    planner: str, number: st.SearchStrategy[float], needs: str, data: st.DataObject
) -> None:
    chain = data.draw(chains(most=6, number=number, needs=needs))  # type: ignore[arg-type]
    exact = SegmentCosts(chain).exact
    for schedule, claim in PLANNERS[planner](chain):
        counted = replay(chain, schedule)
        if claim is None:
            continue
        peak, work = claim
        if number is whole:
            assert claim == (counted.peak, counted.work), schedule
            continue
        # Sizes with no common measure are rounded up to 2^-50 of the chain, and seconds are summed in floats.
        assert counted.peak <= peak * (1 + 2**-52)
        assert math.isclose(peak, counted.peak, rel_tol=2**-52 if exact else 2**-40)
        assert math.isclose(work, counted.work, rel_tol=2**-48)


@given(chains(most=7), st.integers(1, 8))
def test_recursion_agrees_with_the_naive_replay(chain: Chain, k: int) -> None:
    counted, naive = replay(chain, recursive(chain, k)), naive_replay(chain, recursive(chain, k))
    assert (counted.peak, counted.work) == (naive.peak, naive.work)


# --- reference values, section 2 --------------------------------------------------------------------------


def costs_of(chain: Chain, schedule: Schedule) -> tuple[float, float]:
    counted = replay(chain, schedule)
    return counted.peak, counted.work


LONG = chain_of([1] * 1024)
EVEN = chain_of([1] * 16)
UNEVEN = chain_of([1, 4] * 8, costs=[4, 1] * 8)


@pytest.mark.parametrize(
    ("schedule", "peak", "forwards", "digits"),
    [
        (store_all(LONG), 1026, 1, 4),
        (uniform(LONG, 32), 65, 1.97, 2),
        (recursive(LONG, 1), 13, 5.5, 4),
        (recursive(LONG, 3), 18, 4.0, 4),
    ],
    ids=lambda value: value.name if isinstance(value, Schedule) else None,
)
def test_a_thousand_layers(schedule: Schedule, peak: float, forwards: float, digits: int) -> None:
    counted = replay(LONG, schedule)
    assert counted.peak == peak
    assert round(counted.forwards / 1024, digits) == forwards
    assert counted.forwards == 1024 + counted.recomputed == 1024 + counted.work


def test_sixteen_layers() -> None:
    assert costs_of(EVEN, uniform(EVEN, 4)) == (9, 12)
    assert costs_of(EVEN, uniform(EVEN, 4, keep_last=True)) == (9, 9)
    assert costs_of(EVEN, segmented(EVEN, [1, 5, 4, 3, 2, 1])) == (8, 10)
    assert sequential(EVEN, 4).segments == uniform(EVEN, 4, keep_last=True).segments
    assert (9, 9) in [(point.peak, point.work) for point in every_cut(EVEN).frontier]


def test_sixteen_uneven_layers() -> None:
    assert costs_of(UNEVEN, uniform(UNEVEN, 4)) == (27, 36)
    assert costs_of(UNEVEN, greedy(UNEVEN, 2)) == (38, 32)
    assert set(greedy(UNEVEN, 2).lengths) == {2}


@pytest.mark.parametrize(("k", "levels"), [(1, 8), (2, 4), (3, 4), (4, 3), (7, 2)])
def test_recursion_in_closed_form(k: int, levels: int) -> None:
    """k checkpoints a level, input, output and gradient; a level replays k of k + 1 parts of every stage."""
    n = (k + 1) ** levels
    counted = replay(chain_of([1] * n), recursive(chain_of([1] * n), k))
    assert counted.peak == k * levels + 3
    assert counted.forwards == n * (1 + Fraction((levels - 1) * k, k + 1))


@given(st.integers(1, 60), st.integers(1, 60))
def test_the_segment_model_leaves_out_the_gradient(n: int, k: int) -> None:
    """The second text counts (⌈n/k⌉ + k)·A; replay counts one A more, the gradient, where k divides n."""
    k = min(n, k)
    chain = chain_of([1] * n)
    peak, text = replay(chain, uniform(chain, k)).peak, -(-n // k) + k
    if n % k == 0:
        assert peak == text + 1
    else:  # the last segment, the fullest otherwise, is short
        assert peak in (text, text + 1)


@pytest.mark.parametrize(
    ("L", "A", "k", "none", "full", "saved", "selective_units", "selective", "selective_saved"),
    [
        (32, 912, 4, 29.2, 10.9, 62.5, 17.965, 16.4, 43.9),
        (48, 512, 6, 24.6, 7.2, 70.8, 24.140, 12.4, 49.7),
    ],
)
def test_the_examples_of_the_second_text(
    L: int, A: int, k: int, none: float, full: float, saved: float,
    selective_units: float, selective: float, selective_saved: float,
) -> None:  # fmt: skip
    """Sizes in MB, GB = 1000 MB. Both models leave out the gradient that replay counts, one more stage."""
    layer = gpt_layer(s=2048, b=1, h=4096, a=32)
    assert layer.saved_bytes == 912 * 2**20
    m = 1 - Fraction(layer.bytes_of(kept(layer, recompute="selective"))) / Fraction(layer.saved_bytes)
    assert m == Fraction(40, 57)

    def checkpointed(size: int) -> float:
        """Peak of a chain of L equal sizes, checkpointed every k, without the gradient."""
        chain = chain_of([size] * L, input=size)
        return replay(chain, uniform(chain, k)).peak - size

    assert round(L * A / 1000, 1) == none
    assert round(checkpointed(A) / 1000, 1) == full
    assert round(100 * (1 - checkpointed(A) / (L * A)), 1) == saved
    # Selective: what is cheap to keep stays for all L layers, and only the part m is checkpointed. In units
    # of A/57, so that sizes are whole.
    found = Fraction(L * 17 + int(checkpointed(40)), 57)
    assert round(float(found), 3) == selective_units
    assert round(float(found) * A / 1000, 1) == selective
    assert round(100 * (1 - float(found) / L), 1) == selective_saved


def test_the_compute_of_the_second_text() -> None:
    """It replays every stage, a third of forward and backward more; values spare the last of a segment."""
    chain = chain_of([1] * 32, needs="tape")
    counted = replay(chain, uniform(chain, 4))
    assert counted.work == chain.forward_s
    assert counted.time_s == pytest.approx((1 + 1 / 3) * 3 * chain.forward_s)
    chain = chain_of([1] * 32)
    assert replay(chain, uniform(chain, 4)).work == 32 - 8
    layer = gpt_layer(s=2048, b=1, h=4096, a=32)
    f = sum(op.flops for op in layer.operations if op.name in ("query_key", "times_value")) / layer.flops
    assert [round(100 * share, 1) for share in (f, f / 3)] == [7.7, 2.6]


# --- what each planner promises -----------------------------------------------------------------------------


@given(chains(), st.integers(1, 8))
def test_uniform_cuts_every_k(chain: Chain, k: int) -> None:
    k = min(k, len(chain))
    found = uniform(chain, k).lengths
    assert set(found[:-1]) <= {k} and 1 <= found[-1] <= k and sum(found) == len(chain)


@given(st.integers(1, 60), st.integers(1, 60))
def test_sequential_cuts_as_pytorch_does(n: int, segments: int) -> None:
    """As torch.utils.checkpoint.checkpoint_sequential: size n // segments, the last takes the rest."""
    chain, segments = chain_of([1] * n), min(segments, n)
    ends = list(range(n // segments - 1, n // segments * (segments - 1), n // segments))
    found = sequential(chain, segments)
    assert [sum(found.lengths[: i + 1]) - 1 for i in range(segments - 1)] == ends
    assert [segment.kept for segment in found.segments] == [False] * (segments - 1) + [True]


@given(chains(number=st.integers(0, 5)), st.integers(0, 20))
def test_greedy_cuts_once_a_segment_holds_more_than_the_threshold(chain: Chain, threshold: int) -> None:
    sizes = [stage.out for stage in chain.stages]
    start = 0
    found = greedy(chain, threshold).lengths
    for index, length in enumerate(found):
        inside = sizes[start : start + length]
        assert sum(inside[:-1]) <= threshold
        assert sum(inside) > threshold or index == len(found) - 1
        start += length
    assert start == len(chain)


@given(chains(most=7))
@settings(max_examples=40)
def test_greedy_within_finds_the_least_work_of_its_thresholds(chain: Chain) -> None:
    sums = [sum(stage.out for stage in chain.stages[:i]) for i in range(len(chain) + 1)]
    every = [costs_of(chain, greedy(chain, threshold)) for threshold in sums]
    for budget in {peak for peak, _ in every}:
        peak, work = costs_of(chain, greedy_within(chain, budget))
        assert peak <= budget
        assert work == min(w for p, w in every if p <= budget)
    least = min(peak for peak, _ in every)
    if least > 0:
        with pytest.raises(ValueError, match=f"budget must be at least {least} bytes"):
            greedy_within(chain, least - 0.5)


@given(st.data())
@settings(max_examples=40)
def test_store_all_is_the_only_plan_that_needs_no_work(data: st.DataObject) -> None:
    chain = data.draw(chains(number=st.integers(1, 9)))
    counted = replay(chain, store_all(chain))
    assert (counted.work, counted.recomputed) == (0, 0)
    keep = "tape" if chain.needs == "tape" else "output"
    assert all(action.keep == keep for action in store_all(chain) if isinstance(action, Forward))
    other = segmented(chain, data.draw(lengths(len(chain))))
    if chain.needs == "tape" or len(other.segments) < len(chain):
        assert replay(chain, other).work > 0


@given(st.integers(1, 5), st.sampled_from(MODELS), st.data())
def test_the_naive_list_of_plans_is_complete(n: int, needs: str, data: st.DataObject) -> None:
    """The brute force of these tests is itself counted: 2^(n-1) plans, or a Fibonacci number with tapes."""
    plans = list(segment_plans(n, tape=needs == "tape"))
    assert len(set(plans)) == len(plans)
    assert len(plans) == (2 ** (n - 1) if needs == "values" else [1, 2, 5, 13, 34, 89][n])
    assert tuple(data.draw(lengths(n))) in {tuple(segment.length for segment in plan) for plan in plans}


# --- a schedule, and bad input ------------------------------------------------------------------------------


def test_a_schedule_is_an_iterable_of_actions_with_a_name() -> None:
    schedule = segmented(EVEN, [8, 8])
    assert list(schedule) == list(schedule.actions) and len(schedule) == len(schedule.actions)
    assert (schedule.name, schedule.lengths) == ("[8, 8]", [8, 8])
    names = [s(EVEN).name for s in (store_all, lambda c: uniform(c, 4), lambda c: recursive(c, 1))]
    assert names == ["store all", "every 4", "recursive, k = 1"]
    assert segmented(EVEN, [16], name="one").name == "one"


@pytest.mark.parametrize("value", [0, -1, 17, 4.0, True, "4", None, math.nan])
def test_k_and_the_number_of_segments_are_from_1_to_n(value: object) -> None:
    with pytest.raises(ValueError, match="^k must be a whole number from 1 to 16, got "):
        uniform(EVEN, value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^segments must be a whole number from 1 to 16, got "):
        sequential(EVEN, value)  # type: ignore[arg-type]
    if value != 17:
        with pytest.raises(ValueError, match="^k must be a whole number at least 1, got "):
            recursive(EVEN, value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, True, "4", None, [4]])
def test_a_threshold_and_a_budget_are_numbers(value: object) -> None:
    with pytest.raises(ValueError, match="^threshold must be a (finite )?number 0 or more, got "):
        greedy(EVEN, value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^budget must be a (finite )?number 0 or more, got "):
        greedy_within(EVEN, value)  # type: ignore[arg-type]


def test_lengths_must_add_up() -> None:
    with pytest.raises(ValueError, match="lengths must add up to the 16 stages of the chain, got 15"):
        segmented(EVEN, [5, 5, 5])
    with pytest.raises(ValueError, match="lengths must be a list"):
        segmented(EVEN, 4)  # type: ignore[arg-type]
