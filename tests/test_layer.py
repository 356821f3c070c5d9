import math

import pytest

from remat.gpt import gpt_layer
from remat.layer import Layer, Operation, Tensor, ledger

X, Y, Z = Tensor("x", 4, "a"), Tensor("y", 8, "a"), Tensor("z", 2, "b")
TO_Y = Operation("f", "matmul", ("x",), ("y",), ("x",), flops=10, why="because of x")
TO_Z = Operation("g", "gelu", ("y",), ("z",), ("z",), flops=1, why="because of z")


def small(**changes: object) -> Layer:
    arguments: dict[str, object] = {
        "name": "small",
        "tensors": (X, Y, Z),
        "operations": (TO_Y, TO_Z),
        "input": "x",
        "output": "z",
    }
    return Layer(**arguments | changes)  # type: ignore[arg-type]


def test_what_is_saved_is_what_backwards_read_and_the_rest_passes_by() -> None:
    layer = small()
    assert [tensor.name for tensor in layer.saved] == ["x", "z"]
    assert [tensor.name for tensor in layer.transients] == ["y"]
    assert (layer.saved_bytes, layer.flops) == (6, 11)


def test_a_tensor_is_counted_once_however_many_backwards_read_it() -> None:
    reads_y = Operation("g", "gelu", ("y",), ("z",), ("y",), why="because of y")
    again = Operation("h", "gelu", ("y", "z"), ("w",), ("y",), why="because of y")
    layer = small(tensors=(X, Y, Z, Tensor("w", 1, "b")), operations=(TO_Y, reads_y, again), output="w")
    assert layer.saved_bytes == 4 + 8
    assert layer.bytes_of(["y", "y", "x"]) == 12
    entry = ledger(layer)[1]
    assert (entry.tensor, entry.needed_by, entry.why) == ("y", ("g", "h"), "because of y")


def test_who_makes_and_who_needs_a_tensor() -> None:
    layer = small()
    assert layer.maker("x") is None
    assert layer.maker("z") == TO_Z
    assert layer.needed_by("x") == (TO_Y,)
    assert layer.needed_by("y") == ()
    assert layer["y"] == Y


def test_a_ledger_adds_up_and_its_shares_are_of_what_is_listed() -> None:
    layer = gpt_layer(s=64, b=2, h=32, a=4)
    for kept in (None, ("x", "qkv"), ("softmax",)):
        entries = ledger(layer, kept)
        assert sum(entry.share for entry in entries) == pytest.approx(1)
        assert all(entry.bytes == layer[entry.tensor].bytes for entry in entries)
        assert all(entry.units == entry.bytes / (64 * 2 * 32) for entry in entries)
        assert all(entry.needed_by and entry.why for entry in entries)
    assert [entry.tensor for entry in ledger(layer, ("qkv", "x"))] == ["x", "qkv"]
    assert ledger(layer, ()) == ()


def test_a_layer_of_empty_tensors_has_shares_of_nothing_not_nan() -> None:
    layer = small(tensors=(Tensor("x", 0, "a"), Tensor("y", 0, "a"), Tensor("z", 0, "b")))
    assert [entry.share for entry in ledger(layer)] == [0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensors": (X, Y, Z, Z)}, r"unique names, got \['z'\] twice"),
        ({"operations": (TO_Z, TO_Y)}, r"'g' reads \['y'\], which nothing before it makes"),
        ({"operations": (TO_Y, TO_Y, TO_Z)}, r"'f' makes \['y'\], which exists already"),
        ({"operations": (TO_Y, Operation("g", "", ("y",), ("z",), ("x",)))}, r"needs \['x'\], not among"),
        ({"operations": (TO_Y,)}, r"disagree about \['z'\]"),
        ({"tensors": (X, Z)}, r"disagree about \['y'\]"),
        ({"output": "w"}, "output must be one of the layer's tensors, got 'w'"),
        ({"input": "w"}, "which nothing before it makes"),
        ({"unit": 0}, "unit must be a finite number above 0, got 0"),
        ({"unit": math.nan}, "unit must be a finite number above 0, got nan"),
        ({"unit": -1}, "unit must be .* got -1"),
        ({"parameters": -1}, "parameters must be a whole number at least 0, got -1"),
        ({"parameters": 1.5}, "parameters must be a whole number at least 0, got 1.5"),
    ],
)
def test_a_graph_that_does_not_hold_together_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**changes)


@pytest.mark.parametrize("size", [-1, math.nan, math.inf, True, "4", None])
def test_a_size_or_a_cost_must_be_a_number(size: object) -> None:
    with pytest.raises(ValueError, match=r"bytes of tensor 'x' must be .*got"):
        Tensor("x", size, "a")  # type: ignore[arg-type]
    for figure in ("flops", "element_flops", "moved"):
        with pytest.raises(ValueError, match=rf"{figure} of operation 'f' must be .*got"):
            Operation("f", "", (), ("y",), **{figure: size})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["w", "", None, 3, ["x"]])
def test_an_unknown_tensor_is_refused_with_the_known_ones(name: object) -> None:
    layer = small()
    for ask in (
        lambda: layer[name],  # type: ignore[index]
        lambda: layer.maker(name),  # type: ignore[arg-type]
        lambda: layer.needed_by(name),  # type: ignore[arg-type]
        lambda: layer.bytes_of([name]),  # type: ignore[list-item]
        lambda: ledger(layer, [name]),  # type: ignore[list-item]
    ):
        with pytest.raises(ValueError, match="tensor must be one of 'x', 'y', 'z', got "):
            ask()


def test_a_ledger_lists_saved_tensors_only() -> None:
    with pytest.raises(ValueError, match=r"kept must name saved tensors \(x, z\), got 'y'"):
        ledger(small(), ["y"])
