import random
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from naive import pareto
from programs import Net, nets
from remat.choice import RECOMPUTE, kept, program, steady_wait
from remat.choices import Choice, Choices, every_choice
from remat.convnet import conv_net, mlp_net
from remat.cost import flops, roofline
from remat.figures import choice_frontiers, offload_frontiers
from remat.gpt import gpt_layer
from remat.hardware import LINKS, Link, device, link
from remat.layer import Layer, Operation, Tensor
from remat.steps import training

H100 = device("H100")
GPT = gpt_layer(s=2048, b=1, h=12288, a=96, t=8, sequence_parallel=True)
SBH = GPT.unit / 8  # what §3 measures in, on one of eight GPUs
BY_TIME = every_choice(GPT, roofline(GPT, H100, residual_traffic=False))
COUNTED = every_choice(GPT, roofline(GPT, H100))
BY_FLOPS = every_choice(GPT, flops(GPT))
MORE = ("ln1", "ln2", "gelu_out", "mask1", "mask2")  # what 20·sbh drops beside the attention core


def at(s: int, **ways: bool) -> Choices:
    layer = gpt_layer(s=s, b=1, h=12288, a=96, t=8, sequence_parallel=True)
    return every_choice(layer, roofline(layer, H100, residual_traffic=False), **ways)


# --- the oracle: one choice after the other, by recursion -------------------------------------------------


def again(layer: Layer, there: Iterable[str], needed: Iterable[str] | None = None) -> set[str]:
    """Name the operations that must run again, by asking for one tensor after the other."""
    available, ran = {layer.input, *there}, set()

    def ask(name: str) -> None:
        if name not in available:
            (op,) = [op for op in layer.operations if name in op.outputs]
            if op.name not in ran:
                ran.add(op.name)
                for source in op.inputs:
                    ask(source)

    for name in needed or [name for op in layer.operations for name in op.backward_needs]:
        ask(name)
    return ran


def every_way(choices: Choices) -> Iterator[dict[str, str]]:
    """All choices in the order of the arrays: the first tensor's way changes last."""
    for words in product(*choices.ways.values()):
        yield dict(zip(choices.ways, words, strict=True))


def check(choices: Choices, costs: dict[str, float]) -> None:
    """Compare every entry of the arrays with the recursion."""
    layer, index = choices.layer, -1
    for index, way in enumerate(every_way(choices)):
        stay = {layer.input} - set(way) | {name for name, word in way.items() if word == "keep"}
        away = {name for name, word in way.items() if word == "offload"}
        assert choices.kept[index] == sum(layer[name].bytes for name in stay)
        assert choices.copied[index] == sum(layer[name].bytes for name in away)
        cost = sum(costs[name] for name in again(layer, stay | away))
        assert choices.recompute[index] == pytest.approx(cost, rel=1e-12)
    assert index == len(choices) - 1 == len(choices.copied) - 1 == len(choices.recompute) - 1


RANDOM = {op.name: random.Random(i).uniform(0, 1) for i, op in enumerate(GPT.operations)}


@pytest.mark.parametrize(
    "costs",
    [flops(GPT), flops(GPT, elementwise=True), roofline(GPT, H100), RANDOM],
    ids=["flops", "elementwise", "roofline", "measured"],
)
def test_all_4096_choices_against_the_recursion(costs: dict[str, float]) -> None:
    choices = every_choice(GPT, costs)
    assert len(choices) == 4096 and choices.forward == pytest.approx(sum(costs.values()))
    check(choices, costs)


@settings(max_examples=60)
@given(nets(most=6), st.booleans(), st.booleans(), st.randoms())
def test_random_graphs_against_the_recursion(
    net: Net, offload: bool, whole: bool, rng: random.Random
) -> None:
    """Operations with two results, masks that are made from nothing, tensors read twice."""
    costs = {op.name: rng.choice([0, 1, 2.5, 7]) for op in net.layer.operations}
    check(every_choice(net.layer, costs, offload=offload, offload_input=whole), costs)


@settings(max_examples=10)
@given(nets(most=9), st.randoms())
def test_larger_random_graphs_against_the_recursion(net: Net, rng: random.Random) -> None:
    costs = {op.name: rng.uniform(0, 9) for op in net.layer.operations}
    check(every_choice(net.layer, costs), costs)


