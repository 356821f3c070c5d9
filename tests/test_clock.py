"""The clock of two streams, and memory over time, of plans that copy."""

import math
import re
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from naive import Refused, Thing
from remat.chain import Action, Backward, Chain, Drop, Fetch, Forward, Offload, Output, Stage, Tape, chain_of
from remat.hardware import Link, link
from remat.machine import in_parts
from remat.replay import Replay, ReplayError, replay
from strategies import chains, plans, real
from timeline import copying_plans, judged, wire, world_of

# Powers of two: with whole sizes, every time is a float without rounding.
round_bandwidths = st.sampled_from([0.25, 0.5, 1, 2, 8])
bandwidths = round_bandwidths | st.sampled_from([3, 0.1, 7.3, 1e-3, 25e9]) | st.floats(0.01, 100)


# --- against the second opinion -------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=60)
def test_a_plan_that_copies_is_timed_and_counted_as_the_timeline_does(data: st.DataObject) -> None:
    chain = data.draw(chains(most=4))
    counted, _ = judged(chain, data.draw(copying_plans(chain)), data.draw(bandwidths))
    event("waits" if counted.stall_s else "never waits")


@given(st.data())
@settings(max_examples=30)
def test_real_sizes_and_times_are_summed_exactly(data: st.DataObject) -> None:
    chain = data.draw(chains(most=3, number=real | st.sampled_from([0.1, 1e-9, 1e9])))
    judged(chain, data.draw(copying_plans(chain, wander=8)), data.draw(bandwidths))


def refused_at(chain: Chain, plan: list[Action], link: Link | None) -> int | None:
    """The number of the action that replay refuses, the plan's length if its end, None if nothing."""
    try:
        replay(chain, plan, link=link)
    except ReplayError as error:
        found = re.match(r"action (\d+)", str(error))
        assert found or "the plan ends before" in str(error)
        return int(found[1]) if found else len(plan)
    return None


def timeline_refused_at(chain: Chain, plan: list[Action], bandwidth: float | None) -> int | None:
    try:
        world_of(chain, plan, bandwidth)
    except Refused as refused:
        return refused.index
    return None


@st.composite
def mangled(draw: st.DrawFn, plan: list[Action], n: int) -> list[Action]:
    """A plan with one or two things done to it, most of them to its copies; it may or may not stay valid."""
    plan = list(plan)
    stage = st.integers(-1, n + 1)
    thing = st.builds(Output, stage) | st.builds(Tape, stage)
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(plan) - 1))
        match draw(st.sampled_from(["delete", "double", "move", "insert", "insert"])):
            case "delete" if len(plan) > 1:
                del plan[at]
            case "double":
                plan.insert(at, plan[at])
            case "move":
                plan.insert(draw(st.integers(0, len(plan) - 1)), plan.pop(at))
            case _:
                what = draw(thing)
                plan.insert(at, draw(st.sampled_from([Offload(what), Fetch(what), Drop(what)])))
    return plan


@given(st.data(), st.booleans())
@settings(max_examples=100)
def test_a_mangled_plan_is_refused_exactly_where_the_timeline_refuses_it(
    data: st.DataObject, linked: bool
) -> None:
    chain = data.draw(chains(most=3))
    plan = data.draw(mangled(data.draw(copying_plans(chain, wander=8)), len(chain)))
    bandwidth = 2 if linked else None
    where = timeline_refused_at(chain, plan, bandwidth)
    event("still valid" if where is None else "invalid")
    assert refused_at(chain, plan, wire(2) if linked else None) == where
    if where is None and linked:
        judged(chain, plan, 2)


# --- conservation, read off replay's own events and moments ---------------------------------------------


def reads(chain: Chain, action: Action) -> tuple[Thing, ...]:
    if isinstance(action, Forward):
        return (Output(action.stage - 1),)
    if isinstance(action, Backward):
        tape = (Tape(action.stage),) if chain.needs == "tape" else ()
        return (Output(action.stage - 1), Output(action.stage), *tape)
    return () if isinstance(action, Fetch) else (action.what,)


