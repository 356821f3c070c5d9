"""The segment model against its worked examples, against replay, and against the layer it reads."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naive import naive_replay
from remat.chain import chain_of
from remat.choice import RECOMPUTE
from remat.convnet import mlp_net
from remat.gpt import gpt_layer
from remat.replay import replay
from remat.schedules import store_all, uniform
from remat.segment_model import Estimate, chain_of_layers, segment_model, shares
from strategies import MODELS

REFERENCE = gpt_layer(s=2048, b=1, h=4096, a=32)
M, F = Fraction(40, 57), Fraction(1, 13)
SHAPES = [(2048, 1, 4096, 32), (2048, 1, 12288, 96), (512, 2, 256, 8), (8192, 1, 4096, 32)]


def units(mode: str, L: int, k: int) -> float:
    """The peak where a layer is one tensor of size 1."""
    return segment_model(mode, L=L, k=k, A=1, m=1, f=0).peak


# The worked examples of the text


@pytest.mark.parametrize(
    ("L", "k", "A", "mode", "peak", "in_layers", "saving", "forward", "compute"),
    [
        (32, 4, 912, "none", 29184, 32, 0, 0, 0),
        (32, 4, 912, "full", 10944, 12, Fraction(5, 8), 1, Fraction(1, 3)),
        (32, 4, 912, "selective", 16384, Fraction(1024, 57), Fraction(25, 57), F, F / 3),
        (48, 6, 512, "none", 24576, 48, 0, 0, 0),
        (48, 6, 512, "full", 7168, 14, Fraction(34, 48), 1, Fraction(1, 3)),
        (48, 6, 512, "selective", Fraction(704512, 57), Fraction(1376, 57), Fraction(85, 171), F, F / 3),
    ],
)
def test_both_worked_groups(
    L: int, k: int, A: int, mode: str, peak: float, in_layers: float, saving: float, forward: float,
    compute: float,
) -> None:  # fmt: skip
    found = segment_model(mode, L=L, k=k, A=A, m=float(M), f=float(F))
    assert found.peak == pytest.approx(float(peak), rel=1e-12)
    assert found.peak / A == pytest.approx(float(in_layers), rel=1e-12)
    assert found.saving == pytest.approx(float(saving), abs=1e-12)
    assert found.extra_forward == pytest.approx(float(forward), rel=1e-12)
    assert found.extra_compute == pytest.approx(float(compute), rel=1e-12)


def test_the_worked_groups_as_they_are_printed() -> None:
    said = []
    for L, k, A in ((32, 4, 912e6), (48, 6, 512e6)):
        for mode in ("none", "full", "selective"):
            found = segment_model(mode, L=L, k=k, A=A, m=float(M), f=float(F))
            said.append(f"{found.peak / 1e9:.1f} {found.saving:.1%} {found.extra_compute:.1%}")
    assert said == [
        "29.2 0.0% 0.0%", "10.9 62.5% 33.3%", "16.4 43.9% 2.6%",
        "24.6 0.0% 0.0%", "7.2 70.8% 33.3%", "12.4 49.7% 2.6%",
    ]  # fmt: skip


def test_both_ends_of_full_ask_for_one_layer_more_than_keeping_everything() -> None:
    for L in (12, 32, 48):
        assert units("full", L, 1) == units("full", L, L) == L + 1 == units("none", L, 1) + 1


def test_one_segment_of_selective_saves_nothing_either() -> None:
    found = segment_model("selective", L=32, k=32, A=1, m=float(M), f=float(F))
    assert found.peak == pytest.approx(32 + 40 / 57) and found.saving < 0


# Against replay


@pytest.mark.parametrize("needs", MODELS)
@given(L=st.integers(1, 14), data=st.data())
def test_full_differs_from_replay_by_exactly_one_tensor(needs: str, L: int, data: st.DataObject) -> None:
    """The tensor counted twice makes up for the chain's input; what is left over is the gradient.

    Where k does not divide L the last segment is short, so one checkpoint is gone when a whole segment is
    replayed, and the numbers happen to agree.
    """
    k = data.draw(st.integers(1, L))
    line = chain_of([1] * L, needs=needs)  # type: ignore[arg-type]
    counted = replay(line, uniform(line, k)).peak
    assert counted == naive_replay(line, uniform(line, k)).peak
    assert counted - units("full", L, k) == (1 if L % k == 0 else 0)


@given(st.integers(1, 14), st.data())
def test_activations_alone_are_one_tensor_fewer_where_checkpoints_are_outputs(
    L: int, data: st.DataObject
) -> None:
    """Without the chain's input and the gradient, replay has one tensor less than s + k: the overlap."""
    k = data.draw(st.sampled_from([k for k in range(1, L + 1) if L % k == 0]))
    line = chain_of([1] * L)
    moments = naive_replay(line, uniform(line, k)).after
    most = max(moment.kept + moment.recomputed - 1 for moment in moments)  # 1: the input, always kept
    assert units("full", L, k) - most == 1


