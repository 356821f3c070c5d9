"""Checks of the exercises of chapter 3: what to keep inside a layer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random

from remat import cost
from remat.choice import kept, program
from remat.choices import every_choice
from remat.exercises.verdict import Verdict, called, judged, right, wanted, wrong
from remat.gpt import gpt_layer
from remat.hardware import device
from remat.layer import Layer


def names_of(answer: object, known: Iterable[str], what: str) -> list[str]:
    """Read names that the reader gave.

    Raises:
        Stop: if they are no names, or unknown ones.
    """
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        wrong(f"{what} are asked for, and this is {answer!r}.", "not names")
    names, known = list(answer), list(known)
    for name in names:
        wanted(name, what)
        if name not in known:
            wrong(f"{name!r} is none of {', '.join(known)}.", "unknown names")
    return names


@judged
def again(function: object, *, seed: int = 0) -> Verdict:
    """Check a function that says which operations run again when some tensors are kept.

    Args:
        function: of a layer and a set of names that are kept; returns names of operations.
        seed: of the choices that it is tried on.

    >>> again(lambda layer, kept: ...)
    Not solved yet: put names of operations in place of the three dots and run both cells again.
    """
    draw = Random(seed)
    plain = gpt_layer(s=64, b=1, h=64, a=4)
    cases = [(plain, set(kept(plain, recompute=word))) for word in ("none", "selective", "full")]
    for layer in (plain, gpt_layer(s=64, b=1, h=64, a=4, flash=True), gpt_layer(s=64, b=2, h=64, a=4)) * 4:
        share = draw.random()
        cases.append((layer, {tensor.name for tensor in layer.saved if draw.random() < share}))
    mistakes = {
        "ran the whole layer": _whole,
        "ran what nobody reads": _careless,
        "stopped one step short": _short,
    }
    failed = ""
    for layer, held in cases:
        names = names_of(
            called(function, "names of operations", layer, set(held)),
            [op.name for op in layer.operations],
            "names of operations",
        )
        keeping = f"keeping {', '.join(sorted(held)) or 'nothing but the input'}"
        if len(names) > len(set(names)):
            wrong(f"{keeping}: an operation is listed twice.", "ran something twice")
        due = {op.name for op in program(layer, kept=held).recomputed}
        mistakes = {trap: rule for trap, rule in mistakes.items() if rule(layer, held) == set(names)}
        if set(names) != due and not failed:
            more, less = [n for n in names if n not in due], sorted(due.difference(names))
            reasons = [f"{', '.join(more)} ran though no backward asks for it"] if more else []
            if less:
                reasons.append(
                    f"{', '.join(less)} did not run, and something that backward needs depends on it"
                )
            failed = f"{keeping}: {', and '.join(reasons)}."
    if failed:
        wrong(failed, next(iter(mistakes), ""))
    return right("Each operation at most once, and none that backward can do without.")


def _whole(layer: Layer, held: set[str]) -> set[str]:
    """Rerun everything, as a checkpoint around the layer does."""
    return {op.name for op in layer.operations}


def _careless(layer: Layer, held: set[str]) -> set[str]:
    """Rerun every operation whose outputs are not all kept."""
    return {op.name for op in layer.operations if not {layer.input, *held}.issuperset(op.outputs)}


def _short(layer: Layer, held: set[str]) -> set[str]:
    """Rerun the makers of missing tensors and nothing that these in turn need."""
    missing = {tensor.name for tensor in layer.saved} - {layer.input, *held}
    return {op.name for op in layer.operations if missing.intersection(op.outputs)}


@judged
def choose(function: object, *, seed: int = 0) -> Verdict:
    """Check a function that chooses what a layer keeps: within a budget, the least time to recompute.

    Args:
        function: of a layer, the seconds of each operation, and a budget in bytes; returns names to keep.
        seed: of the layers and budgets that it is tried on.

    >>> choose(lambda layer, costs, budget: ...)
    Not solved yet: put names of tensors to keep in place of the three dots and run both cells again.
    """
    draw, failed = Random(seed), []
    counting, largest = [], []
    for s in (512, 2048, 8192):
        layer = gpt_layer(s=s, b=1, h=4096, a=32)
        costs = cost.roofline(layer, device(draw.choice(["A100", "H100", "H200"])), residual_traffic=False)
        choices = every_choice(layer, costs)
        points = choices.frontier
        known = [layer.input, *choices.ways]
        for point in draw.sample(points[1:-1], 2):
            budget = point.kept_bytes * 1.001
            names = set(
                names_of(
                    called(function, "names of tensors to keep", layer, dict(costs), budget),
                    known,
                    "names of tensors",
                )
            )
            mine = choices.of(names)
            if mine.kept_bytes > budget:
                alone = mine.kept_bytes - layer[layer.input].bytes
                wrong(
                    f"at s = {s}, {mine.kept_bytes / budget:.1%} of the budget are kept. The layer's input "
                    "stays in any case and counts.",
                    "forgot the input" if alone <= budget else "broke the budget",
                )
            if (
                not math.isclose(mine.recompute, point.recompute, rel_tol=1e-9)
                and mine.recompute > point.recompute
            ):
                failed.append(
                    f"at s = {s} within {budget / layer.unit:.1f} sbh, keeping {', '.join(sorted(names))} "
                    f"costs {mine.share:.2%} of the step, and {point.share:.2%} is possible."
                )
                by_flops = every_choice(layer, cost.flops(layer))
                least = min(c.recompute for c in by_flops.frontier if c.kept_bytes <= budget)
                counting.append(by_flops.of(names).recompute <= least)
                largest.append(names - {layer.input} == _largest_first(layer, budget))
    if failed:
        trap = (
            "kept the largest first"
            if all(largest)
            else "counted FLOPs, not seconds"
            if all(counting)
            else ""
        )
        wrong(failed[0], trap or "not the least time")
    return right("On every layer that was tried, no choice within the budget takes less time to recompute.")


def _largest_first(layer: Layer, budget: float) -> set[str]:
    """Keep the largest tensors that still fit."""
    room, names = budget - layer[layer.input].bytes, set()
    for tensor in sorted(layer.saved, key=lambda tensor: -tensor.bytes):
        if tensor.name != layer.input and tensor.bytes <= room:
            room -= tensor.bytes
            names.add(tensor.name)
    return names
