"""One slider: what it is called, the values that it stops at, and how each is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Value = int | float | str
Setting = dict[str, Value]


@dataclass(frozen=True)
class Slider:
    """A choice among a few values.

    Attributes:
        label: what stands beside it, as "sequence length, s".
        values: numbers or names, in the order of the slider.
        default: the value that is shown first.
        unit: written after each value.
        notes: value -> a word on it, as the model that has it, written in brackets.

    Raises:
        ValueError: if there are fewer than two values, one comes twice, or default or a note is for none of
            them.

    >>> s = Slider("sequence length, s", (1024, 2048), default=2048, unit="tokens", notes={2048: "GPT-3"})
    >>> [s.text(value) for value in s.values]
    ['1,024 tokens', '2,048 tokens (GPT-3)']
    """

    label: str
    values: tuple[Value, ...]
    default: Value
    unit: str = ""
    notes: Mapping[Any, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = tuple(self.values)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "notes", MappingProxyType(dict(self.notes)))
        if len(values) < 2 or len(set(values)) < len(values):
            raise ValueError(f"values must be two or more, all different, got {values!r} for {self.label!r}")
        if self.default not in values:
            raise ValueError(f"default must be one of {values!r} for {self.label!r}, got {self.default!r}")
        if strange := [value for value in self.notes if value not in values]:
            raise ValueError(f"notes must be on values of {self.label!r}, got {strange!r}")

    def text(self, value: Value) -> str:
        """Write a value out, with its unit and its note."""
        words = [value if isinstance(value, str) else f"{value:,}"]
        if self.unit:
            words.append(self.unit)
        if value in self.notes:
            words.append(f"({self.notes[value]})")
        return " ".join(words)

    @property
    def texts(self) -> tuple[str, ...]:
        """All values, written out."""
        return tuple(self.text(value) for value in self.values)
