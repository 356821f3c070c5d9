import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs import Net, nets
from remat.convnet import conv_net, mlp_net
from remat.cost import complete, flops, forward_cost, measured, roofline
from remat.gpt import gpt_layer
from remat.hardware import DEVICES, device

GPT3: dict[str, Any] = {"s": 2048, "b": 1, "h": 12288, "a": 96}
H100_FLOPS, H100_BYTES = 989e12, 3.35e12


def split(**more: Any) -> Any:
    return gpt_layer(**GPT3 | {"t": 8, "sequence_parallel": True} | more)


def core(costs: dict[str, float]) -> float:
    """The operations that selective recompute does again: all of the core but the product with V."""
    names = ("query_key", "causal_mask", "softmax", "draw_attention_mask", "attention_dropout")
    return sum(costs.get(name, 0) for name in names)


# --- reference values, section 3 ------------------------------------------------------------------------


@pytest.mark.parametrize("t", [1, 8])
def test_the_operation_table_of_the_reference(t: int) -> None:
    """Every operation, by hand: max(FLOPs/peak, bytes/bandwidth), all divided by t."""
    s, b, h, a = GPT3.values()
    sbh, matrix = s * b * h, a * s * s * b

    def product(k: int, n: int) -> float:  # compute bound here, whatever its bytes
        return 2 * s * b * k * n / t / H100_FLOPS

    def passes(bytes: float) -> float:
        return bytes / t / H100_BYTES

    attention = max(2 * b * s * s * h / t / H100_FLOPS, passes(4 * sbh + 2 * matrix))
    expected = {
        "layer_norm_1": passes(4 * sbh),
        "project_qkv": product(h, 3 * h),
        "query_key": attention,
        "softmax": passes(4 * matrix),
        "draw_attention_mask": passes(matrix),
        "attention_dropout": passes(5 * matrix),
        "times_value": attention,
        "project_out": product(h, h),
        "draw_mask1": passes(sbh),
        "add_residual1": passes(7 * sbh),
        "layer_norm_2": passes(4 * sbh),
        "feed_forward_1": product(h, 4 * h),
        "gelu": passes(16 * sbh),
        "feed_forward_2": product(4 * h, h),
        "draw_mask2": passes(sbh),
        "add_residual2": passes(7 * sbh),
    }
    found = roofline(split(t=t), device("H100"))
    assert list(found) == list(expected)
    assert found == pytest.approx(expected)
    without = roofline(split(t=t), device("H100"), residual_traffic=False)
    assert without == pytest.approx(expected | {"add_residual1": 0, "add_residual2": 0})


def test_one_forward_takes_1_18_ms_and_1_19_with_the_residual_traffic() -> None:
    layer = split()
    ms = [1e3 * forward_cost(roofline(layer, device("H100"), residual_traffic=on)) for on in (False, True)]
    assert [round(value, 2) for value in ms] == [1.18, 1.19]


@pytest.mark.parametrize(
    ("variation", "left_out", "counted"),
    [({}, 5.20, 5.14), ({"fused_dropout": True}, 4.84, 4.78), ({"causal_pass": True}, 6.56, 6.49)],
)
def test_what_counts_as_one_operation_moves_the_price_of_selective_recompute(
    variation: dict[str, bool], left_out: float, counted: float
) -> None:
    layer = split(**variation)
    for on, expected in ((False, left_out), (True, counted)):
        costs = roofline(layer, device("H100"), residual_traffic=on)
        assert round(100 * core(costs) / (3 * forward_cost(costs)), 2) == expected


@pytest.mark.parametrize(("elementwise", "expected"), [(False, 0.45), (True, 0.46)])
def test_the_price_of_selective_recompute_by_flops(elementwise: bool, expected: float) -> None:
    costs = flops(split(), elementwise=elementwise)
    assert round(100 * core(costs) / (3 * forward_cost(costs)), 2) == expected


# --- section 4 ------------------------------------------------------------------------------------------


def test_recompute_over_copying_out_and_back_on_pcie_5() -> None:
    layer, costs = split(), roofline(split(), device("H100"))
    both_ways = 2 / 50e9

    def ratio(seconds: float, *names: str) -> float:
        return 100 * seconds / (both_ways * layer.bytes_of(names))

    matrix = ratio(core(costs), "softmax", "attention_mask", "attention_dropout")
    assert round(matrix, 2) == 1.83
    assert round(ratio(costs["project_qkv"], "qkv")) == 31
    assert round(ratio(costs["feed_forward_1"], "gelu_in")) == 31