def makes(action: Action) -> tuple[Thing, ...]:
    if isinstance(action, Forward):
        return (Output(action.stage), Tape(action.stage))[: 1 + (action.keep == "tape")]
    return (action.what,) if isinstance(action, Fetch) else ()


def bytes_of(chain: Chain, thing: Thing) -> float:
    if thing == Output(0):
        return chain.input
    stage = chain.stages[thing.stage - 1]
    return stage.out if isinstance(thing, Output) else stage.saved


@given(st.data(), round_bandwidths)
@settings(max_examples=60)
def test_no_stream_does_two_things_at_once_and_each_goes_in_the_order_of_the_plan(
    data: st.DataObject, bandwidth: float
) -> None:
    chain = data.draw(chains(most=5))
    counted = replay(chain, data.draw(copying_plans(chain)), link=wire(bandwidth))
    for stream in ("compute", "copy"):
        on_it = [event for event in counted.events if event.stream == stream]
        for this, next_ in pairwise(on_it):
            assert next_.wait_s == next_.start_s - this.end_s >= 0
        assert all(event.wait_s == event.start_s for event in on_it[:1])
    for event_ in counted.events:
        action = event_.action
        if isinstance(action, Forward):
            seconds = chain.stages[action.stage - 1].forward_s
        elif isinstance(action, Backward):
            seconds = chain.stages[action.stage - 1].backward_s or 0
        else:
            seconds = 0 if isinstance(action, Drop) else bytes_of(chain, action.what) / bandwidth
        assert event_.end_s - event_.start_s == seconds
        assert event_.stream == ("copy" if isinstance(action, Offload | Fetch) else "compute")
    compute = [event for event in counted.events if event.stream == "compute"]
    assert counted.stall_s == sum(event.wait_s for event in compute)
    assert counted.time_s == max(event.end_s for event in counted.events)
    work = sum(event.end_s - event.start_s for event in compute)
    assert max(event.end_s for event in compute) == work + counted.stall_s


@given(st.data(), round_bandwidths)
@settings(max_examples=60)
def test_nothing_is_read_before_it_is_ready_or_dropped_while_it_is_copied(
    data: st.DataObject, bandwidth: float
) -> None:
    chain = data.draw(chains(most=5))
    ready: dict[Thing, float] = {Output(0): 0}
    out: dict[Thing, float] = {}  # when the last copy out of each ends
    computed = 0.0
    for event_ in replay(chain, data.draw(copying_plans(chain)), link=wire(bandwidth)).events:
        action = event_.action
        for thing in reads(chain, action):
            assert event_.start_s >= ready[thing]
        if isinstance(action, Drop):
            assert event_.start_s >= out.get(action.what, 0)
            del ready[action.what]
        if isinstance(action, Offload):
            assert action.what not in out
            out[action.what] = event_.end_s
        if isinstance(action, Fetch):
            assert event_.start_s >= out.pop(action.what)  # all that was copied out
        if event_.stream == "copy":
            assert event_.start_s >= computed
        else:
            computed = event_.end_s
        for thing in makes(action):
            ready[thing] = event_.end_s


