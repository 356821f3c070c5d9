from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat.choice import RECOMPUTE, kept
from remat.gpt import SHAPES, gpt_layer, shape
from remat.layer import Layer, ledger

GPT3 = {"s": 2048, "b": 1, "h": 12288, "a": 96}
MT_NLG = {"s": 2048, "b": 1, "h": 20480, "a": 128}
SECOND_TEXT = {"s": 2048, "b": 1, "h": 4096, "a": 32}


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, int]:
    """A shape whose parts divide as they must: t divides a and s, a divides h."""
    t, per_gpu, per_head, rows = (draw(st.integers(1, 12)) for _ in range(4))
    a = t * per_gpu
    return {"s": t * rows, "b": draw(st.integers(1, 5)), "h": a * per_head, "a": a, "t": t}


def letters(of: dict[str, int]) -> tuple[int, Fraction, int]:
    """sbh, 5as/h and t."""
    return of["s"] * of["b"] * of["h"], Fraction(5 * of["a"] * of["s"], of["h"]), of["t"]


# --- reference values, section 1 ------------------------------------------------------------------------


@given(shapes())
def test_the_ledger_of_thirteen_tensors(of: dict[str, int]) -> None:
    s, b, h, a = of["s"], of["b"], of["h"], of["a"]
    sbh, matrix = s * b * h, a * s * s * b
    listed = {entry.tensor: entry.bytes for entry in ledger(gpt_layer(s=s, b=b, h=h, a=a))}
    assert listed == {
        "x": 2 * sbh,
        "ln1": 2 * sbh,
        "qkv": 6 * sbh,
        "softmax": 2 * matrix,
        "attention_mask": matrix,
        "attention_dropout": 2 * matrix,
        "context": 2 * sbh,
        "mask1": sbh,
        "residual": 2 * sbh,
        "ln2": 2 * sbh,
        "gelu_in": 8 * sbh,
        "gelu_out": 8 * sbh,
        "mask2": sbh,
    }
    assert len(listed) == 13
    assert list(listed)[0] == "x" and list(listed)[-1] == "mask2"


@given(shapes())
def test_the_closed_forms_of_the_paper_are_what_the_graph_sums_to(of: dict[str, int]) -> None:
    sbh, attention, t = letters(of)
    alone = gpt_layer(**of | {"t": 1})
    assert alone.saved_bytes == sbh * (34 + attention)
    assert gpt_layer(**of).saved_bytes == sbh * (10 + Fraction(24, t) + attention / t)
    assert gpt_layer(**of, sequence_parallel=True).saved_bytes == sbh * (34 + attention) / t


@given(shapes())
def test_the_closed_forms_of_selective_and_full_recompute(of: dict[str, int]) -> None:
    sbh, _, t = letters(of)

    def keeps(word: str, **more: Any) -> float:
        layer = gpt_layer(**of, **more)
        return layer.bytes_of(kept(layer, recompute=word))

    assert keeps("selective") == sbh * (10 + Fraction(24, t))
    assert keeps("selective", sequence_parallel=True) == Fraction(34 * sbh, t)
    assert keeps("full") == 2 * sbh
    assert keeps("full", sequence_parallel=True) == Fraction(2 * sbh, t)
    assert keeps("none") == gpt_layer(**of).saved_bytes


@given(shapes(), st.booleans())
def test_a_fused_kernel_keeps_one_statistic_a_row_and_no_matrix(of: dict[str, int], split: bool) -> None:
    sbh, attention, t = letters(of)
    plain = gpt_layer(**of, sequence_parallel=split)
    fused = gpt_layer(**of, sequence_parallel=split, flash=True)
    rows = of["a"] * of["s"] * of["b"]
    assert plain.saved_bytes - fused.saved_bytes == (sbh * attention - 4 * rows) / t
    assert fused.flops == plain.flops
    names = {tensor.name for tensor in fused.tensors}
    assert not names & {"scores", "softmax", "attention_mask", "attention_dropout"}


def test_the_reference_configuration_of_the_second_text() -> None:
    layer = gpt_layer(**SECOND_TEXT)
    core = [entry for entry in ledger(layer) if entry.part == "attention core"]
    assert layer.saved_bytes == 956_301_312
    assert Fraction(sum(int(entry.bytes) for entry in core), int(layer.saved_bytes)) == Fraction(40, 57)
    assert round(100 * sum(entry.share for entry in core), 2) == 70.18


@given(shapes())
def test_flops_of_the_matrix_products(of: dict[str, int]) -> None:
    s, b, h = of["s"], of["b"], of["h"]
    forward = Fraction(24 * b * s * h * h + 4 * b * s * s * h, of["t"])
    assert gpt_layer(**of).flops == pytest.approx(float(forward), rel=1e-12)
    assert gpt_layer(**of, sequence_parallel=True).flops == gpt_layer(**of).flops


def core_share(layer: Layer, *names: str) -> float:
    """FLOPs of some operations as a share of the layer's forward."""
    return sum(op.flops for op in layer.operations if op.name in names) / layer.flops


def test_where_the_flops_of_the_second_text_go() -> None:
    layer = gpt_layer(**SECOND_TEXT)
    attention = core_share(layer, "query_key", "times_value")
    projections = core_share(layer, "project_qkv", "project_out")
    feed_forward = core_share(layer, "feed_forward_1", "feed_forward_2")
    assert attention == pytest.approx(1 / 13)
    assert [round(100 * share, 2) for share in (attention, projections, feed_forward)] == [7.69, 30.77, 61.54]
    assert attention + projections + feed_forward == pytest.approx(1)


