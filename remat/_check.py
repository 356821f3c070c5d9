"""Checks of arguments: each error names the argument, the value it got and what would be right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import TypeVar

T = TypeVar("T")


def count(name: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """Return value as an int, or refuse it unless it is a whole number in least..most."""
    bounds = f"at least {least}" if most is None else f"from {least} to {most}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be a whole number {bounds}, got {value!r}")
    number = int(value)
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name} must be a whole number {bounds}, got {value!r}")
    return number


def amount(name: str, value: object, *, positive: bool = False) -> float:
    """Return value unchanged, or refuse it unless it is a finite real number >= 0 (> 0 if positive)."""
    bound = "above 0" if positive else "0 or more"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} must be a number {bound}, got {value!r}")
    if not _finite(value) or value < 0 or (positive and value == 0):
        raise ValueError(f"{name} must be a finite number {bound}, got {value!r}")
    if isinstance(value, Integral):
        return int(value)
    return float(value)


def _finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number or fraction beyond the largest float
        return False


def divides(part: str, part_value: int, whole: str, whole_value: int) -> None:
    """Refuse part_value unless it divides whole_value."""
    if whole_value % part_value:
        raise ValueError(
            f"{part} must divide {whole}: {part}={part_value} leaves a remainder of "
            f"{whole_value % part_value} in {whole}={whole_value}"
        )


def one_of(name: str, value: object, known: Sequence[str]) -> str:
    """Return value if it is one of the known words, or refuse it and list them."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    return value


def known(name: str, key: object, catalog: Mapping[str, T]) -> T:
    """Look key up in a catalog, or refuse it and list what the catalog holds."""
    if not isinstance(key, str) or key not in catalog:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, catalog))}, got {key!r}")
    return catalog[key]