@given(st.data(), bandwidths)
@settings(max_examples=60)
def test_memory_is_never_negative_and_ends_with_what_the_plan_leaves(
    data: st.DataObject, bandwidth: float
) -> None:
    chain = data.draw(chains(most=5))
    plan = data.draw(copying_plans(chain))
    counted = replay(chain, plan, link=wire(bandwidth))
    for event_ in counted.events:
        for memory in (event_.during, event_.after):
            parts = (memory.kept, memory.recomputed, memory.fetched, memory.gradient, memory.scratch)
            assert min(parts) >= 0
            assert 0 <= memory.total <= counted.peak
    assert [m.time_s for m in counted.moments] == sorted(m.time_s for m in counted.moments)
    assert counted.moments[0].time_s == 0
    assert min(min(m.device, m.host) for m in counted.moments) >= 0
    assert counted.peak == max(m.device for m in counted.moments)
    assert counted.host_peak == max(m.host for m in counted.moments)
    # Every backward has run, so all that can be left is the input and what was fetched for nothing.
    left = [copy.thing for copy in world_of(chain, plan, 1).copies if copy.freer is None]
    out = [action.what for action in plan if isinstance(action, Offload)]
    for action in plan:
        if isinstance(action, Fetch):
            out.remove(action.what)
    assert counted.moments[-1].device == sum(bytes_of(chain, thing) for thing in left)
    assert counted.moments[-1].host == sum(bytes_of(chain, thing) for thing in out)


# --- links ----------------------------------------------------------------------------------------------


@given(st.data(), bandwidths)
@settings(max_examples=40)
def test_a_plan_without_copies_does_not_feel_the_link(data: st.DataObject, bandwidth: float) -> None:
    chain = data.draw(chains(most=4, number=st.integers(0, 9) | real))
    plan = data.draw(plans(chain))
    counted = replay(chain, plan, link=wire(bandwidth))
    assert counted == replay(chain, plan)
    assert counted.stall_s == counted.host_peak == 0


@given(st.data(), bandwidths, st.floats(1, 50))
@settings(max_examples=40)
def test_a_slower_link_is_never_faster_and_a_very_fast_one_never_felt(
    data: st.DataObject, bandwidth: float, slower: float
) -> None:
    chain = data.draw(chains(most=4))
    plan = data.draw(copying_plans(chain))
    fast, slow, instant = (replay(chain, plan, link=wire(b)) for b in (bandwidth, bandwidth / slower, 1e30))
    for one, other in ((fast, slow), (instant, fast)):
        assert one.time_s <= other.time_s
        for before, after in zip(one.events, other.events, strict=True):
            assert before.start_s <= after.start_s
    assert instant.stall_s < 1e-24
    copied = sum(Fraction(bytes_of(chain, a.what)) for a in plan if isinstance(a, Offload | Fetch))
    assert fast.stall_s <= float(copied / Fraction(bandwidth))  # at worst, nothing overlaps


def test_only_the_bandwidth_to_count_on_sets_the_time_of_a_copy() -> None:
    chain = chain_of([24], input=0)
    plan: list[Action] = [Forward(1, "output"), Offload(Output(1)), Backward(1)]
    counted = replay(chain, plan, link=Link("a wire", 8, 1000, "a test"))
    assert counted.events[1].end_s - counted.events[1].start_s == 3
    assert replay(chain, plan, link=link("PCIe 4")).events[1].end_s == 1 + 24 / 25e9


# --- by hand --------------------------------------------------------------------------------------------


def spans(counted: Replay) -> list[tuple[float, float, float]]:
    """Start, end and wait of each action, in the plan's order."""
    return [(event.start_s, event.end_s, event.wait_s) for event in counted.events]


