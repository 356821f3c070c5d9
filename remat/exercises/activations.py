"""Checks of the exercises of chapter 1: what a layer saves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from random import Random

from remat.exercises.verdict import Verdict, called, compare, judged, number, right, wanted, wrong
from remat.gpt import gpt_layer
from remat.layer import Layer, Operation, Tensor

# What the backward of an operation reads, by its kind: the rules of chapter 1.
_READS = {"matmul": "inputs", "activation": "inputs", "product": "inputs", "sum": "nothing"}


def swiglu(*, s: int, b: int, h: int, f: int) -> Layer:
    """Describe a gated feed-forward with a residual, y = x + (SiLU(x·W₁) ⊙ x·W₂)·W₃, in 16 bits.

    Args:
        s: sequence length, tokens.
        b: micro-batch, sequences.
        h: hidden size.
        f: inner size.

    Returns:
        The layer; its unit is s·b·h bytes.

    Source: Shazeer 2020, "GLU Variants Improve Transformer".

    >>> [op.name for op in swiglu(s=8, b=1, h=16, f=32).operations]
    ['gate', 'up', 'silu', 'multiply', 'down', 'add']
    """
    table = (
        ("gate", "matmul", ("x",), "g"),
        ("up", "matmul", ("x",), "u"),
        ("silu", "activation", ("g",), "a"),
        ("multiply", "product", ("a", "u"), "p"),
        ("down", "matmul", ("p",), "d"),
        ("add", "sum", ("x", "d"), "y"),
    )
    operations = tuple(
        Operation(name, kind, reads, (makes,), reads if _READS[kind] == "inputs" else ())
        for name, kind, reads, makes in table
    )
    wide = {"g", "u", "a", "p"}
    tensors = tuple(
        Tensor(name, 2 * s * b * (f if name in wide else h), "feed-forward") for name in "xguapdy"
    )
    return Layer("SwiGLU", tensors, operations, "x", "y", unit=s * b * h)


@judged
def needs(answer: object) -> Verdict:
    """Check what the backward of each operation of a gated feed-forward reads.

    Args:
        answer: a dict from each operation to the names of the tensors that its backward reads.

    >>> needs({"gate": ..., "up": ..., "silu": ..., "multiply": ..., "down": ..., "add": ...})
    Not solved yet: put the names of tensors in place of the three dots and run both cells again.
    """
    wanted(answer, "a dict")
    if not isinstance(answer, Mapping):
        wrong(f"a dict from operations to names is asked for, and this is {answer!r}.", "not a dict")
    layer = swiglu(s=8, b=1, h=16, f=32)
    known = {tensor.name for tensor in layer.tensors}
    for op in layer.operations:
        names = answer.get(op.name)
        wanted(names, "the names of tensors")
        if isinstance(names, str):
            names = names.replace(",", " ").split()
        if not isinstance(names, Iterable):
            wrong(f"for {op.name}, names of tensors are asked for, and this is {names!r}.", "not names")
        _judge_needs(op, set(names), known)
    return right(
        f"Together {len(layer.saved)} tensors are saved: {', '.join(tensor.name for tensor in layer.saved)}. "
        "Two operations read x, and it is saved once."
    )


def _judge_needs(op: Operation, names: set[str], known: set[str]) -> None:
    due = set(op.backward_needs)
    if names == due:
        return
    if any(str(name).upper().startswith("W") for name in names - known):
        wrong(
            f"{op.name}: weights are there anyway and are no activations; leave them out.", "counted weights"
        )
    if strange := names - known:
        wrong(f"{op.name}: {sorted(map(str, strange))} are no tensors of this layer.", "unknown tensors")
    if not due:
        wrong(
            f"{op.name}: the gradient of a sum is handed to both terms as it is. Its backward reads nothing.",
            "kept a sum's terms",
        )
    if names & set(op.outputs) and not names & due:
        reason = (
            "SiLU falls and rises again, so its output does not say where on the curve it came from. "
            "Its derivative is taken at the input."
            if op.kind == "activation"
            else "look at the rule again: its gradient contains what it read, not what it made."
        )
        wrong(f"{op.name}: {reason}", "took the output for the input")
    if due - names:
        reason = (
            "the gradient of each factor contains the other one, so both are read."
            if op.kind == "product"
            else "the gradient of W is Xᵀ times the gradient of Y, so the input is read."
        )
        wrong(
            f"{op.name}: {reason}", "forgot the other factor" if op.kind == "product" else "forgot the input"
        )
    wrong(
        f"{op.name}: its backward does not read {', '.join(sorted(names - due))}.",
        "kept more than backward reads",
    )


_BYTES = "the bytes that the layer keeps"


def layer_cases(seed: int, count: int = 12) -> list[tuple[int, int, int, int]]:
    """Draw sizes s, b, h, f for a gated feed-forward, none of them alike."""
    draw = Random(seed)
    return [
        (draw.randrange(3, 40), draw.randrange(1, 5), draw.randrange(2, 30), draw.randrange(31, 90))
        for _ in range(count)
    ]


@judged
def saved(function: object, *, seed: int = 0) -> Verdict:
    """Check a function that counts the bytes that a gated feed-forward saves.

    Args:
        function: of s, b, h and f; returns bytes.
        seed: of the sizes that it is tried on.

    >>> saved(lambda s, b, h, f: ...)
    Not solved yet: put the bytes that the layer keeps in place of the three dots and run both cells again.
    """

    def answer(s: int, b: int, h: int, f: int) -> float:
        return swiglu(s=s, b=b, h=h, f=f).saved_bytes

    def off(hidden: int, inner: int) -> Callable[..., float]:
        return lambda s, b, h, f: answer(s, b, h, f) + 2 * s * b * (hidden * h + inner * f)

    suspects = {
        "counted a storage twice": (off(1, 0), "x is read by two products, but it is one storage."),
        "forgot the input": (off(-1, 0), "the layer's input is read by the two products, so it is kept."),
        "forgot a tensor": (
            off(0, -1),
            "one of the wide tensors is missing: go through the rules once more.",
        ),
        "forgot both factors": (off(0, -2), "the product of two activations keeps both of its factors."),
        "kept what nobody reads": (off(1, 1), "backward reads neither the sum nor its terms."),
        "counted a storage twice, and one that nobody reads": (
            off(2, 0),
            "x is one storage, and what enters the sum is read by no backward.",
        ),
        "counted the factors twice": (off(0, 1), "a wide tensor that two operations touch is one storage."),
    }
    compare(function, _BYTES, layer_cases(seed), answer, suspects)
    return right("Each tensor once, two bytes an element.")


def _longest(h: int, a: int, L: int, budget: float, *, step: int = 128) -> int:
    """Find the longest sequence, a multiple of step, whose activations stay within a budget, by bisection."""

    def fits(count: int) -> bool:
        return L * gpt_layer(s=step * count, b=1, h=h, a=a).saved_bytes <= budget

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return step * low


@judged
def longest(function: object, *, seed: int = 0) -> Verdict:
    """Check a function that finds the longest sequence whose activations fit.

    Args:
        function: of h, a, L and budget in bytes; returns tokens, a multiple of 128.
        seed: of the models that it is tried on.

    >>> longest(lambda h, a, L, budget: ...)
    Not solved yet: put a sequence length in place of the three dots and run both cells again.
    """
    draw, cases = Random(seed), []
    for _ in range(8):
        a = draw.choice([16, 32, 64, 96])
        cases.append((128 * a, a, draw.randrange(24, 97), draw.randrange(60, 1500) * 10**9))
    for h, a, L, budget in cases:
        s = called(function, "a sequence length", h, a, L, budget)
        if number(s, "a sequence length") % 128:
            wrong(f"{s:,} is not a multiple of 128.", "not a multiple")

    def linear(h: int, a: int, L: int, budget: float) -> float:
        return budget // (L * 34 * h * 128) * 128

    def square(h: int, a: int, L: int, budget: float) -> float:
        return math.sqrt(budget / (L * 5 * a)) // 128 * 128

    suspects = {
        "forgot that there are L layers": (
            lambda h, a, L, budget: _longest(h, a, 1, budget),
            "that is what one layer could have. All L layers are held until backward.",
        ),
        "forgot the attention core": (linear, "34·sbh grows as s; the core is missing, and it grows as s²."),
        "counted the attention core alone": (square, "the other 34·sbh are missing."),
        "rounded up": (
            lambda h, a, L, budget: _longest(h, a, L, budget) + 128,
            "one step less fits, yours does not: the last multiple below the limit is asked for.",
        ),
        "took a GB for a GiB": (
            lambda h, a, L, budget: _longest(h, a, L, budget * 2**30 / 1e9),
            "the budget is in bytes, and a GB is 10⁹ of them.",
        ),
    }
    compare(
        function,
        "a sequence length",
        cases,
        lambda h, a, L, budget: _longest(h, a, L, budget),
        suspects,
        units=False,
    )
    return right("Where the core dominates, twice the budget buys a sequence only √2 times as long.")
