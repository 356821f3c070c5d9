"""The planners that use the link."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naive import size
from remat.chain import Backward, Chain, Fetch, Forward, Needs, Offload, Output, Stage, Tape, chain_of
from remat.hardware import link
from remat.offload import offload_all, offload_checkpoints
from remat.replay import Replay, replay
from remat.schedules import Schedule, segmented, store_all
from strategies import MODELS, chains, lengths
from timeline import judged, wire

bandwidths = st.sampled_from([0.25, 0.5, 1, 2, 8])  # with whole sizes, no time is rounded
seconds = st.integers(0, 12)


def copies(plan: Schedule) -> list[Offload | Fetch]:
    return [action for action in plan if isinstance(action, Offload | Fetch)]


def home_again(chain: Chain, counted: Replay) -> bool:
    """Everything that left has come back, and only the chain's input is left."""
    last = counted.moments[-1]
    return (last.device, last.host) == (chain.input, 0)


# --- every plan is valid, and holds what it says --------------------------------------------------------


@given(st.data(), st.integers(1, 9), bandwidths)
@settings(max_examples=80)
def test_offload_all_is_valid_and_holds_as_many_stages_as_it_has_buffers(
    data: st.DataObject, buffers: int, bandwidth: float
) -> None:
    chain = data.draw(chains(most=7))
    n = len(chain)
    plan = offload_all(chain, buffers=buffers)
    counted, timeline = judged(chain, plan, bandwidth)
    assert counted.recomputed == counted.work == 0
    assert home_again(chain, counted)
    for key in timeline.keys:
        there = timeline.on_device(key)
        assert len(there) == len(set(there))
        tapes = {thing.stage for thing in there if isinstance(thing, Tape)}
        outputs = {thing.stage for thing in there if isinstance(thing, Output)}
        if tapes:  # those of stages in a row
            assert max(tapes) - min(tapes) < buffers
        assert 0 in outputs
        if outputs > {0}:  # what these stages read and made, beside the chain's input
            assert max(outputs) - min(outputs - {0}) <= buffers
    # The host gets each tape but the last few, and each output but those and the first.
    stages = range(1, max(n - buffers, 0) + 1)
    left = {Output(i - 1) for i in stages if i > 1} | {Tape(i) for i in stages if chain.needs == "tape"}
    assert {action.what for action in copies(plan)} == left
    assert len(copies(plan)) == 2 * len(left)
    assert counted.host_peak == sum(size(chain, thing) for thing in left)


@given(st.data(), st.integers(1, 9), bandwidths)
@settings(max_examples=80)
def test_offload_checkpoints_is_valid_and_holds_as_many_as_it_has_buffers(
    data: st.DataObject, buffers: int, bandwidth: float
) -> None:
    chain = data.draw(chains(most=7))
    segments = data.draw(lengths(len(chain)))
    plan = offload_checkpoints(chain, segments, buffers=buffers)
    counted, timeline = judged(chain, plan, bandwidth)
    same = replay(chain, segmented(chain, segments))
    assert (counted.work, counted.recomputed, counted.forwards) == (same.work, same.recomputed, same.forwards)
    assert home_again(chain, counted)

    ends = [0, *accumulate(segments)]
    checkpoints = set(ends[1:-1])
    loss = next(at for at, a in enumerate(plan) if isinstance(a, Forward) and a.stage == len(chain))
    for time, index, edge in timeline.keys:
        there = timeline.on_device((time, index, edge))
        held = checkpoints.intersection(thing.stage for thing in there if isinstance(thing, Output))
        done = min((a.stage for a in plan.actions[:index] if isinstance(a, Backward)), default=len(chain) + 1)
        if index <= loss:
            assert len(held) <= max(2, buffers)
        else:  # and what the running segment made, if its last backward is still to come
            above = min((end for end in ends if end >= done - 1), default=0)
            assert len(held - {above}) <= buffers
    leaving = [Output(end) for end in ends[1 : max(1, len(segments) - max(1, buffers - 1))]]
    assert [action.what for action in plan if isinstance(action, Offload)] == leaving
    assert [action.what for action in plan if isinstance(action, Fetch)] == leaving[::-1]
    assert counted.host_peak == sum(size(chain, thing) for thing in leaving)


@given(st.data(), st.integers(0, 3))
@settings(max_examples=30)
def test_with_a_buffer_for_every_stage_nothing_is_copied(data: st.DataObject, spare: int) -> None:
    chain = data.draw(chains(most=6))
    plan = offload_all(chain, buffers=len(chain) + spare)
    assert plan.actions == store_all(chain).actions
    segments = data.draw(lengths(len(chain)))
    plan = offload_checkpoints(chain, segments, buffers=max(2, len(segments)) + spare)
    assert plan.actions == segmented(chain, segments).actions