def test_offloaded_tensors_of_the_gpt_layer_against_the_recursion() -> None:
    costs, choices = roofline(GPT, H100), every_choice(GPT, roofline(GPT, H100), offload=True)
    assert len(choices) == 3**12
    for index in random.Random(0).sample(range(3**12), 2000):
        choice = choices[index]
        expected = sum(costs[name] for name in again(GPT, choice.kept + choice.offloaded))
        assert choice.recompute == pytest.approx(expected, rel=1e-12)
        assert choice.kept_bytes == GPT.bytes_of(choice.kept)
        assert choice.copied_bytes == GPT.bytes_of(choice.offloaded)
        assert choices.of(choice.kept, offloaded=choice.offloaded) == choice


# --- a choice is a program ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variation", "stride"),
    [({}, 1), ({"fused_dropout": True}, 17), ({"flash": True, "norm_statistic_bytes": 4}, 17)],
)
def test_all_4096_programs_keep_and_recompute_what_the_enumeration_says(
    variation: dict[str, Any], stride: int
) -> None:
    layer = gpt_layer(s=8, b=1, h=16, a=2, **variation)
    costs = {op.name: 2.0**i for i, op in enumerate(layer.operations)}  # a sum says which operations ran
    choices = every_choice(layer, costs)
    for index in range(0, len(choices), stride):
        choice = choices[index]
        steps = program(layer, kept=choice.kept)
        assert {value.name for value in steps.kept} == set(choice.kept)
        assert steps.kept_bytes == choice.kept_bytes
        ran = [op.name for op in steps.recomputed]
        assert len(ran) == len(set(ran))
        assert sum(costs[name] for name in ran) == choice.recompute


@settings(max_examples=150)
@given(nets(most=7), st.data())
def test_programs_of_random_graphs_keep_and_recompute_what_the_enumeration_says(
    net: Net, data: st.DataObject
) -> None:
    layer = net.layer
    read = {v.tensor for step in training(layer).steps if step.phase == "backward" for v in step.reads[1:]}
    saved = {tensor.name for tensor in layer.saved}
    assume(saved <= read)  # nothing that no gradient reaches
    choices = every_choice(layer, {op.name: 2.0**i for i, op in enumerate(layer.operations)})
    choice = choices[data.draw(st.integers(0, len(choices) - 1))]
    steps = program(layer, kept=choice.kept)
    assert sum(2.0 ** int(op.name.removeprefix("op")) for op in steps.recomputed) == pytest.approx(
        sum(2.0 ** int(name.removeprefix("op")) for name in again(layer, choice.kept))
    )
    held = {value.name for value in steps.kept}
    assert held - {layer.input} == set(choice.kept) - {layer.input}


# --- reference values, section 3 ------------------------------------------------------------------------


def price(choices: Choices, *also: str) -> tuple[float, float]:
    """Bytes kept in sbh and percent recomputed, when selective recompute drops more tensors."""
    choice = choices.of(set(kept(choices.layer, recompute="selective")) - set(also))
    return choice.kept_bytes / SBH, 100 * choice.share


def test_the_table_of_the_reference() -> None:
    for choices, at_34, at_20, at_2 in ((BY_TIME, 5.20, 5.89, 24.5), (COUNTED, 5.14, 5.82, 24.4)):
        assert (price(choices)[0], round(price(choices)[1], 2)) == (34, at_34)
        assert (price(choices, *MORE)[0], round(price(choices, *MORE)[1], 2)) == (20, at_20)
        full = choices.of(kept(GPT, recompute="full"))
        assert (full.kept_bytes / SBH, round(100 * full.share, 1)) == (2, at_2)
    assert [round(price(BY_FLOPS, *also)[1], 2) for also in ((), MORE)] == [0.45, 0.45]
    assert round(100 * BY_FLOPS.of(["x"]).share, 1) == 22.5


def test_with_elementwise_flops_34_costs_0_46_and_20_costs_0_47() -> None:
    choices = every_choice(GPT, flops(GPT, elementwise=True))
    assert [round(price(choices, *also)[1], 2) for also in ((), MORE)] == [0.46, 0.47]


def on_frontier(choices: Choices, *also: str) -> bool:
    choice = choices.of(set(kept(choices.layer, recompute="selective")) - set(also))
    return any(
        (point.kept_bytes, point.recompute) == (choice.kept_bytes, choice.recompute)
        for point in choices.frontier
    )


@pytest.mark.parametrize("variation", [{}, {"fused_dropout": True}, {"causal_pass": True}])
@pytest.mark.parametrize("residual", [False, True])
def test_megatrons_choice_is_on_the_frontier_by_time_whatever_counts_as_one_operation(
    variation: dict[str, bool], residual: bool
) -> None:
    layer = gpt_layer(s=2048, b=1, h=12288, a=96, t=8, sequence_parallel=True, **variation)
    choices = every_choice(layer, roofline(layer, H100, residual_traffic=residual))
    assert on_frontier(choices)
    assert on_frontier(choices, *MORE)