def test_three_stages_with_a_tape_that_leaves_and_returns() -> None:
    # Output 2 bytes, tape 10, forward 3 s, backward 5 s, 1 byte/s.
    chain = Chain((Stage(out=2, saved=10, forward_s=3, backward_s=5),) * 3, input=1, needs="tape")
    plan: list[Action] = [
        Forward(1, "tape"), Offload(Tape(1)), Forward(2, "tape"), Drop(Tape(1)), Forward(3, "tape"),
        Backward(3), Fetch(Tape(1)), Backward(2), Backward(1),
    ]  # fmt: skip
    counted, _ = judged(chain, plan, 1)
    assert spans(counted) == [
        (0, 3, 0),    # forward 1
        (3, 13, 3),   # its tape leaves, as soon as it is there
        (3, 6, 0),    # forward 2, meanwhile
        (13, 13, 7),  # the drop waits for the copy
        (13, 16, 0),  # forward 3
        (16, 21, 0),  # backward 3
        (21, 31, 8),  # the tape returns, issued after backward 3
        (21, 26, 0),  # backward 2, meanwhile
        (31, 36, 5),  # backward 1 waits for its tape
    ]  # fmt: skip
    assert (counted.time_s, counted.stall_s) == (36, 12)
    assert without_zero_time(counted) == [
        (0, 13, 0),    # input, output 1 and its tape
        (3, 25, 10),   # forward 2 runs; the host takes the bytes when the copy starts
        (13, 27, 10),  # tape 1 is gone, forward 3 runs
        (16, 29, 10),  # the gradient
        (21, 27, 10),  # stage 3 is done, room for tape 1 is taken as its copy starts
        (26, 15, 10),  # stage 2 is done
        (31, 15, 0),   # the host lets go at the end of the copy
        (36, 1, 0),    # the input stays
    ]  # fmt: skip
    assert (counted.peak, counted.host_peak) == (29, 10)
    assert counted.events[-2].after.fetched == counted.events[-1].during.fetched == 10


def without_zero_time(counted: Replay) -> list[tuple[float, float, float]]:
    """The memory that lasts: the last moment of each time."""
    last = {moment.time_s: (moment.time_s, moment.device, moment.host) for moment in counted.moments}
    return list(last.values())


def test_three_stages_of_values_that_meet_on_the_copy_stream() -> None:
    # Outputs 4, 6, 2 bytes at 2 bytes/s; forwards 1, 2, 3 s, backwards twice that.
    chain = chain_of([4, 6, 2], costs=[1, 2, 3], input=0)
    plan: list[Action] = [
        Forward(1, "output"), Offload(Output(1)), Forward(2, "output"), Offload(Output(2)), Drop(Output(1)),
        Forward(3, "output"), Fetch(Output(1)), Backward(3), Backward(2), Backward(1),
    ]  # fmt: skip
    counted, _ = judged(chain, plan, 2)
    assert spans(counted) == [
        (0, 1, 0),    # forward 1
        (1, 3, 1),    # output 1 leaves
        (1, 3, 0),    # forward 2
        (3, 6, 0),    # output 2 leaves
        (3, 3, 0),    # output 1 is out just now
        (3, 6, 0),    # forward 3 reads output 2 while it is copied
        (6, 8, 0),    # output 1 returns
        (6, 12, 0),   # backward 3
        (12, 16, 0),  # backward 2
        (16, 18, 0),  # backward 1
    ]  # fmt: skip
    assert (counted.time_s, counted.stall_s, counted.host_peak) == (18, 0, 10)
    assert counted.moments[-1].host == 6  # output 2 was never fetched


def test_a_copy_waits_for_the_compute_issued_before_it_and_not_for_what_comes_after() -> None:
    chain = chain_of([1, 1], costs=[10, 10], input=4)
    ahead: list[Action] = [Offload(Output(0)), Forward(1, "output"), Forward(2, "output")]
    behind: list[Action] = [Forward(1, "output"), Offload(Output(0)), Forward(2, "output")]
    back: list[Action] = [Backward(2), Backward(1)]
    assert spans(judged(chain, ahead + back, 1)[0])[0] == (0, 4, 0)
    assert spans(judged(chain, behind + back, 1)[0])[1] == (10, 14, 10)


@pytest.mark.parametrize("seconds", [0, 1])
def test_a_backward_does_not_wait_for_a_copy_but_its_memory_does(seconds: float) -> None:
    chain = Chain((Stage(out=8, backward_s=seconds), Stage(out=0, backward_s=0)), input=0)
    plan: list[Action] = [Forward(1, "output"), Forward(2, "output"), Backward(2), Offload(Output(1))]
    counted, _ = judged(chain, [*plan, Backward(1)], 1)
    assert spans(counted)[3:] == [(2, 10, 2), (2, 2 + seconds, 0)]
    assert counted.stall_s == 0
    assert counted.events[-1].after.total == 8
    assert without_zero_time(counted)[-1] == (10, 0, 8)


