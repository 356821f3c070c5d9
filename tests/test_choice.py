from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from programs import Net, alive, execute, nets
from remat.chain import Chain
from remat.choice import RECOMPUTE, kept, option, program
from remat.cost import flops, forward_cost, roofline
from remat.gpt import gpt_layer
from remat.hardware import device
from remat.layer import Layer, Operation, Tensor
from remat.mirror import mirror
from remat.replay import replay
from remat.schedules import store_all
from remat.sharing import share
from remat.steps import training

SMALL = {"s": 8, "b": 2, "h": 16, "a": 4}


def test_the_three_words_keep_all_all_but_the_attention_core_and_the_input() -> None:
    layer = gpt_layer(**SMALL)
    everything = kept(layer, recompute="none")
    assert len(everything) == 13
    core = {"softmax", "attention_mask", "attention_dropout"}
    assert kept(layer, recompute="selective") == tuple(name for name in everything if name not in core)
    assert kept(layer, recompute="full") == ("x",)


def test_with_a_fused_kernel_selective_drops_its_statistics_only() -> None:
    layer = gpt_layer(**SMALL, flash=True)
    dropped = set(kept(layer, recompute="none")) - set(kept(layer, recompute="selective"))
    assert dropped == {"softmax_statistics"}


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("word", RECOMPUTE)
def test_what_is_dropped_can_be_made_again_from_what_is_kept(word: str, flash: bool) -> None:
    layer = gpt_layer(**SMALL, flash=flash, norm_statistic_bytes=4)
    there = set(kept(layer, recompute=word))
    assert there <= {tensor.name for tensor in layer.saved}
    assert "x" in there
    for op in layer.operations:  # a mask is drawn again from nothing but the generator's state
        if set(op.inputs) <= there:
            there |= set(op.outputs)
    assert {tensor.name for tensor in layer.saved} <= there


@pytest.mark.parametrize("word", ["", "Full", "all", None, 2, ["none"]])
def test_another_word_is_refused_with_the_three(word: object) -> None:
    with pytest.raises(ValueError, match="recompute must be one of 'none', 'selective', 'full', got "):
        kept(gpt_layer(**SMALL), recompute=word)  # type: ignore[arg-type]


# --- a choice as a program ------------------------------------------------------------------------------


@st.composite
def chosen(draw: st.DrawFn) -> tuple[Net, list[str]]:
    """A random net, and which of the tensors that backward needs are kept."""
    net = draw(nets())
    return net, [tensor.name for tensor in net.layer.saved if draw(st.booleans())]


@settings(max_examples=200)
@given(chosen())
def test_whatever_is_recomputed_the_gradients_are_the_same_to_the_bit(drawn: tuple[Net, list[str]]) -> None:
    net, stay = drawn
    plain, thrifty = training(net.layer), program(net.layer, kept=stay)
    expected = execute(net, plain, share(plain, "none"))
    for policy in ("none", "both"):
        found = execute(net, thrifty, share(thrifty, policy))
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert {value.name for value in thrifty.kept} <= {net.layer.input, *stay}


def test_nothing_is_recomputed_when_all_is_kept() -> None:
    layer = gpt_layer(**SMALL)
    assert program(layer, kept=kept(layer, recompute="none")).steps == training(layer).steps


def test_one_result_of_an_operation_may_stay_while_the_other_is_made_again() -> None:
    layer = gpt_layer(**SMALL, flash=True)
    stay = [name for name in kept(layer, recompute="none") if name != "softmax_statistics"]
    steps = program(layer, kept=stay)
    assert [op.name for op in steps.recomputed] == ["flash_attention"]
    assert {value.name for value in steps.kept} == set(stay)


# --- a choice as an option of a stage -------------------------------------------------------------------


@settings(max_examples=150)
@given(chosen(), st.data())
def test_in_a_chain_an_option_takes_what_its_program_has_alive(
    drawn: tuple[Net, list[str]], data: st.DataObject
) -> None:
    """Liveness by definition, with the layer's output there all along, since the chain holds it."""
    net, stay = drawn
    layer = net.layer
    assume(layer.output != layer.input)
    away = [name for name in stay if name not in (layer.input, layer.output) and data.draw(st.booleans())]
    costs = {op.name: i + 1 for i, op in enumerate(layer.operations)}
    found = option(layer, costs, kept=set(stay) - set(away), offloaded=away, name="this")

    steps = program(layer, kept=stay)
    loss = [step.phase for step in steps.steps].index("loss")
    size = {value.name: value.bytes for value in steps.values}
    after = [sum(size[name] for name in names | {layer.output}) for names in alive(steps)[loss + 1 :]]
    held = found.saved + layer.bytes_of([layer.input, layer.output]) + layer[layer.output].bytes
    assert held + found.scratch_backward == max([held, *after])
    assert found.saved == layer.bytes_of(set(stay) - set(away) - {layer.input, layer.output})
    assert found.copied == layer.bytes_of(away)
    assert found.forward_s == sum(costs.values())
    assert found.backward_s - 2 * found.forward_s == sum(costs[op.name] for op in steps.recomputed)

    if not away:
        chain = Chain((found.stage(layer[layer.output].bytes),), layer[layer.input].bytes, needs="tape")
        assert replay(chain, store_all(chain)).peak == max([held, *after])