def test_by_flops_dropping_more_is_free_so_megatrons_choice_is_off_the_frontier() -> None:
    assert not on_frontier(BY_FLOPS)
    assert on_frontier(BY_FLOPS, *MORE)


def test_below_20_the_frontier_climbs() -> None:
    climb = {point.kept_bytes / SBH: 100 * point.share for point in BY_TIME.frontier}
    assert [round(climb[size], 2) for size in (18, 16)] == [6.84, 9.05]
    assert [round(climb[size], 1) for size in (12, 8, 4)] == [13.5, 17.9, 22.3]
    assert climb[114] == 0


def test_full_recompute_costs_less_than_a_forward_because_the_last_product_is_not_needed() -> None:
    layer = GPT
    ran = [op.name for op in program(layer, kept=["x"]).recomputed]
    assert {op.name for op in layer.operations} - set(ran) == {"feed_forward_2", "add_residual2"}


# --- section 4 ------------------------------------------------------------------------------------------

THREE = [link("PCIe 4"), link("PCIe 5"), link("NVLink-C2C")]


def selective_offloaded(choices: Choices) -> Choice:
    """Recompute the attention core, offload the rest: 34·sbh/t, the input included."""
    return choices.of([], offloaded=kept(choices.layer, recompute="selective"))


@pytest.fixture(scope="module")
def offloading() -> dict[int, Choices]:
    return {s: at(s, offload=True, offload_input=True) for s in (2048, 8192, 32768)}


def test_waits_of_the_reference(offloading: dict[int, Choices]) -> None:
    expected = {2048: [129.7, 25.7, 0], 8192: [40.1, 5.3, 0]}
    for s, choices in offloading.items():
        choice = selective_offloaded(choices)
        assert choice.kept_bytes == 0 and choice.copied_bytes == 34 * choices.layer.unit / 8
        plain = 3 * choice.forward + choice.recompute
        waits = [
            100 * steady_wait(choice.copied_bytes, choice.forward, choice.recompute, link=one) / plain
            for one in THREE
        ]
        if s in expected:
            assert waits == pytest.approx(expected[s], abs=0.05 + 1e-9)
        else:
            assert max(waits) < 1


def test_selective_and_offload_against_full_recompute_at_8192(offloading: dict[int, Choices]) -> None:
    choices = offloading[8192]
    choice = selective_offloaded(choices)
    steady = [100 * choice.overhead(one) for one in THREE]
    assert [round(value, 1) for value in steady] == [58.7, 19.4, 13.3]
    # The reference's 57.8 / 19.2 / 13.3 are of a step of 96 layers, the last two of which are not copied.
    waits = [value - 100 * choice.share for value in steady]
    assert [round(100 * choice.share + wait * 94 / 96, 1) for wait in waits] == [57.8, 19.2, 13.3]
    full = choices.of(["x"])
    assert round(100 * full.share, 1) == 27.6
    assert steady[0] > 100 * full.share > steady[1] > steady[2]


def test_offloading_the_checkpoints_alone_hides_when_they_are_sharded(offloading: dict[int, Choices]) -> None:
    for choices in offloading.values():
        choice = choices.of([], offloaded=["x"])
        assert [choice.overhead(one) for one in THREE] == [choice.share] * 3


@given(st.floats(0, 1e9), st.floats(0, 1), st.floats(0, 1), st.sampled_from(list(LINKS)))
def test_the_steady_wait_is_what_does_not_fit_beside_compute(
    copied: float, forward: float, again: float, name: str
) -> None:
    copy = copied / link(name).bandwidth
    expected = max(0, copy - forward) + max(0, copy - (2 * forward + again))
    found = steady_wait(copied, forward, again, link=link(name))
    assert found == pytest.approx(expected, abs=1e-12)
    many = steady_wait(np.full(3, copied), forward, np.full(3, again), link=link(name))
    assert many.tolist() == [found] * 3


def test_the_array_of_overheads_is_that_of_each_choice() -> None:
    choices = at(2048, offload=True)
    for one in THREE:
        column = choices.overhead(one)
        for index in random.Random(1).sample(range(len(choices)), 200):
            assert column[index] == pytest.approx(choices[index].overhead(one), rel=1e-12)


