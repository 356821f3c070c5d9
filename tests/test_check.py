"""The checks behind every ValueError: each names the argument, the value and what is right."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from remat import _check

NOT_A_NUMBER = [True, False, None, "3", "", b"3", [3], (), {}, 1j, np.bool_(True), np.arange(2), Decimal(1)]
NOT_FINITE = [math.nan, math.inf, -math.inf, np.float64("nan"), np.float32("inf")]
TOO_LARGE = [10**400, Fraction(10**400)]  # for a float
NOT_WHOLE = [1.0, 2.5, np.float64(2), Fraction(2)]


@pytest.mark.parametrize("value", [*NOT_A_NUMBER, *NOT_FINITE, *NOT_WHOLE, 0, -1])
def test_count_refuses_what_is_no_whole_number_of_at_least_one(value: object) -> None:
    with pytest.raises(ValueError, match=r"^heads must be a whole number at least 1, got ") as error:
        _check.count("heads", value)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_count_takes_whole_numbers_of_numpy_too(value: object) -> None:
    assert (_check.count("k", value), type(_check.count("k", value))) == (3, int)
    with pytest.raises(ValueError, match="k must be a whole number from 1 to 2, got"):
        _check.count("k", value, most=2)


@pytest.mark.parametrize("value", [*NOT_A_NUMBER, *NOT_FINITE, *TOO_LARGE, -1, -0.5, np.float64(-1)])
def test_amount_refuses_what_is_no_finite_number_of_at_least_zero(value: object) -> None:
    with pytest.raises(ValueError, match=r"^size must be a (finite )?number 0 or more, got "):
        _check.amount("size", value)


def test_amount_takes_zero_unless_it_must_be_positive() -> None:
    assert _check.amount("size", 0) == 0
    with pytest.raises(ValueError, match="size must be a finite number above 0, got 0"):
        _check.amount("size", 0, positive=True)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(3, int), (np.int16(3), int), (3.0, float), (np.float32(3), float), (Fraction(3), float)],
)
def test_amount_returns_plain_numbers(value: object, kind: type) -> None:
    assert _check.amount("size", value) == 3
    assert type(_check.amount("size", value)) is kind


def test_divides_names_both_and_the_remainder() -> None:
    with pytest.raises(ValueError, match="t must divide a: t=3 leaves a remainder of 1 in a=16"):
        _check.divides("t", 3, "a", 16)


@pytest.mark.parametrize("key", ["V100", "", None, 3, [], ("H100",)])
def test_known_lists_what_the_catalogue_holds(key: object) -> None:
    with pytest.raises(ValueError, match="device must be one of 'A', 'B', got "):
        _check.known("device", key, {"A": 1, "B": 2})


@pytest.mark.parametrize("key", ["values ", None, 3, [], {}, np.array([1, 2])])
def test_one_of_lists_the_words(key: object) -> None:
    with pytest.raises(ValueError, match="needs must be one of 'values', 'tape', got "):
        _check.one_of("needs", key, ("values", "tape"))
