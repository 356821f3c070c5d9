import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from naive import Refused, naive_replay
from remat.chain import Action, Backward, Chain, Drop, Fetch, Forward, Offload, Output, Stage, Tape, chain_of
from remat.replay import Memory, Replay, ReplayError, replay
from strategies import MODELS, chains, plans, real, spoiled


def same_as_naive(chain: Chain, plan: list[Action]) -> Replay:
    counted, naive = replay(chain, plan), naive_replay(chain, plan)
    assert counted.peak == float(naive.peak)
    assert counted.work == float(naive.work)
    assert (counted.recomputed, counted.forwards) == (naive.recomputed, naive.forwards)
    assert counted.time_s == float(naive.time_s)
    for name in ("during", "after"):
        for event_, moment in zip(counted.events, getattr(naive, name), strict=True):
            memory: Memory = getattr(event_, name)
            for part in ("kept", "recomputed", "gradient", "scratch"):
                assert getattr(memory, part) == float(getattr(moment, part)), (event_, name, part)
    return counted


def refused_at(chain: Chain, plan: list[Action]) -> int | None:
    """The number of the action that replay refuses, the plan's length if its end, None if nothing."""
    try:
        replay(chain, plan)
    except ReplayError as error:
        found = re.match(r"action (\d+)", str(error))
        if found is None:
            assert "the plan ends before" in str(error)
            return len(plan)
        return int(found[1])
    return None


def naive_refused_at(chain: Chain, plan: list[Action]) -> int | None:
    try:
        naive_replay(chain, plan)
    except Refused as refused:
        return refused.index
    return None


# --- against the naive replay ---------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=100)
def test_any_valid_plan_counts_as_the_naive_replay_counts(data: st.DataObject) -> None:
    chain = data.draw(chains(most=5))
    same_as_naive(chain, data.draw(plans(chain)))


@given(st.data())
@settings(max_examples=60)
def test_real_sizes_are_summed_exactly(data: st.DataObject) -> None:
    chain = data.draw(chains(most=4, number=real | st.sampled_from([0.1, 1e-9, 1e9])))
    same_as_naive(chain, data.draw(plans(chain, wander=6)))


@given(st.data())
@settings(max_examples=200)
def test_a_spoiled_plan_is_refused_exactly_where_it_uses_what_is_not_there(data: st.DataObject) -> None:
    chain = data.draw(chains(most=4))
    plan = data.draw(spoiled(data.draw(plans(chain, wander=5)), len(chain)))
    where = naive_refused_at(chain, plan)
    event("still valid" if where is None else "invalid")
    assert refused_at(chain, plan) == where
    if where is None:
        same_as_naive(chain, plan)


@pytest.mark.parametrize("needs", MODELS)
def test_without_any_one_of_its_actions_a_plan_that_has_no_spare_ones_is_refused(needs: str) -> None:
    chain = chain_of([1] * 4, needs=needs)  # type: ignore[arg-type]
    keep = "tape" if needs == "tape" else "output"
    plan: list[Action] = [Forward(i, keep) for i in range(1, 5)] + [Backward(i) for i in range(4, 0, -1)]  # type: ignore[arg-type]
    assert refused_at(chain, plan) is None
    for index in range(len(plan)):
        assert refused_at(chain, plan[:index] + plan[index + 1 :]) is not None


# --- by hand --------------------------------------------------------------------------------------------


def test_a_tape_holds_the_output_that_it_read_though_that_was_not_to_be_kept() -> None:
    chain = Chain((Stage(out=10, saved=1), Stage(out=100, saved=1000)), input=1, needs="tape")
    plan = [Forward(1), Forward(2, "tape"), Drop(Output(1))]
    with pytest.raises(ReplayError, match=r"action 2, .*Tape\(stage=2\) still holds Output\(stage=1\)"):
        replay(chain, plan)
    plan = [Forward(1), Forward(2, "tape"), Backward(2), Drop(Output(1)), Forward(1, "tape"), Backward(1)]
    counted = same_as_naive(chain, plan)
    assert counted.peak == 1 + 10 + 100 + 1000 + 100
    assert counted.recomputed == 1


def test_what_a_tape_held_stays_when_the_tape_goes() -> None:
    chain = chain_of([10, 100], saved=1000, needs="tape")
    plan: list[Action] = [Forward(1), Forward(2, "tape"), Drop(Tape(2)), Drop(Output(2)), Forward(2, "tape")]
    plan += [Backward(2), Drop(Output(1)), Forward(1, "tape"), Backward(1)]
    assert same_as_naive(chain, plan).recomputed == 2


def test_scratch_counts_while_its_action_runs_and_not_after() -> None:
    chain = Chain((Stage(out=1, scratch_forward=50, scratch_backward=70),), input=0)
    counted = replay(chain, [Forward(1), Backward(1)])
    assert [event.during.total for event in counted.events] == [51, 72]
    assert [event.after.total for event in counted.events] == [2, 0]
    assert counted.peak == 72


def test_the_clock_runs_through_forwards_and_backwards() -> None:
    chain = Chain((Stage(1, forward_s=3, backward_s=4), Stage(1, forward_s=5)), input=0)
    counted = replay(
        chain, [Forward(1), Forward(2, "output"), Forward(1, "output"), Backward(2), Backward(1)]
    )
    assert [(event.start_s, event.end_s) for event in counted.events] == [
        (0, 3), (3, 8), (8, 11), (11, 21), (21, 25),
    ]  # fmt: skip
    assert (counted.time_s, counted.work, counted.recomputed, counted.forwards) == (25, 3, 1, 3)


