import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from remat.pytorch import GPTLayer, saved_tensors

RECOMPUTE = ("none", "selective", "full")


def bytes_saved(layers: Sequence[nn.Module], s: int, b: int, h: int) -> int:
    """Bytes that a 16-bit run would save."""
    with saved_tensors() as record:
        x = torch.ones(s, b, h)
        for layer in layers:
            x = layer(x)
    return record.bytes_as(float_bytes=2, bool_bytes=1)


# --- the reference values -------------------------------------------------------------------------


@pytest.mark.parametrize("b", [1, 2])
@pytest.mark.parametrize(
    ("recompute", "sbh"), [("none", "54.031"), ("selective", "34.031"), ("full", "2.000")]
)
def test_reference_values(recompute: str, sbh: str, b: int) -> None:
    s, h, a = 256, 256, 4
    assert 5 * a * s / h == 20
    layer = GPTLayer(h, a, recompute=recompute)
    assert f"{bytes_saved([layer], s, b, h) / (s * b * h):.3f}" == sbh


@pytest.mark.parametrize("b", [1, 2])
@pytest.mark.parametrize(("recompute", "sbh"), [("none", 6), ("selective", 2), ("full", 0)])
def test_what_torch_dropout_adds_on_a_cpu(recompute: str, sbh: int, b: int) -> None:
    s, h, a = 256, 256, 4
    plain, floats = (
        bytes_saved([GPTLayer(h, a, dropout_kind=kind, recompute=recompute)], s, b, h)
        for kind in ("bool", "torch")
    )
    assert floats - plain == sbh * s * b * h


def closed_form(recompute: str, s: int, b: int, h: int, a: int, *, dropout_kind: str, causal: str) -> int:
    """Bytes of one layer, from the paper's formula and what the reference values say of a CPU."""
    if recompute == "full":
        return 2 * s * b * h
    norms = 8 * s * b
    attention = 5 * a * s * s * b if recompute == "none" else 0
    masks = (2 * s * b * h + (a * s * s * b if recompute == "none" else 0)) if dropout_kind == "torch" else 0
    causal_mask = s * s if causal == "masked_fill" and recompute == "none" else 0
    return 34 * s * b * h + attention + norms + masks + causal_mask


@settings(max_examples=40, deadline=None)
@given(
    s=st.integers(1, 9),
    b=st.integers(1, 3),
    a=st.integers(1, 4),
    width=st.integers(1, 6),
    layers=st.integers(1, 3),
    recompute=st.sampled_from(RECOMPUTE),
    dropout_kind=st.sampled_from(["bool", "torch"]),
    causal=st.sampled_from(["bias", "masked_fill"]),
)
def test_closed_form(
    s: int, b: int, a: int, width: int, layers: int, recompute: str, dropout_kind: str, causal: str
) -> None:
    h = a * width
    stack = [
        GPTLayer(h, a, dropout_kind=dropout_kind, causal=causal, recompute=recompute) for _ in range(layers)
    ]
    expected = closed_form(recompute, s, b, h, a, dropout_kind=dropout_kind, causal=causal)
    assert bytes_saved(stack, s, b, h) == layers * expected


def test_without_dropout_no_mask_is_saved() -> None:
    s, b, h, a = 8, 2, 8, 2
    expected = (
        32 + 2 * a * s / h
    ) * s * b * h + 8 * s * b  # softmax output and what it multiplies are one tensor
    assert bytes_saved([GPTLayer(h, a, dropout=0)], s, b, h) == expected
    assert bytes_saved([GPTLayer(h, a).eval()], s, b, h) == expected


# --- the gradients --------------------------------------------------------------------------------


def gradients(recompute: str, seed: int = 0, **kinds: str) -> list[Tensor]:
    torch.manual_seed(0)
    layers = [GPTLayer(16, 4, recompute=recompute, **kinds) for _ in range(3)]
    x = torch.randn(12, 2, 16, requires_grad=True)
    torch.manual_seed(seed)
    y = x
    for layer in layers:
        y = layer(y)
    y.sin().sum().backward()
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    return [y, *(tensor.grad for tensor in (x, *parameters) if tensor.grad is not None)]