# --- the costs themselves -------------------------------------------------------------------------------


@given(nets())
def test_flops_sum_to_those_of_the_layer(net: Net) -> None:
    assert forward_cost(flops(net.layer)) == net.layer.flops
    assert list(flops(net.layer)) == [op.name for op in net.layer.operations]


def test_elementwise_work_counts_on_top() -> None:
    layer = conv_net(blocks=2, channels=8, height=4, width=4, batch=2)
    plain, all_of_it = flops(layer), flops(layer, elementwise=True)
    for op in layer.operations:
        assert all_of_it[op.name] - plain[op.name] == op.element_flops
    assert plain["relu1"] == 0 < all_of_it["relu1"]


@pytest.mark.parametrize("name", list(DEVICES))
def test_no_operation_is_faster_than_either_peak_and_one_of_them_binds(name: str) -> None:
    layer, gpu = conv_net(blocks=3, channels=64, height=8, width=8, batch=4), device(name)
    for op in layer.operations:
        by_flops, by_bytes = op.flops / gpu.flops, op.moved / gpu.bandwidth
        seconds = roofline(layer, gpu)[op.name]
        assert seconds >= by_flops and seconds >= by_bytes and seconds in (by_flops, by_bytes)


def test_only_residual_additions_can_be_left_out() -> None:
    net = conv_net(blocks=2, channels=8, height=4, width=4, batch=2)
    gpu = device("T4")
    assert roofline(net, gpu, residual_traffic=False) == roofline(net, gpu)


def test_measured_costs_come_in_the_order_of_execution() -> None:
    net = mlp_net(layers=2, width=4, batch=1)
    table = {"sigmoid2": 4, "linear1": 1.5, "linear2": 3, "sigmoid1": 2}
    found = measured(net, table)
    assert found == table
    assert list(found) == ["linear1", "sigmoid1", "linear2", "sigmoid2"]
    assert forward_cost(found) == 10.5


# --- bad input ------------------------------------------------------------------------------------------

NET = mlp_net(layers=1, width=4, batch=1)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"linear1": 1},
            r"must name every operation of 'multilayer perceptron', got none for \['sigmoid1'\]",
        ),
        ({}, r"got none for \['linear1', 'sigmoid1'\]"),
        ({"linear1": 1, "sigmoid1": 1, "gelu": 1}, "must be one of 'linear1', 'sigmoid1', got 'gelu'"),
        ({"linear1": -1, "sigmoid1": 1}, r"\['linear1'\] must be a finite number 0 or more, got -1"),
        ({"linear1": math.nan, "sigmoid1": 1}, r"\['linear1'\] must be a finite number 0 or more, got nan"),
        ({"linear1": "9", "sigmoid1": 1}, r"\['linear1'\] must be a number 0 or more, got '9'"),
        ([1, 2], r"must map names of operations to numbers, got \[1, 2\]"),
    ],
)
def test_a_table_that_is_not_complete_is_refused(table: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^seconds ?.*{message}"):
        measured(NET, table)
    with pytest.raises(ValueError, match=f"^costs ?.*{message}"):
        complete("costs", NET, table)


@pytest.mark.parametrize("wrong", ["H100", None, 989e12])
def test_roofline_wants_a_device(wrong: Any) -> None:
    with pytest.raises(ValueError, match="device must be a Device such as .* got "):
        roofline(NET, wrong)


@given(st.sampled_from(["fused_dropout", "causal_pass"]))
def test_a_fused_kernel_has_no_variations(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be False with flash=True"):
        gpt_layer(s=8, b=1, h=16, a=4, flash=True, **{name: True})


def test_the_variations_save_the_same_thirteen_tensors() -> None:
    plain = gpt_layer(**GPT3)
    for variation in ({"fused_dropout": True}, {"causal_pass": True}):
        varied = gpt_layer(**GPT3, **variation)
        assert varied.saved == plain.saved
        assert varied.flops == plain.flops
    fused = gpt_layer(**GPT3, fused_dropout=True)
    matrix = GPT3["a"] * GPT3["s"] ** 2
    assert sum(op.moved for op in plain.operations) - sum(op.moved for op in fused.operations) == matrix
    assert sum(op.element_flops for op in plain.operations) == sum(
        op.element_flops for op in fused.operations
    )
    causal = gpt_layer(**GPT3, causal_pass=True)
    assert sum(op.moved for op in causal.operations) - sum(op.moved for op in plain.operations) == 4 * matrix