def test_a_forward_does_not_wait_for_the_copy_of_the_output_it_was_the_last_to_read() -> None:
    chain = chain_of([6, 1], input=0)
    plan: list[Action] = [Forward(1), Offload(Output(1)), Forward(2, "output"), Forward(1, "output")]
    counted, _ = judged(chain, [*plan, Backward(2), Backward(1)], 1)
    assert spans(counted)[:4] == [(0, 1, 0), (1, 7, 1), (1, 2, 0), (2, 3, 0)]
    assert counted.events[3].during.kept == 6 + 1  # on its way out, while it is made anew
    assert counted.events[3].during.recomputed == 6


def test_a_drop_does_not_wait_for_the_copy_of_an_earlier_making() -> None:
    chain = chain_of([6, 1], input=0)
    plan: list[Action] = [
        Forward(1), Offload(Output(1)), Forward(2, "output"), Forward(1, "output"), Drop(Output(1)),
        Forward(1, "output"), Backward(2), Backward(1),
    ]  # fmt: skip
    counted, _ = judged(chain, plan, 1)
    assert spans(counted)[1:6] == [(1, 7, 1), (1, 2, 0), (2, 3, 0), (3, 3, 0), (3, 4, 0)]


def test_a_drop_waits_for_a_copy_on_its_way_back() -> None:
    chain = chain_of([5, 5], input=0)
    plan: list[Action] = [
        Forward(1, "output"), Offload(Output(1)), Drop(Output(1)), Fetch(Output(1)), Drop(Output(1)),
        Forward(1, "output"), Forward(2, "output"), Backward(2), Backward(1),
    ]  # fmt: skip
    counted, _ = judged(chain, plan, 1)
    assert spans(counted)[1:6] == [(1, 6, 1), (6, 6, 5), (6, 11, 0), (11, 11, 5), (11, 12, 0)]
    assert counted.peak == 15


def test_what_was_copied_out_can_be_made_again_and_copied_back_into_another_step_of_its_life() -> None:
    chain = chain_of([3, 3], input=1)
    plan: list[Action] = [
        Forward(1, "output"), Offload(Output(1)), Drop(Output(1)),  # on the host
        Forward(1, "output"), Forward(2, "output"), Drop(Output(1)),  # made again, dropped at once
        Fetch(Output(1)), Backward(2), Backward(1),
    ]  # fmt: skip
    counted, _ = judged(chain, plan, 1)
    assert spans(counted)[5] == (6, 6, 0)  # that copy was never on the link
    assert (counted.recomputed, counted.host_peak) == (1, 3)


# --- refusals -------------------------------------------------------------------------------------------

TWO = chain_of([1, 1])
TAPED = chain_of([1, 1], saved=1, needs="tape")
ONE: list[Action] = [Forward(1, "output")]
GONE: list[Action] = [*ONE, Offload(Output(1)), Drop(Output(1))]