# --- frontiers ------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(nets(most=6), st.randoms(), st.sampled_from([1, 8, 64, 1e9]))
def test_frontiers_hold_what_nothing_beats(net: Net, rng: random.Random, bandwidth: float) -> None:
    assume(net.layer.operations)
    costs = {op.name: rng.choice([0, 1, 2, 4]) for op in net.layer.operations}
    costs[net.layer.operations[0].name] = 4  # a forward that costs nothing has no shares
    choices = every_choice(net.layer, costs, offload=True, offload_input=rng.random() < 0.5)
    found = [(point.kept_bytes, round(point.share, 9)) for point in choices.frontier]
    every = [choices[i] for i in range(len(choices))]
    assert found == pareto((c.kept_bytes, round(c.share, 9)) for c in every if not c.offloaded)
    one = Link("test", bandwidth, bandwidth, "made up")
    found = [(point.kept_bytes, round(point.overhead(one), 9)) for point in choices.frontier_with(one)]
    assert found == pareto((c.kept_bytes, round(c.overhead(one), 9)) for c in every)
    for point, (size, cost) in zip(choices.frontier_with(one), found, strict=True):
        equal = [c for c in every if (c.kept_bytes, round(c.overhead(one), 9)) == (size, cost)]
        assert point.copied_bytes == min(c.copied_bytes for c in equal)


def test_a_fast_link_takes_all_that_it_may() -> None:
    everything = at(2048, offload=True).frontier_with(link("NVLink-C2C"))
    assert [(point.kept_bytes / SBH, point.recompute) for point in everything] == [(2, 0)]
    assert len(everything[0].offloaded) == 12


def test_a_link_never_makes_the_frontier_worse_and_a_faster_one_never_costs_more() -> None:
    choices = at(8192, offload=True)
    least = []
    for one in (None, *sorted(LINKS.values(), key=lambda one: one.bandwidth)):
        points = choices.frontier if one is None else choices.frontier_with(one)
        sizes = np.array([point.kept_bytes for point in points])
        costs = [point.share if one is None else point.overhead(one) for point in points]
        budgets = np.array([2, 8, 20, 34, 114]) * choices.layer.unit / 8
        least.append([costs[i] for i in np.searchsorted(sizes, budgets, side="right") - 1])
    assert (np.diff(np.array(least), axis=0) <= 1e-12).all()


# --- any layer ------------------------------------------------------------------------------------------


def test_a_fused_kernel_leaves_no_attention_matrix_to_choose_about() -> None:
    layer = gpt_layer(s=2048, b=1, h=12288, a=96, flash=True, norm_statistic_bytes=4)
    choices = every_choice(layer, roofline(layer, H100))
    assert len(choices) == 2 ** (len(layer.saved) - 1)
    assert max(choices.kept) == layer.saved_bytes
    dropped = choices.of(kept(layer, recompute="selective"))
    ran = layer.maker("softmax_statistics")
    assert ran is not None and dropped.recompute == roofline(layer, H100)[ran.name]


def test_a_convolutional_net_keeps_its_convolutions_first() -> None:
    net = conv_net(blocks=4, channels=64, height=32, width=32, batch=8)
    choices = every_choice(net, flops(net))
    free = [point for point in choices.frontier if point.recompute == 0][-1]
    assert free.kept_bytes < net.saved_bytes  # by FLOPs of products, batch norm and ReLU come for free
    assert {name for name in free.kept if name.startswith("conv")} == {f"conv{i}" for i in range(1, 5)}


def test_the_named_choices_are_found() -> None:
    for word in RECOMPUTE:
        choice = BY_TIME.of(kept(GPT, recompute=word))
        assert choice.kept == kept(GPT, recompute=word) and choice.offloaded == ()
    assert BY_TIME.of([]) == BY_TIME.of(["x"])
    assert BY_TIME[0] == BY_TIME.of(kept(GPT, recompute="none"))


def test_a_layer_whose_operations_cost_nothing_has_no_overhead() -> None:
    net = mlp_net(layers=2, width=4, batch=1)
    choices = every_choice(net, dict.fromkeys((op.name for op in net.operations), 0))
    assert [choice.share for choice in choices.frontier] == [0]
    assert choices[0].overhead(link("PCIe 4")) == 0 and not choices.overhead(link("PCIe 4")).any()


def test_a_layer_with_nothing_to_choose_about_has_one_choice() -> None:
    ends = (Tensor("x", 3, "all"), Tensor("y", 3, "all"))
    choices = every_choice(
        Layer("scale", ends, (Operation("scale", "residual", ("x",), ("y",)),), "x", "y"), {"scale": 2}
    )
    assert choices.frontier == (choices.of([]),) == (Choice(("x",), (), 3, 0, 0, 2),)