@pytest.mark.parametrize("L", [1, 5, 12])
def test_none_leaves_out_the_input_and_the_gradient(L: int) -> None:
    line = chain_of([1] * L)
    assert replay(line, store_all(line)).peak - units("none", L, 1) == 2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("k", [1, 2, 3, 4, 6, 12])
def test_full_is_exact_for_layers_once_a_checkpoint_is_what_it_is(shape: tuple[int, ...], k: int) -> None:
    s, b, h, a = shape
    layer = gpt_layer(s=s, b=b, h=h, a=a)
    found = shares(layer)
    line = chain_of_layers(layer, L=12)
    estimate = segment_model("full", L=12, k=k, A=found.A, m=found.m, f=found.f, checkpoint=found.checkpoint)
    beside = layer["out"].bytes + line.stages[0].scratch_backward  # the gradient, and backward's scratch
    assert replay(line, uniform(line, k)).peak == estimate.peak + beside


@pytest.mark.parametrize("shape", SHAPES)
def test_selective_is_exact_for_layers_one_core_at_a_time(shape: tuple[int, ...]) -> None:
    s, b, h, a = shape
    layer = gpt_layer(s=s, b=b, h=h, a=a)
    found = shares(layer)
    estimate = segment_model("selective", L=12, k=1, A=found.A, m=found.m, f=found.f, checkpoint=0)
    plain, line = (chain_of_layers(layer, L=12, recompute=word) for word in ("none", "selective"))
    beside = replay(plain, store_all(plain)).peak - 12 * found.A  # the same that "none" leaves out
    assert replay(line, store_all(line)).peak == pytest.approx(estimate.peak + beside, rel=1e-12)


def test_a_layer_of_one_tensor_is_the_model_that_the_formula_has_in_mind() -> None:
    """If a checkpoint is as large as all a layer keeps, the best k is near the root; if it is small, 1."""
    found = shares(REFERENCE)
    spacings = [1, 2, 4, 8, 16, 32]
    common = {"L": 32, "A": found.A, "m": found.m, "f": found.f}
    by_formula = {k: segment_model("full", k=k, **common).peak for k in spacings}
    line = chain_of_layers(REFERENCE, L=32)
    counted = {k: replay(line, uniform(line, k)).peak for k in spacings}
    assert min(by_formula, key=lambda k: by_formula[k]) in (4, 8)
    assert min(counted, key=lambda k: counted[k]) == 1
    assert by_formula[1] > 32 * found.A and counted[1] < 2 * found.A


@pytest.mark.parametrize("shape", [(2048, 1, 4096, 32), (2048, 1, 12288, 96)])
@pytest.mark.parametrize("L", [32, 48])
def test_the_model_is_an_upper_bound_for_layers_that_recompute(shape: tuple[int, ...], L: int) -> None:
    s, b, h, a = shape
    layer = gpt_layer(s=s, b=b, h=h, a=a)
    found = shares(layer)
    plain, core = (chain_of_layers(layer, L=L, recompute=word) for word in ("none", "selective"))
    kept_core = replay(core, store_all(core)).peak
    for k in (1, 2, 5, 8, 16, L):
        full, selective = (
            segment_model(mode, L=L, k=k, A=found.A, m=found.m, f=found.f).peak
            for mode in ("full", "selective")
        )
        assert replay(plain, uniform(plain, k)).peak < full and kept_core < selective


