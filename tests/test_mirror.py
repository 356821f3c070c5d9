import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs import Net, execute, nets
from remat.chain import chain_of
from remat.convnet import conv_net, mlp_net
from remat.gpt import ATTENTION_CORE, gpt_layer
from remat.layer import Layer, Operation, Tensor
from remat.mirror import drop_kinds, mirror
from remat.replay import replay
from remat.schedules import recursive, uniform
from remat.sharing import POLICIES, check, live_bytes, share
from remat.steps import Program, training

GPT = gpt_layer(s=2048, b=1, h=12288, a=96)
CORE = ("softmax", "mask", "dropout")


@st.composite
def mirrored(draw: st.DrawFn, *, most: int) -> tuple[Net, dict[str, int], Program]:
    """A random net, a count for some of its operations, and the program that follows."""
    net = draw(nets())
    counts = {op.name: draw(st.integers(0, most)) for op in net.layer.operations if draw(st.booleans())}
    return net, counts, mirror(net.layer, counts)


def line(n: int) -> Layer:
    """A chain whose backward reads input and output, all of size and cost 1: the paper's own model."""
    names = ["x", *(f"y{i}" for i in range(1, n + 1))]
    operations = tuple(
        Operation(f"f{i}", "tanh", (names[i - 1],), (names[i],), (names[i - 1], names[i]), flops=1)
        for i in range(1, n + 1)
    )
    return Layer("line", tuple(Tensor(name, 1, "all") for name in names), operations, "x", names[-1])


# --- against the judge of chains ------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), [(16, 4), (17, 5), (1024, 32)])
def test_a_count_of_1_between_checkpoints_is_algorithm_1(n: int, k: int) -> None:
    counts = {f"f{i}": int(i % k != 0 and i != n) for i in range(1, n + 1)}
    program = mirror(line(n), counts, input_gradient=False)
    chain = chain_of([1] * n)
    counted = replay(chain, uniform(chain, k))
    assert max(live_bytes(program, in_place=True)) == share(program, "both").bytes == counted.peak
    assert program.recomputed_flops == counted.work


@pytest.mark.parametrize("n", [4, 16, 64, 1024])
def test_counts_by_depth_are_the_recursion(n: int) -> None:
    """Halve the chain again and again: the middle found at depth d has count d."""
    counts = {f"f{n}": 0}

    def halve(start: int, end: int, depth: int) -> None:
        if end - start > 1:
            middle = (start + end) // 2
            counts[f"f{middle}"] = depth
            halve(start, middle, depth + 1)
            halve(middle, end, depth + 1)

    halve(0, n, 0)
    program = mirror(line(n), counts, input_gradient=False)
    chain = chain_of([1] * n)
    counted = replay(chain, recursive(chain, 1))
    assert max(live_bytes(program, in_place=True)) == counted.peak
    assert len(program.recomputed) == counted.recomputed


# --- properties -----------------------------------------------------------------------------------------


@given(mirrored(most=3), st.sampled_from(POLICIES))
@settings(max_examples=200)
def test_gradients_are_bitwise_those_of_plain_training(
    drawn: tuple[Net, dict[str, int], Program], policy: str
) -> None:
    net, _, program = drawn
    plain = training(net.layer)
    assignment = share(program, policy)
    check(program, assignment)
    expected, found = execute(net, plain, share(plain, "none")), execute(net, program, assignment)
    assert {name: value.tobytes() for name, value in found.items()} == {
        name: value.tobytes() for name, value in expected.items()
    }


@given(mirrored(most=3))
def test_the_plan_is_in_order_and_makes_copies_just_before_they_are_needed(
    drawn: tuple[Net, dict[str, int], Program],
) -> None:
    net, counts, program = drawn
    there = {"x"}
    for now, step in enumerate(program.steps):
        assert there.issuperset(value.name for value in step.reads)
        assert there.isdisjoint(value.name for value in step.writes)
        there.update(value.name for value in step.writes)
        if step.phase == "recompute":
            rest = program.steps[now + 1 :]
            until = next(i for i, later in enumerate(rest) if later.phase == "backward")
            assert any(set(later.reads).intersection(step.writes) for later in rest[: until + 1])
    for op in net.layer.operations:
        assert program.recomputed.count(op) <= counts.get(op.name, 0)
    others = [(step.name, step.writes) for step in program.steps if step.phase != "recompute"]
    assert others == [(step.name, step.writes) for step in training(net.layer).steps]