def test_arrays_and_ways_cannot_be_changed() -> None:
    for column in (BY_TIME.kept, BY_TIME.copied, BY_TIME.recompute):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
    with pytest.raises(TypeError):
        BY_TIME.ways["x"] = ("keep",)  # type: ignore[index]


# --- bad input ------------------------------------------------------------------------------------------


def long_net(n: int) -> Layer:
    names = ["x", *(f"y{i}" for i in range(n))]
    return Layer(
        "long",
        tuple(Tensor(name, 1, "all") for name in names),
        tuple(Operation(f"f{i}", "tanh", (names[i],), (names[i + 1],), (names[i + 1],)) for i in range(n)),
        "x",
        names[-1],
    )


@pytest.mark.parametrize(("n", "offload", "total"), [(23, False, "8,388,608"), (15, True, "14,348,907")])
def test_too_many_tensors_are_refused_with_the_limit(n: int, offload: bool, total: str) -> None:
    net = long_net(n)
    limit = r"layer must have at most 5,000,000 choices \(22 tensors, 14 with offload\)"
    with pytest.raises(ValueError, match=rf"{limit}, got {total} of 'long' with {n} tensors"):
        every_choice(net, flops(net), offload=offload)


def test_what_the_limit_says_is_let_through() -> None:
    net = long_net(14)
    assert len(every_choice(net, flops(net), offload=True)) == 3**14


OFFLOADING = every_choice(mlp_net(layers=2, width=4, batch=1), {
    "linear1": 1, "sigmoid1": 1, "linear2": 1, "sigmoid2": 1
}, offload=True)  # fmt: skip
INPUT = every_choice(OFFLOADING.layer, flops(OFFLOADING.layer), offload_input=True)


@pytest.mark.parametrize(
    ("choices", "stay", "away", "message"),
    [
        (BY_TIME, ["scores"], [], r"kept must name tensors among x, ln1, .*, got \['scores'\]"),
        (BY_TIME, [], ["qkv"], r"offloaded must name tensors among none, got \['qkv'\]"),
        (OFFLOADING, [], ["x"], r"offloaded must name tensors among sigmoid1, sigmoid2, got \['x'\]"),
        (OFFLOADING, ["sigmoid1"], ["sigmoid1"], r"must not name what is kept, got \['sigmoid1'\] in both"),
        (INPUT, ["sigmoid1"], [], "kept or offloaded must name 'x', which no operation can make again"),
        (INPUT, ["x"], ["sigmoid1"], r"offloaded must name tensors among x, got \['sigmoid1'\]"),
    ],
)
def test_a_choice_that_is_not_there_is_refused(
    choices: Choices, stay: list[str], away: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        choices.of(stay, offloaded=away)


def test_costs_must_be_complete() -> None:
    with pytest.raises(ValueError, match="costs must name every operation of 'GPT layer', got none for"):
        every_choice(GPT, {"gelu": 1})


@pytest.mark.parametrize("index", [-1, 4096, 10**9])
def test_there_is_no_choice_beyond_the_last(index: int) -> None:
    with pytest.raises(IndexError):
        BY_TIME[index]


# --- figures --------------------------------------------------------------------------------------------


def test_the_figures_draw_the_frontiers_that_they_are_given() -> None:
    (axes,) = choice_frontiers(BY_FLOPS, BY_TIME, unit=SBH).axes
    lines = {line.get_label(): line for line in axes.lines}
    for label, choices in (("by time (roofline)", BY_TIME), ("by FLOPs of matrix products", BY_FLOPS)):
        drawn = set(zip(*(np.asarray(data).tolist() for data in lines[label].get_data()), strict=True))
        assert {(point.kept_bytes / SBH, 100 * point.share) for point in choices.frontier} <= drawn
    said = {text.get_text() for text in axes.texts}
    assert said == {"selective, 34: 5.20 %", "full, 2: 24.50 %", "selective, 34: 0.45 %", "full, 2: 22.52 %"}


@pytest.mark.parametrize("whole", [False, True])
def test_a_panel_a_link(whole: bool) -> None:
    net = OFFLOADING.layer
    costs: dict[str, Any] = {op.name: 1e-3 for op in net.operations}
    fig = offload_frontiers(every_choice(net, costs, offload=True, offload_input=whole), THREE)
    assert [axes.get_title(loc="left") for axes in fig.axes] == [
        "PCIe 4, 25 GB/s", "PCIe 5, 50 GB/s", "NVLink-C2C, 450 GB/s",
    ]  # fmt: skip