@pytest.mark.parametrize(
    ("of", "saved", "appendix", "both", "one"),
    [(GPT3, 70, 2.7, 0.9, 0.45), (MT_NLG, 65, 1.6, 0.5, None)],
)
def test_what_selective_recompute_saves_and_costs(
    of: dict[str, int], saved: int, appendix: float, both: float, one: float | None
) -> None:
    layer = gpt_layer(**of)
    keeps = layer.bytes_of(kept(layer, recompute="selective"))
    assert round(100 * (1 - keeps / layer.saved_bytes)) == saved
    forward_and_backward = 3
    # The paper's appendix adds 12Bs²h, three times the two products of one forward.
    three_times = 3 * core_share(layer, "query_key", "times_value") / forward_and_backward
    assert round(100 * three_times, 1) == appendix
    s, h = of["s"], of["h"]
    assert three_times == pytest.approx((1 + s / (3 * h)) / (1 + s / (6 * h)) - 1)
    assert round(100 * core_share(layer, "query_key", "times_value") / forward_and_backward, 1) == both
    if one is not None:  # the output of ×V is kept, so only QKᵀ is done again
        assert round(100 * core_share(layer, "query_key") / forward_and_backward, 2) == one


def test_the_measured_layer_is_the_described_one_with_the_statistics_of_its_norms() -> None:
    of = {"s": 1024, "b": 1, "h": 256, "a": 1}  # 5as/h = 20
    layer = gpt_layer(**of, norm_statistic_bytes=2)  # floating point counted at 2 bytes
    found = [layer.bytes_of(kept(layer, recompute=word)) / layer.unit for word in RECOMPUTE]
    assert found == [54 + 8 / 256, 34 + 8 / 256, 2]
    assert [round(value, 3) for value in found] == [54.031, 34.031, 2.0]


# --- the graph ------------------------------------------------------------------------------------------


def test_the_graph_recomputes_what_the_lecture_says_from_what_selective_keeps() -> None:
    layer = gpt_layer(**SECOND_TEXT)
    dropped = {t.name for t in layer.saved} - set(kept(layer, recompute="selective"))
    assert dropped == {"softmax", "attention_mask", "attention_dropout"}
    transients = {"scores", "projection", "feed_forward", "out"}
    assert {tensor.name for tensor in layer.transients} == transients


@given(shapes(), st.booleans(), st.booleans(), st.sampled_from([0, 2, 4]))
def test_every_size_is_whole_and_none_is_below_zero(
    of: dict[str, int], split: bool, flash: bool, statistic: int
) -> None:
    layer = gpt_layer(**of, sequence_parallel=split, flash=flash, norm_statistic_bytes=statistic)
    assert all(isinstance(tensor.bytes, int) and tensor.bytes > 0 for tensor in layer.tensors)
    # t GPUs hold what one holds, and, without sequence parallelism, t − 1 more copies of what is repeated.
    whole = gpt_layer(**of | {"t": 1}, flash=flash, norm_statistic_bytes=statistic)
    for tensor in layer.tensors:
        copies = tensor.bytes * of["t"] / whole[tensor.name].bytes
        assert copies == 1 if split else copies in (1, of["t"])


def test_published_shapes() -> None:
    assert {name: (found.h, found.a, found.L, found.s) for name, found in SHAPES.items()} == {
        "22B": (6144, 64, 48, 2048),
        "GPT-3 175B": (12288, 96, 96, 2048),
        "MT-NLG 530B": (20480, 128, 105, 2048),
        "1T": (25600, 160, 128, 2048),
    }
    gpt3 = shape("GPT-3 175B")
    assert round(gpt_layer(s=1, b=1, h=gpt3.h, a=gpt3.a).parameters * gpt3.L / 1e9) == 174


# --- bad input ------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"s": 8, "b": 2, "h": 16, "a": 4, "t": 2}


@pytest.mark.parametrize("name", ["s", "b", "h", "a", "t"])
@pytest.mark.parametrize("value", [0, -8, 2.0, True, "8", None, float("nan"), [8]])
def test_a_size_must_be_a_positive_whole_number(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be a whole number at least 1, got ") as error:
        gpt_layer(**GOOD | {name: value})
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": 3, "t": 1}, "a must divide h: a=3 leaves a remainder of 1 in h=16"),
        ({"t": 3}, "t must divide a: t=3 leaves a remainder of 1 in a=4"),
        ({"t": 8}, "t must divide a: t=8 leaves a remainder of 4 in a=4"),
        ({"s": 9, "sequence_parallel": True}, "t must divide s: t=2 leaves a remainder of 1 in s=9"),
        ({"norm_statistic_bytes": -1}, "norm_statistic_bytes must be a whole number at least 0, got -1"),
    ],
)
def test_what_does_not_divide_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpt_layer(**GOOD | changes)


def test_without_sequence_parallelism_t_need_not_divide_s() -> None:
    assert gpt_layer(**GOOD | {"s": 9}).saved_bytes > 0


def test_an_unknown_shape_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="shape must be one of '22B', 'GPT-3 175B', .* got 'GPT-4'"):
        shape("GPT-4")