def test_three_stages_by_hand() -> None:
    chain = Chain((Stage(out=2, saved=4, forward_s=3, backward_s=5),) * 3, input=1, needs="tape")

    def told(plan: Schedule) -> list[tuple[str, int, float, float]]:
        counted, _ = judged(chain, plan, 1)
        lines = []
        for event in counted.events:
            action = event.action
            stage = action.stage if isinstance(action, Forward | Backward) else action.what.stage
            lines.append((type(action).__name__, stage, event.start_s, event.end_s))
        return lines

    assert told(offload_all(chain)) == [
        ("Forward", 1, 0, 3), ("Offload", 1, 3, 7), ("Forward", 2, 3, 6),
        ("Drop", 1, 7, 7), ("Forward", 3, 7, 10), ("Backward", 3, 10, 15),
        ("Fetch", 1, 15, 19), ("Backward", 2, 15, 20), ("Backward", 1, 20, 25),
    ]  # fmt: skip
    assert told(offload_all(chain, buffers=1)) == [
        ("Forward", 1, 0, 3), ("Offload", 1, 3, 7), ("Drop", 1, 7, 7),  # tape 1
        ("Forward", 2, 7, 10), ("Offload", 2, 10, 14), ("Offload", 1, 14, 16),  # tape 2, output 1
        ("Drop", 2, 14, 14), ("Drop", 1, 16, 16), ("Forward", 3, 16, 19), ("Backward", 3, 19, 24),
        ("Fetch", 2, 24, 28), ("Fetch", 1, 28, 30), ("Backward", 2, 30, 35),
        ("Fetch", 1, 35, 39), ("Backward", 1, 39, 44),
    ]  # fmt: skip
    again = [("Drop", 3, 9, 9), ("Forward", 3, 9, 12), ("Backward", 3, 12, 17)]
    assert told(offload_checkpoints(chain, buffers=1)) == [
        ("Forward", 1, 0, 3), ("Offload", 1, 3, 5), ("Forward", 2, 3, 6), ("Drop", 1, 6, 6),
        ("Forward", 3, 6, 9), *again,
        ("Fetch", 1, 17, 19), ("Drop", 2, 17, 17), ("Forward", 2, 19, 22), ("Backward", 2, 22, 27),
        ("Drop", 1, 27, 27), ("Forward", 1, 27, 30), ("Backward", 1, 30, 35),
    ]  # fmt: skip
    assert told(offload_checkpoints(chain)) == [
        ("Forward", 1, 0, 3), ("Offload", 1, 3, 5), ("Forward", 2, 3, 6), ("Drop", 1, 6, 6),
        ("Forward", 3, 6, 9), ("Fetch", 1, 9, 11), *again,
        ("Drop", 2, 17, 17), ("Forward", 2, 17, 20), ("Backward", 2, 20, 25),
        ("Drop", 1, 25, 25), ("Forward", 1, 25, 28), ("Backward", 1, 28, 33),
    ]  # fmt: skip


# --- how long they wait ---------------------------------------------------------------------------------


@given(st.data(), bandwidths, bandwidths)
@settings(max_examples=50)
def test_more_buffers_and_faster_links_never_make_a_step_slower(
    data: st.DataObject, one: float, other: float
) -> None:
    chain = data.draw(chains(most=6))
    segments = data.draw(lengths(len(chain)))
    fast, slow = wire(max(one, other)), wire(min(one, other))
    plans = [
        [offload_all(chain, buffers=b) for b in range(1, len(chain) + 2)],
        [offload_checkpoints(chain, segments, buffers=b) for b in range(1, len(segments) + 3)],
    ]
    for by_buffers in plans:
        for fewer, more in pairwise(by_buffers):
            assert replay(chain, more, link=slow).time_s <= replay(chain, fewer, link=slow).time_s
            assert replay(chain, fewer, link=fast).time_s <= replay(chain, fewer, link=slow).time_s
        last = replay(chain, by_buffers[-1], link=slow)
        assert last.stall_s == 0  # nothing leaves any more
        assert last == replay(chain, by_buffers[-1])


@given(st.data(), bandwidths)
@settings(max_examples=50)
def test_with_one_buffer_each_copy_is_waited_for(data: st.DataObject, bandwidth: float) -> None:
    chain = data.draw(chains(most=7))
    plan = offload_all(chain, buffers=1)
    counted = replay(chain, plan, link=wire(bandwidth))
    assert counted.stall_s == sum(float(size(chain, copy.what)) for copy in copies(plan)) / bandwidth
    spans = [(event.start_s, event.end_s) for event in counted.events if event.end_s > event.start_s]
    assert all(this[1] <= next_[0] for this, next_ in pairwise(sorted(spans)))


