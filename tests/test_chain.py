import math

import numpy as np
import pytest

from remat.chain import Backward, Chain, Drop, Forward, Output, Stage, Tape, chain_of


def test_a_chain_of_sizes_and_costs() -> None:
    chain = chain_of([1, 4.5], costs=[4, 1], input=3, saved=[7, 8], scratch_backward=2, needs="tape")
    assert chain == Chain(
        (
            Stage(out=1, saved=7, scratch_backward=2, forward_s=4, backward_s=8),
            Stage(out=4.5, saved=8, scratch_backward=2, forward_s=1, backward_s=2),
        ),
        input=3,
        needs="tape",
    )
    assert (len(chain), chain.forward_s) == (2, 5)


def test_what_is_left_out() -> None:
    assert Stage(5) == Stage(
        5, saved=0, scratch_forward=0, scratch_backward=0, forward_s=1, backward_s=2, scratch_taping=0
    )
    assert Stage(5, forward_s=3).backward_s == 6
    assert Stage(5, forward_s=3, backward_s=0).backward_s == 0
    assert chain_of([5]) == Chain((Stage(5),), input=1, needs="values")


def test_lists_become_tuples_so_that_a_chain_can_be_a_key() -> None:
    chain = Chain([Stage(1)])  # type: ignore[arg-type]
    assert chain.stages == (Stage(1),) and hash(chain) == hash(Chain((Stage(1),)))


def test_numpy_arrays_and_numbers_turn_into_plain_ones() -> None:
    chain = chain_of(np.array([1, 2]), costs=np.array([0.5, 1.5]), saved=np.array([3, 4]), input=np.int64(6))  # type: ignore[arg-type]
    assert chain == chain_of([1, 2], costs=[0.5, 1.5], saved=[3, 4], input=6)
    assert chain == chain_of(iter([1, 2]), costs=(c for c in (0.5, 1.5)), saved=range(3, 5), input=6)  # type: ignore[arg-type]
    numbers = [chain.input, *(n for stage in chain.stages for n in (stage.out, stage.saved, stage.forward_s))]
    assert {type(number) for number in numbers} == {int, float}


def test_actions_are_told_apart_by_what_they_do() -> None:
    different = {Forward(1), Forward(1, "tape"), Backward(1), Drop(Output(1)), Drop(Tape(1)), Forward(2)}
    assert len(different) == 6 and Forward(1) == Forward(1, "nothing") and Output(1) != Tape(1)


# --- bad input ------------------------------------------------------------------------------------------

BAD = [-1, -0.5, math.nan, math.inf, True, "1", None, [1], np.float64("nan")]


@pytest.mark.parametrize("value", BAD)
def test_the_figures_of_a_stage_must_be_numbers_of_zero_or_more(value: object) -> None:
    for figure in (
        "out",
        "saved",
        "scratch_forward",
        "scratch_backward",
        "forward_s",
        "backward_s",
        "scratch_taping",
    ):
        if figure in ("backward_s", "scratch_taping") and value is None:
            continue
        with pytest.raises(
            ValueError, match=rf"^{figure} must be a (finite )?number 0 or more, got"
        ) as error:
            Stage(**{"out": 1} | {figure: value})  # type: ignore[arg-type]
        assert repr(value) in str(error.value)
    with pytest.raises(ValueError, match="^input must be a .* got"):
        Chain((Stage(1),), input=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", BAD)
def test_an_entry_of_a_list_is_named_with_its_place(value: object) -> None:
    with pytest.raises(ValueError, match=r"^sizes\[1\] must be"):
        chain_of([1, value])  # type: ignore[list-item]
    for name in ("costs", "saved", "scratch_backward"):
        with pytest.raises(ValueError, match=rf"^{name}\[2\] must be"):
            chain_of([1, 2, 3], **{name: [1, 1, value]})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["costs", "saved", "scratch_backward"])
@pytest.mark.parametrize("entries", [[], [1], [1, 2, 3, 4]])
def test_lists_of_different_lengths_are_refused(name: str, entries: list[float]) -> None:
    n = len(entries)
    with pytest.raises(ValueError, match=f"{name} must have one entry per stage: {n} {name}, 3 sizes"):
        chain_of([1, 2, 3], **{name: entries})  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [None, 3, "123", math.nan])
def test_sizes_must_be_a_list(values: object) -> None:
    with pytest.raises(ValueError, match="sizes must be numbers, one per stage, got"):
        chain_of(values)  # type: ignore[arg-type]


@pytest.mark.parametrize("stages", [(), [], None, 3])
def test_a_chain_has_a_stage(stages: object) -> None:
    with pytest.raises(ValueError, match="stages must hold at least one Stage, got"):
        Chain(stages)  # type: ignore[arg-type]


def test_a_chain_holds_stages_only() -> None:
    with pytest.raises(ValueError, match="stages must hold only Stage, got 3"):
        Chain((Stage(1), 3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="stages must hold at least one Stage, got none"):
        chain_of([])


@pytest.mark.parametrize("needs", ["tapes", "", None, 1, ["tape"]])
def test_a_backward_needs_values_or_a_tape(needs: object) -> None:
    with pytest.raises(ValueError, match="needs must be one of 'values', 'tape', got "):
        chain_of([1], needs=needs)  # type: ignore[arg-type]