def test_whole_numbers_stay_whole_and_numpy_numbers_turn_into_plain_ones() -> None:
    stage = Stage(out=np.int64(2), forward_s=np.float32(1.5))
    counted = replay(Chain((stage,), input=np.int32(3)), [Forward(1), Backward(1)])
    assert (counted.peak, type(counted.peak)) == (7, int)
    assert (counted.time_s, type(counted.time_s)) == (4.5, float)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=40), st.randoms())
def test_the_peak_does_not_depend_on_the_order_of_the_sizes(sizes: list[float], random: object) -> None:
    shuffled = sorted(sizes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    n = len(sizes)

    def held(order: list[float]) -> float:
        """Everything at once, and nothing more: a last stage without output reads what came before."""
        chain = Chain(tuple(Stage(size) for size in order) + (Stage(0),), input=0)
        plan: list[Action] = [Forward(i, "output") for i in range(1, n + 2)]
        return replay(chain, plan + [Backward(i) for i in range(n + 1, 0, -1)]).events[n].after.total

    assert held(sizes) == held(shuffled) == float(sum(map(Fraction, sizes)))


# --- refusals say what is wrong -------------------------------------------------------------------------

TWO = chain_of([1, 1])
TAPED = chain_of([1, 1], needs="tape")


@pytest.mark.parametrize(
    ("chain", "plan", "message"),
    [
        (TWO, [], "ends before the backward of stage 2"),
        (TWO, [Forward(2)], "action 0, .*reads Output.stage=1., which is not there"),
        (TWO, [Forward(1), Forward(1)], "action 1, .*makes output 1, which is there already"),
        (TWO, [Forward(0)], "stage must be from 1 to 2, got 0"),
        (TWO, [Forward(3)], "stage must be from 1 to 2, got 3"),
        (TWO, [Forward(1.5)], "stage must be from 1 to 2, got 1.5"),
        (TWO, [Forward("1")], "stage must be from 1 to 2, got '1'"),
        (TWO, [Forward(True)], "stage must be from 1 to 2, got True"),
        (TWO, [Forward(1, "all")], 'keep must be "nothing", "output" or "tape", got \'all\''),
        (TWO, [Forward(1, "tape")], "a chain of values has no tapes"),
        (TWO, [Backward(2)], "no gradient before stage 2 has run forward"),
        (TWO, [Backward(None)], "stage must be from 1 to 2, got None"),
        (TWO, [Forward(1), Forward(2), Backward(1)], "the next backward is that of stage 2"),
        (TWO, [Forward(1), Forward(2), Backward(2)], "reads Output.stage=1., which is not there"),
        (TAPED, [Forward(1, "output"), Forward(2), Backward(2)], "reads Tape.stage=2., which is not there"),
        (TWO, [Drop(Output(1))], "Output.stage=1. is not there"),
        (TWO, [Drop(Output(0))], "the chain's input, which stays for the whole step"),
        (TWO, [Drop([])], "must be an Output or a Tape, got \\[\\]"),
        (TWO, [Drop("x")], "must be an Output or a Tape, got 'x'"),
        (TWO, [Forward(1), Offload(Output(1))], "no link to the host"),
        (TWO, [Fetch(Output(0))], "no link to the host"),
        (TWO, ["forward"], "action 0 must be an Action, got 'forward'"),
        (TWO, [Forward], "action 0 must be an Action"),
        (
            TWO,
            [Forward(1, "output"), Forward(2), Backward(2), Forward(2)],
            "action 3, .*the backward of stage 2 has run",
        ),
    ],
)
def test_a_refusal_names_the_action_and_what_is_wrong(chain: Chain, plan: list[Action], message: str) -> None:
    with pytest.raises(ReplayError, match=message):
        replay(chain, plan)
    assert issubclass(ReplayError, ValueError)


@pytest.mark.parametrize("plan", [None, 3, Forward(1)])
def test_a_plan_must_be_iterable(plan: object) -> None:
    with pytest.raises(ValueError, match="actions must be"):
        replay(TWO, plan)  # type: ignore[arg-type]


def test_a_tape_of_a_chain_of_tapes_can_be_dropped() -> None:
    plan = [Forward(1, "tape"), Drop(Tape(1)), Drop(Output(1)), Forward(1, "tape")]
    plan += [Forward(2, "tape"), Backward(2), Backward(1)]
    assert same_as_naive(TAPED, plan).recomputed == 1


def test_a_taping_forward_has_a_scratch_of_its_own() -> None:
    stage = Stage(out=1, saved=2, scratch_forward=50, scratch_taping=7)
    chain = Chain((stage,), input=0, needs="tape")
    plan = [Forward(1, "output"), Drop(Output(1)), Forward(1, "tape"), Backward(1)]
    assert [event.during.scratch for event in replay(chain, plan).events] == [50, 0, 7, 0]


def test_the_loss_needs_its_scratch_after_the_first_forward_of_the_last_stage() -> None:
    chain = Chain((Stage(out=1, scratch_forward=2),), input=0, needs="tape", scratch_loss=5)
    plan = [Forward(1), Forward(1, "tape"), Backward(1)]
    with pytest.raises(ReplayError, match="there already"):
        replay(chain, plan)
    plan.insert(1, Drop(Output(1)))
    assert [event.during.scratch for event in replay(chain, plan).events] == [5, 0, 2, 0]