def equal_layers(L: int, *, F: float, R: float, c: float, needs: Needs = "tape") -> Chain:
    """L layers; a forward takes F seconds, a backward 2F + R, and on a link of 1 byte/s a copy takes c."""
    tape = needs == "tape"
    stage = Stage(out=0 if tape else c, saved=c if tape else 0, forward_s=F, backward_s=2 * F + R)
    return Chain((stage,) * L, input=0, needs=needs)


def wait_per_layer(F: float, R: float, c: float) -> float:
    """The steady state of two buffers (reference values, section 4)."""
    return max(0, c - F) + max(0, c - 2 * F - R)


@given(st.integers(2, 12), seconds, seconds, st.integers(0, 50))
@settings(max_examples=80)
def test_two_buffers_wait_as_in_the_steady_state_but_for_two_layers(L: int, F: int, R: int, c: int) -> None:
    # Forwards 3 … L each wait for the copy of the layer two before, backwards L-2 … 1 for their fetch: L - 2
    # layers wait, each as long as in the steady state. The last two are never copied.
    chain = equal_layers(L, F=F, R=R, c=c)
    counted = replay(chain, offload_all(chain), link=wire(1))
    assert counted.stall_s == (L - 2) * wait_per_layer(F, R, c)
    assert counted.time_s == L * (3 * F + R) + counted.stall_s


@given(st.integers(1, 14), st.integers(2, 8), seconds, seconds, st.integers(0, 50))
@settings(max_examples=80)
def test_any_number_of_buffers_from_two_on_waits_for_the_link_at_the_end(
    L: int, buffers: int, F: int, R: int, c: int
) -> None:
    # The link starts after one forward and is never idle: the last forward waits until L - b copies are out,
    # while L - 2 forwards could have run. On the way back likewise.
    chain = equal_layers(L, F=F, R=R, c=c)
    counted = replay(chain, offload_all(chain, buffers=buffers), link=wire(1))
    out = max(0, (L - buffers) * c - (L - 2) * F)
    back = max(0, (L - buffers) * c - (L - 2) * (2 * F + R))
    assert counted.stall_s == (out + back if buffers < L else 0)


@pytest.mark.parametrize("needs", MODELS)
@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 7), seconds, seconds, st.integers(0, 50))
@settings(max_examples=50)
def test_checkpoints_wait_likewise_segment_by_segment(
    needs: Needs, buffers: int, k: int, m: int, F: int, R: int, c: int
) -> None:
    stages = (Stage(out=c, saved=1, forward_s=F, backward_s=2 * F + R),) * (m * k)
    chain = Chain(stages, input=1, needs=needs)
    counted = replay(chain, offload_checkpoints(chain, [k] * m, buffers=buffers), link=wire(1))
    forward = k * F
    backward = k * (2 * F + R) + (k if needs == "tape" else k - 1) * F
    out, back = (max(0, (m - buffers) * c - (m - 2) * each) for each in (forward, backward))
    assert counted.stall_s == (out + back if m > buffers else 0)


@pytest.mark.parametrize("needs", MODELS)
@given(st.integers(1, 12), seconds, st.integers(0, 40), st.integers(0, 40), st.integers(0, 9))
@settings(max_examples=50)
def test_the_ends_cost_a_fixed_time_so_the_steady_state_is_the_limit(
    needs: Needs, F: int, R: int, out: int, saved: int, input_: int
) -> None:
    """Layers whose outputs leave as well; the first layer's input stays, so that one copy is smaller."""
    stage = Stage(out=out, saved=saved, forward_s=F, backward_s=2 * F + R)
    c = out + (saved if needs == "tape" else 0)
    steady = wait_per_layer(F, R, c)
    for L in (4, 16, 64):
        chain = Chain((stage,) * L, input=input_, needs=needs)
        counted = replay(chain, offload_all(chain), link=wire(1))
        assert (L - 2) * steady - 2 * out <= counted.stall_s <= (L - 2) * steady
        share = counted.stall_s / (counted.time_s - counted.stall_s)
        limit = steady / (3 * F + R)
        assert limit - (2 * steady + 2 * out) / (L * (3 * F + R)) - 1e-12 <= share <= limit + 1e-12


# --- GPT-3 (reference values, section 4) ----------------------------------------------------------------