@pytest.mark.parametrize(
    ("chain", "plan", "message"),
    [
        (TWO, [Offload(Output(1))], r"action 0, .*reads Output\(stage=1\), which is not there$"),
        (TWO, [Forward(1), Forward(2), Offload(Output(1))], r"action 2, .*Output\(stage=1\), which"),
        (TWO, [*ONE, Offload(Output(1)), Offload(Output(1))], r"action 2, .*host has Output\(stage=1\) alr"),
        (TWO, [*GONE, Forward(1), Offload(Output(1))], r"action 4, .*the host has Output\(stage=1\) already"),
        (TWO, [*GONE, Offload(Output(1))], r"action 3, .*on the host: fetch it first"),
        (TWO, [*GONE, Forward(2)], r"action 3, .*reads Output\(stage=1\), .*on the host: fetch it first"),
        (TWO, [*ONE, Forward(2, "output"), *GONE[1:], Backward(2)], r"action 4, .*fetch it first"),
        (TAPED, [Offload(Tape(1))], r"action 0, .*reads Tape\(stage=1\), which is not there$"),
        (TWO, [Fetch(Output(1))], r"action 0, .*the host does not have Output\(stage=1\)"),
        (TWO, [*GONE, Fetch(Output(1)), Fetch(Output(1))], r"action 4, .*the host does not have Output"),
        (TWO, [*ONE, Offload(Output(1)), Fetch(Output(1))], r"action 2, .*on the device already: drop"),
        (TWO, [*GONE, Forward(1), Fetch(Output(1))], r"action 4, .*on the device already"),
        (TWO, [*GONE, Drop(Output(1))], r"action 3, .*is not there"),
        (TAPED, [Forward(1, "tape"), Offload(Output(1)), Drop(Output(1))], r"action 2, .*still holds"),
        (
            TAPED,
            [Forward(1, "tape"), Offload(Tape(1)), Drop(Tape(1)), Drop(Output(1)), Fetch(Tape(1)),
             Forward(1, "tape")],
            r"action 5, .*it makes tape 1, which is there already",
        ),
        (TWO, [Offload(Output(3))], r"action 0, .*stage must be from 0 to 2, got 3"),
        (TWO, [Fetch(Output(-1))], r"action 0, .*stage must be from 0 to 2, got -1"),
        (TWO, [Offload(Tape(0))], r"action 0, .*stage must be from 1 to 2, got 0"),
        (TWO, [*ONE, Offload(Output(1.0))], r"action 1, .*stage must be from 0 to 2, got 1.0"),
        (TWO, [*ONE, Drop(Output(True))], r"action 1, .*stage must be from 0 to 2, got True"),
        (TWO, [Drop(Output([]))], r"action 0, .*stage must be from 0 to 2, got \[\]"),
        (TWO, [Offload(1)], r"action 0, .*what must be an Output or a Tape, got 1"),
        (TWO, [Fetch(None)], r"action 0, .*what must be an Output or a Tape, got None"),
    ],
)  # fmt: skip
def test_a_refused_copy_says_what_is_wrong(chain: Chain, plan: list[Action], message: str) -> None:
    with pytest.raises(ReplayError, match=message):
        replay(chain, plan, link=wire(1))


@pytest.mark.parametrize("action", [Offload(Output(1)), Fetch(Output(1))])
def test_a_copy_without_a_link_is_refused(action: Action) -> None:
    with pytest.raises(ReplayError, match="action 1, .*no link to the host in this replay: pass link="):
        replay(TWO, [*ONE, action])


@pytest.mark.parametrize("strange", ["PCIe 4", 25e9, [wire(1)], Link])
def test_a_link_must_be_a_link(strange: object) -> None:
    with pytest.raises(ValueError, match="link must be a Link"):
        replay(TWO, [], link=strange)  # type: ignore[arg-type]


@pytest.mark.parametrize("bandwidth", [0, -1, math.inf, math.nan, "fast", None])
def test_a_link_must_carry_something(bandwidth: float) -> None:
    with pytest.raises(ValueError, match="bandwidth must be a"):
        replay(TWO, [], link=wire(bandwidth))


def test_parts_are_the_fewest_that_make_every_number_whole() -> None:
    assert in_parts([[1, 2], [], [3]]) == (1, [[1, 2], [], [3]])
    assert in_parts([[Fraction(1, 6)], [0.25, 1]]) == (12, [[2], [3, 12]])
    parts, [[part]] = in_parts([[0.1]])
    assert Fraction(part, parts) == Fraction(0.1)