# What it reads off a layer


@pytest.mark.parametrize("shape", SHAPES)
def test_shares_are_those_of_the_papers_formulas(shape: tuple[int, ...]) -> None:
    s, b, h, a = shape
    found = shares(gpt_layer(s=s, b=b, h=h, a=a))
    A = 34 * s * b * h + 5 * a * s * s * b
    assert A == found.A and found.checkpoint == 2 * s * b * h
    assert found.m == float(Fraction(5 * a * s * s * b, A))
    assert found.f == float(Fraction(4 * s * s * h, 24 * s * h * h + 4 * s * s * h))


def test_the_reference_configuration() -> None:
    found = shares(REFERENCE)
    assert (found.A, found.m, found.f) == (956_301_312, float(M), float(F))


def test_a_layer_without_attention_has_no_core() -> None:
    found = shares(mlp_net(layers=2, width=8, batch=4))
    assert found.m == found.f == 0


@pytest.mark.parametrize("mode", RECOMPUTE)
def test_a_chain_of_layers_keeps_what_the_layers_keep(mode: str) -> None:
    line = chain_of_layers(REFERENCE, L=3, recompute=mode)
    kept = {"none": 114, "selective": 34, "full": 2}[mode] * REFERENCE.unit
    assert len(line) == 3 and line.stages[0].saved + line.input == kept
    assert line.stages[0].forward_s == REFERENCE.flops


# Bad input

GOOD = {"L": 32, "k": 4, "A": 1e9, "m": 0.7, "f": 0.1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"L": 0}, "L must be a whole number at least 1, got 0"),
        ({"L": 3.0}, "L must be a whole number at least 1, got 3.0"),
        ({"k": 33}, "k must be a whole number from 1 to 32, got 33"),
        ({"k": True}, "k must be a whole number from 1 to 32, got True"),
        ({"A": 0}, "A must be a finite number above 0, got 0"),
        ({"m": 1.5}, "m must be a share from 0 to 1, got 1.5"),
        ({"f": -0.1}, "f must be a finite number 0 or more, got -0.1"),
        ({"f": 2}, "f must be a share from 0 to 1, got 2"),
        ({"checkpoint": -1}, "checkpoint must be a finite number 0 or more, got -1"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        segment_model("full", **(GOOD | change))  # type: ignore[arg-type]


@pytest.mark.parametrize("call", [lambda w: segment_model(w, **GOOD), lambda w: units(w, 2, 1)])
def test_an_unknown_mode_is_refused(call: object) -> None:
    with pytest.raises(ValueError, match="mode must be one of 'none', 'selective', 'full', got 'half'"):
        call("half")  # type: ignore[operator]
    with pytest.raises(ValueError, match="recompute must be one of"):
        chain_of_layers(REFERENCE, L=2, recompute="half")


@given(
    mode=st.sampled_from(RECOMPUTE),
    L=st.integers(1, 200),
    k=st.integers(1, 200),
    A=st.floats(1, 1e12),
    m=st.floats(0, 1),
    f=st.floats(0, 1),
)
def test_every_estimate_is_consistent(mode: str, L: int, k: int, A: float, m: float, f: float) -> None:
    k = min(k, L)
    found: Estimate = segment_model(mode, L=L, k=k, A=A, m=m, f=f)
    assert found.plain == L * A and found.peak >= 0 and 0 <= found.extra_forward <= 1
    assert found.saving == pytest.approx(1 - found.peak / found.plain)
    lean = segment_model(mode, L=L, k=k, A=A, m=m, f=f, checkpoint=0)
    assert lean.peak <= found.peak * (1 + 1e-12) and lean.extra_forward == found.extra_forward


def test_the_square_root_is_where_the_formula_is_least() -> None:
    for L in (16, 36, 64, 100, 144):
        peaks = {k: units("full", L, k) for k in range(1, L + 1)}
        assert min(peaks.values()) == 2 * L**0.5 == peaks[round(L**0.5)]