def gpt3(s: int) -> tuple[float, float, float]:
    """Seconds of a layer's forward and of recomputing its attention matrix, and its sbh; t = 8, H100.

    Roofline: the four matrix products with weights by FLOPs, all else by the bytes moved.
    """
    h, a, t, flops, bandwidth = 12288, 96, 8, 989e12, 3.35e12
    sbh, A = s * h, a * s * s
    products = 24 * sbh * h / t / flops
    forward = products + (34 * sbh + 14 * A) / t / bandwidth
    attention = (4 * sbh + 12 * A) / t / bandwidth
    return forward, attention, sbh / t


@pytest.mark.parametrize(
    ("s", "name", "percent"),
    [
        (2048, "PCIe 4", 129.7), (2048, "PCIe 5", 25.7), (2048, "NVLink-C2C", 0),
        (8192, "PCIe 4", 40.1), (8192, "PCIe 5", 5.3), (8192, "NVLink-C2C", 0),
    ],
)  # fmt: skip
def test_gpt3_waits_as_in_the_reference_when_there_are_many_layers(s: int, name: str, percent: float) -> None:
    F, R, sbh = gpt3(s)
    wire_ = link(name)
    c = 34 * sbh / wire_.bandwidth
    steady = wait_per_layer(F, R, c) / (3 * F + R)
    assert 100 * steady == pytest.approx(percent, abs=0.06)
    off = []
    for L in (12, 96, 768):
        stage = Stage(out=2 * sbh, saved=32 * sbh, forward_s=F, backward_s=2 * F + R)
        chain = Chain((stage,) * L, input=2 * sbh, needs="tape")
        counted = replay(chain, offload_all(chain), link=wire_)
        off.append(steady - counted.stall_s / (counted.time_s - counted.stall_s))
    if percent == 0:
        assert off == [0, 0, 0]
    else:
        assert off[0] > 0.008  # points that are missing at L = 12: most of a percent, or many
        for fewer, more in pairwise(off):
            assert fewer / more == pytest.approx(8, rel=1e-6)  # eight times the layers, an eighth of the gap


def test_gpt3_under_selective_recompute_misses_twenty_points_at_twelve_layers() -> None:
    F, R, sbh = gpt3(2048)
    chain = Chain((Stage(out=0, saved=34 * sbh, forward_s=F, backward_s=2 * F + R),) * 12, 0, "tape")
    counted = replay(chain, offload_all(chain), link=link("PCIe 4"))
    share = counted.stall_s / (counted.time_s - counted.stall_s)
    assert 100 * share == pytest.approx(129.7 * 10 / 12, abs=0.1)


@pytest.mark.parametrize(
    ("s", "sharded", "percent"), [(2048, False, 18.5), (8192, False, 2.9), (2048, True, 0), (8192, True, 0)]
)
def test_gpt3_checkpoints_over_pcie_4_wait_as_in_the_reference_at_96_layers(
    s: int, sharded: bool, percent: float
) -> None:
    F, _, sbh = gpt3(s)
    recompute = {2048: 0.245, 8192: 0.276}[s]  # of forward and backward: all but the last product (section 3)
    stage = Stage(out=2 * sbh * (1 if sharded else 8), forward_s=F, backward_s=2 * F + recompute * 3 * F)
    chain = Chain((stage,) * 96, input=stage.out)  # of values: the recompute is in the backward's seconds
    counted = replay(chain, offload_checkpoints(chain), link=link("PCIe 4"))
    assert 100 * counted.stall_s / (counted.time_s - counted.stall_s) == pytest.approx(percent, abs=0.06)


# --- bad arguments --------------------------------------------------------------------------------------

LINE = chain_of([1] * 4)


@pytest.mark.parametrize("buffers", [0, -1, 1.5, 2.0, "2", None, True])
def test_buffers_must_be_a_positive_whole_number(buffers: int) -> None:
    for planner in (offload_all, offload_checkpoints):
        with pytest.raises(ValueError, match="buffers must be a whole number at least 1, got"):
            planner(LINE, buffers=buffers)


@pytest.mark.parametrize("wrong", [[], [1], [4, 1], [5], [2, 0, 2], [-1, 5], [1.0, 3], "1111", 4])
def test_lengths_must_add_up_to_the_chain(wrong: list[int]) -> None:
    with pytest.raises(ValueError, match="lengths? must"):
        offload_checkpoints(LINE, wrong)


def test_lengths_may_come_from_an_iterator_and_default_to_one_stage_each() -> None:
    assert offload_checkpoints(LINE, iter([2, 2])).actions == offload_checkpoints(LINE, [2, 2]).actions
    assert offload_checkpoints(LINE).actions == offload_checkpoints(LINE, [1, 1, 1, 1]).actions


def test_a_plan_names_its_buffers() -> None:
    assert offload_all(LINE, buffers=3).name == "offload all, 3 buffers"
    assert offload_checkpoints(LINE).name == "offload checkpoints, 2 buffers"