@given(mirrored(most=1))
def test_one_level_recomputes_what_is_dropped_and_wanted(drawn: tuple[Net, dict[str, int], Program]) -> None:
    """Independent: walk back from what the backwards read, through dropped results, to kept ones."""
    net, counts, program = drawn
    layer = net.layer
    again: set[str] = set()
    kept: set[str] = set()

    def want(name: str) -> None:
        op = layer.maker(name)
        if op is None or not counts.get(op.name, 0):
            kept.add(name)
        elif op.name not in again:
            again.add(op.name)
            for source in op.inputs:
                want(source)

    for step in training(layer).steps:
        if step.phase == "backward":
            assert step.operation is not None
            for name in step.operation.backward_needs:
                want(name)
    assert {value.name for value in program.kept} == kept
    assert sorted(op.name for op in program.recomputed) == sorted(again)
    assert program.kept_bytes == sum(layer[name].bytes for name in kept)


@given(nets())
def test_a_count_of_0_everywhere_is_plain_training(net: Net) -> None:
    assert mirror(net.layer, {}) == training(net.layer)


# --- the papers' choices --------------------------------------------------------------------------------


def test_megatrons_selective_choice() -> None:
    program = mirror(GPT, drop_kinds(GPT, CORE, part=ATTENTION_CORE))
    assert program.kept_bytes == 34 * GPT.unit
    assert [op.name for op in program.recomputed] == [
        "query_key", "softmax", "draw_attention_mask", "attention_dropout",
    ]  # fmt: skip
    assert program.recomputed_flops == 2 * 2048**2 * 12288  # QKᵀ; ×V is not done again


def test_the_kinds_alone_drop_the_hidden_masks_too() -> None:
    assert mirror(GPT, drop_kinds(GPT, CORE)).kept_bytes == 32 * GPT.unit


def test_a_softmax_dropped_alone_puts_the_scores_in_its_place() -> None:
    counts = {"softmax": 1, "draw_attention_mask": 1, "attention_dropout": 1}
    program = mirror(GPT, counts)
    assert "scores" in {value.name for value in program.kept}
    assert program.kept_bytes == (34 + 2 * 96 * 2048 / 12288) * GPT.unit
    assert program.recomputed_flops == 0


def test_dropping_everything_keeps_the_input() -> None:
    program = mirror(GPT, {op.name: 1 for op in GPT.operations})
    assert program.kept_bytes == 2 * GPT.unit
    again = [op.name for op in program.recomputed]
    assert len(again) == len(set(again)) == len(GPT.operations) - 2  # not the last product, not the last sum


def test_the_papers_advice_keeps_the_convolutions() -> None:
    net = conv_net(blocks=5, channels=8, height=8, width=8, batch=2, pool_every=2)
    program = mirror(net, drop_kinds(net), input_gradient=False)
    assert [value.name for value in program.kept] == ["x", "conv1", "conv2", "conv3", "conv4", "conv5"]
    assert {op.kind for op in program.recomputed} == {"batch_norm", "relu", "max_pool"}
    assert program.recomputed_flops == 0
    plain = training(net, input_gradient=False)
    assert share(program, "both").bytes < 0.75 * share(plain, "both").bytes


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"conv9": 1}, "counts must be one of 'linear1', 'sigmoid1', got 'conv9'"),
        ({"linear1": -1}, "the count of 'linear1' must be a whole number at least 0, got -1"),
        ({"linear1": 0.5}, "the count of 'linear1' must be a whole number at least 0, got 0.5"),
    ],
)
def test_bad_counts_are_refused(counts: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        mirror(mlp_net(layers=1, width=2, batch=1), counts)


def test_unknown_kinds_and_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="kinds must be one of 'matmul', 'sigmoid', got 'relu'"):
        drop_kinds(mlp_net(layers=1, width=2, batch=1), ["relu"])
    with pytest.raises(ValueError, match="part must be one of .*, got 'attention'"):
        drop_kinds(mlp_net(layers=1, width=2, batch=1), part="attention")


def test_names_of_copies_are_not_taken() -> None:
    tensors = (Tensor("x", 1, "all"), Tensor("y", 1, "all"), Tensor("y'", 1, "all"))
    ops = (Operation("f", "relu", ("x",), ("y",), ("y",)), Operation("g", "relu", ("y",), ("y'",), ("y'",)))
    with pytest.raises(ValueError, match="named like copies"):
        mirror(Layer("odd", tensors, ops, "x", "y'"), {"f": 1})
