"""What a check says: right, wrong and why, or not solved yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from numbers import Integral, Real
from typing import Any, Literal, NoReturn, ParamSpec

Kind = Literal["right", "wrong", "not solved yet"]
P = ParamSpec("P")


@dataclass(frozen=True)
class Verdict:
    """What a check says.

    Attributes:
        kind: "right", "wrong" or "not solved yet".
        why: the reason, in a sentence or two.
        trap: the name of the mistake, if it is a known one.
    """

    kind: Kind
    why: str
    trap: str = ""

    @property
    def heading(self) -> str:
        """The verdict in a few words, the trap's name included."""
        if self.kind == "right":
            return "✓ Right."
        if self.kind == "wrong":
            return f"✗ Wrong ({self.trap}):" if self.trap else "✗ Wrong:"
        return "Not solved yet:"

    def __repr__(self) -> str:
        return f"{self.heading} {self.why}"

    def _repr_markdown_(self) -> str:
        return f"**{self.heading}** {self.why}"


class Stop(Exception):
    """Carries a verdict out of the middle of a check."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.why)
        self.verdict = verdict


def judged(check: Callable[P, Verdict]) -> Callable[P, Verdict]:
    """Let a check end early by raising ``Stop``."""

    @wraps(check)
    def run(*args: P.args, **kwargs: P.kwargs) -> Verdict:
        try:
            return check(*args, **kwargs)
        except Stop as stop:
            return stop.verdict

    return run


def right(why: str) -> Verdict:
    """Say that an answer is right, and what follows from it."""
    return Verdict("right", why)


def wrong(why: str, trap: str = "") -> NoReturn:
    """End the check: the answer is wrong.

    Raises:
        Stop: always.
    """
    raise Stop(Verdict("wrong", why, trap))


def wanted(answer: object, what: str) -> None:
    """End the check if there is no answer yet.

    Args:
        answer: what the reader wrote.
        what: what should stand there.

    Raises:
        Stop: if the answer is ``...`` or None.
    """
    if answer is None or answer is Ellipsis:
        raise Stop(
            Verdict("not solved yet", f"put {what} in place of the three dots and run both cells again.")
        )


def called(function: object, what: str, *args: Any, **kwargs: Any) -> Any:
    """Call the reader's function and return its answer.

    Args:
        function: what the reader wrote.
        what: what it should return, in words.
        args: for the function.
        kwargs: likewise.

    Raises:
        Stop: if it is not a function, returns nothing yet, or raises.
    """
    wanted(function, "a function")
    if not callable(function):
        wrong(f"a function is asked for, and this is {function!r}.", "not a function")
    try:
        answer = function(*args, **kwargs)
    except Exception as error:  # whatever the reader's code raises is told to the reader
        wrong(
            f"called with {shown(*args, **kwargs)}, your function raises {type(error).__name__}: {error}",
            "raised an error",
        )
    wanted(answer, what)
    return answer


def shown(*args: Any, **kwargs: Any) -> str:
    """Write arguments as in a call; long ones by their name or their kind."""

    def one(value: Any) -> str:
        text = f"{value:.6g}" if isinstance(value, float) else repr(value)
        return text if len(text) <= 60 else f"`{getattr(value, 'name', None) or type(value).__name__}`"

    return ", ".join([*map(one, args), *(f"{name}={one(value)}" for name, value in kwargs.items())])


def number(answer: object, what: str) -> float:
    """Return an answer that must be a number.

    Raises:
        Stop: if it is none, or not finite.
    """
    if isinstance(answer, bool) or not isinstance(answer, Real) or not math.isfinite(answer):
        wrong(f"{what} is a number, and this is {answer!r}.", "not a number")
    return float(answer)


def whole(answer: object, least: int, most: int) -> bool:
    """Tell whether an answer is a whole number from least to most."""
    return isinstance(answer, Integral) and not isinstance(answer, bool) and least <= int(answer) <= most


# A constant factor between an answer and the right one, and what it comes from.
UNITS: dict[float, tuple[str, str]] = {
    1 / 2: ("counted elements, not bytes", "a 16-bit number takes two bytes."),
    2: ("counted 32-bit numbers", "the numbers here have 16 bits, two bytes each."),
    8: ("counted bits", "sizes are asked for in bytes."),
    1 / 8: ("divided by eight", "sizes are asked for in bytes, and were in bytes all along."),
    1 / 1e6: ("gave MB", "sizes are asked for in bytes."),
    1 / 2**20: ("gave MiB", "sizes are asked for in bytes, and a MiB is not a MB either."),
    1 / 1e9: ("gave GB", "sizes are asked for in bytes."),
    1 / 2**30: ("gave GiB", "sizes are asked for in bytes, and a GiB is not a GB either."),
    1e9 / 2**30: ("took a GB for a GiB", "a GB is 10⁹ bytes, a GiB is 2³⁰, seven percent more."),
    2**30 / 1e9: ("took a GiB for a GB", "a GB is 10⁹ bytes, a GiB is 2³⁰, seven percent more."),
}


def compare(
    function: object,
    what: str,
    cases: Sequence[tuple[Any, ...]],
    answer: Callable[..., float],
    suspects: Mapping[str, tuple[Callable[..., float], str]],
    *,
    units: bool = True,
    tolerance: float = 1e-9,
) -> None:
    """Call the reader's function on several cases and compare it with the right one.

    A known mistake is named if it explains every case, and so is a constant factor of a unit.

    Args:
        function: what the reader wrote.
        what: what it should return, in words.
        cases: arguments, one tuple a case.
        answer: the right function.
        suspects: name of a mistake -> the function that makes it, and what is wrong with it.
        units: whether to look for a factor between units.
        tolerance: the relative difference that is forgiven.

    Raises:
        Stop: unless every case is right.
    """

    def same(a: float, b: float) -> bool:
        return math.isclose(a, b, rel_tol=tolerance)

    given = [number(called(function, what, *case), what) for case in cases]
    due = [answer(*case) for case in cases]
    if all(map(same, given, due)):
        return
    for name, (mistake, why) in suspects.items():
        if all(same(value, mistake(*case)) for value, case in zip(given, cases, strict=True)):
            wrong(why, name)
    if units:
        for factor, (name, why) in UNITS.items():
            if all(same(value, factor * target) for value, target in zip(given, due, strict=True)):
                wrong(why, name)
    value, target, case = next(
        (value, target, case)
        for value, target, case in zip(given, due, cases, strict=True)
        if not same(value, target)
    )
    wrong(
        f"for {shown(*case)} it gives {value:,.6g}, which is too {'large' if value > target else 'small'} "
        f"by a factor of {max(value, target) / min(value, target):.4g}."
        if min(value, target) > 0
        else f"for {shown(*case)} it gives {value:,.6g}, which cannot be."
    )