def test_full_recompute_saves_between_forward_and_backward_but_not_at_the_peak() -> None:
    """In sbh, at 5as/h = 80: the fullest step is the backward of ×V whatever was kept until then.

    Alive there: x, LN1's output, qkv (10); softmax, mask and dropout output (80); the gradients of the
    context, of the dropout's output, of q, k, v and of x (2 + 32 + 6 + 2 = 42).
    """
    layer = gpt_layer(s=2048, b=1, h=12288, a=96)
    costs = roofline(layer, device("H100"))
    for word, saved in (("none", 112), ("selective", 32), ("full", 0)):
        found = option(layer, costs, kept=kept(layer, recompute=word))
        assert found.saved / layer.unit == saved
        output = 2  # counted by the chain, though the program needs it no more
        assert found.scratch_backward / layer.unit == 10 + 80 + 42 + output - (saved + 2 + 2 + 2)


def test_offloaded_tensors_leave_what_is_saved_and_come_back_into_the_scratch() -> None:
    layer = gpt_layer(**SMALL)
    costs = roofline(layer, device("H100"))
    stay = set(kept(layer, recompute="selective"))
    here = option(layer, costs, kept=stay)
    gone = option(layer, costs, kept=stay - {"qkv", "gelu_in"}, offloaded=["qkv", "gelu_in"])
    moved = layer.bytes_of(["qkv", "gelu_in"])
    assert gone.copied == moved == here.saved - gone.saved
    assert gone.scratch_backward - here.scratch_backward == moved
    assert (gone.forward_s, gone.backward_s) == (here.forward_s, here.backward_s)


def test_full_recompute_takes_less_than_three_forwards() -> None:
    layer = gpt_layer(**SMALL)
    costs = flops(layer)
    found = option(layer, costs, kept=["x"], name="full")
    last = costs["feed_forward_2"] + costs["add_residual2"]
    assert found.backward_s == 3 * forward_cost(costs) - last
    assert found.name == "full"


def test_the_output_is_the_chains_to_hold() -> None:
    """A layer whose backward needs its output: keeping that costs nothing beside the chain's own output."""
    layer = Layer(
        "tanh",
        (Tensor("x", 5, "all"), Tensor("y", 3, "all")),
        (Operation("tanh", "tanh", ("x",), ("y",), ("y",)),),
        "x",
        "y",
    )
    kept_it, remade = (option(layer, {"tanh": 1}, kept=names) for names in (["y"], []))
    assert (kept_it.saved, kept_it.scratch_backward, kept_it.backward_s) == (0, 5, 2)
    assert (remade.saved, remade.scratch_backward, remade.backward_s) == (0, 8, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kept": ["scores"]}, "kept must be one of 'x', 'ln1', .*, got 'scores'"),
        ({"kept": "x"}, "kept must be names of tensors, got the string 'x'"),
        ({"kept": [], "offloaded": ["out"]}, "offloaded must be one of 'x', 'ln1', .*, got 'out'"),
        ({"kept": ["qkv"], "offloaded": ["qkv"]}, r"must not name what is kept, got \['qkv'\] in both"),
        ({"kept": [], "offloaded": ["x"]}, r"must not name the layer's input or output, got \['x'\]"),
        ({"kept": [], "costs": {"gelu": 1}}, "costs must name every operation of 'GPT layer'"),
    ],
)
def test_an_option_that_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    layer = gpt_layer(**SMALL)
    with pytest.raises(ValueError, match=message):
        option(layer, **{"costs": flops(layer)} | arguments)


def test_a_program_of_unknown_tensors_is_refused() -> None:
    with pytest.raises(ValueError, match="kept must be one of 'x', 'ln1', .*, got 'lm_head'"):
        program(gpt_layer(**SMALL), kept=["lm_head"])


def test_mirror_keeps_only_tensors_that_there_are() -> None:
    with pytest.raises(ValueError, match="tensor must be one of 'x', 'ln1', .*, got 'lm_head'"):
        mirror(gpt_layer(**SMALL), {}, keep=["lm_head"])