@pytest.mark.parametrize("dropout_kind", ["bool", "torch"])
@pytest.mark.parametrize("causal", ["bias", "masked_fill"])
def test_gradients_are_bitwise_equal_with_dropout_on(dropout_kind: str, causal: str) -> None:
    kinds = {"dropout_kind": dropout_kind, "causal": causal}
    expected = gradients("none", **kinds)
    assert len(expected) == 2 + 3 * 12
    for recompute in ("selective", "full"):
        assert all(map(torch.equal, expected, gradients(recompute, **kinds)))
    other_seed = gradients("none", seed=1, **kinds)
    assert not any(map(torch.equal, expected, other_seed)), "dropout is off: nothing is tested"


def test_biases_and_fills_give_the_same_result() -> None:
    bias, fill = gradients("none", causal="bias"), gradients("none", causal="masked_fill")
    assert all(map(torch.allclose, bias, fill))


# --- what the layer computes ----------------------------------------------------------------------


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_is_the_pre_norm_transformer_layer_of_pytorch(recompute: str) -> None:
    torch.manual_seed(0)
    s, b, h, a = 10, 2, 24, 3
    ours = GPTLayer(h, a, recompute=recompute).eval()
    theirs = nn.TransformerEncoderLayer(h, a, 4 * h, activation="gelu", norm_first=True).eval()
    attention = theirs.self_attn
    pairs: list[tuple[nn.Parameter, nn.Parameter]] = [
        (attention.in_proj_weight, ours.qkv.weight),
        (attention.in_proj_bias, ours.qkv.bias),
    ]
    for their, our in (
        (attention.out_proj, ours.projection),
        (theirs.linear1, ours.up),
        (theirs.linear2, ours.down),
        (theirs.norm1, ours.norm1),
        (theirs.norm2, ours.norm2),
    ):
        pairs += [(their.weight, our.weight), (their.bias, our.bias)]
    with torch.no_grad():
        for target, source in pairs:
            source.normal_()
            target.copy_(source)
    x = torch.randn(s, b, h)
    mask = nn.Transformer.generate_square_subsequent_mask(s)
    torch.testing.assert_close(ours(x), theirs(x, src_mask=mask, is_causal=True), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", ["bias", "masked_fill"])
def test_a_position_sees_no_later_one(causal: str) -> None:
    torch.manual_seed(0)
    layer = GPTLayer(8, 2, causal=causal).eval()
    x = torch.randn(6, 1, 8)
    changed = x.clone()
    changed[3] += 1
    before, after = layer(x), layer(changed)
    assert torch.equal(before[:3], after[:3])
    assert (before[3:] != after[3:]).any(dim=-1).all()


@pytest.mark.parametrize("dropout_kind", ["bool", "torch"])
def test_dropout_drops_its_share_and_keeps_the_mean(dropout_kind: str) -> None:
    torch.manual_seed(0)
    layer = GPTLayer(8, 2, dropout=0.25, dropout_kind=dropout_kind)
    ones = torch.ones(100_000)
    dropped = layer._dropout(ones)
    deviation = math.sqrt(0.25 * 0.75 / len(ones))
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=4 * deviation)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert torch.equal(layer.eval()._dropout(ones), ones)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GPTLayer(10, 4), r"a must divide h: a=4 leaves a remainder of 2 in h=10"),
        (lambda: GPTLayer(0, 4), r"h must be a whole number at least 1, got 0"),
        (lambda: GPTLayer(8, -2), r"a must be a whole number at least 1, got -2"),
        (lambda: GPTLayer(8, 2.0), r"a must be a whole number at least 1, got 2.0"),
        (lambda: GPTLayer(8, 2, dropout=1), r"dropout must be a probability from 0 to below 1, got 1"),
        (lambda: GPTLayer(8, 2, dropout=-0.1), r"dropout must be .*, got -0.1"),
        (
            lambda: GPTLayer(8, 2, dropout_kind="float"),
            r"dropout_kind must be one of 'bool', 'torch', got 'float'",
        ),
        (lambda: GPTLayer(8, 2, causal="none"), r"causal must be one of 'bias', 'masked_fill', got 'none'"),
        (
            lambda: GPTLayer(8, 2, recompute=True),
            r"recompute must be one of 'none', 'selective', 'full', got True",
        ),
        (lambda: GPTLayer(8, 2)(torch.ones(4, 8)), r"x must be \[s, b, h\] with h=8, got shape \[4, 8\]"),
        (
            lambda: GPTLayer(8, 2)(torch.ones(4, 1, 6)),
            r"x must be \[s, b, h\] with h=8, got shape \[4, 1, 6\]",
        ),
    ],
)
def test_errors_name_the_argument(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
