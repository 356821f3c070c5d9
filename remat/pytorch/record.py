"""What autograd saved for backward, as plain numbers: the record, its totals and its table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from remat import _check

Kind = Literal["activation", "cast copy", "parameter"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class SavedTensor:
    """One tensor that an operation saved for its backward.

    Attributes:
        operation: the torch function that saved it ("linear", "softmax", "checkpoint", ...), "" if not known.
        shape: its shape.
        dtype: its element type.
        storage: which storage of its kind holds it: 0 for the first one of the record, then 1, 2, ...
        bytes: size of that whole storage, even when the tensor is a view of a part of it.
        kind: "activation"; "parameter", a weight or buffer or a view of one, which lives anyway; "cast copy",
            a weight cast to another dtype, as autocast does, which lives for backward but does not grow with
            the batch.
    """

    operation: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    storage: int
    bytes: int
    kind: Kind = "activation"


@dataclass
class SavedTensors:
    """The record of one ``saved_tensors`` context: plain numbers, no tensor is held.

    Attributes:
        everything: what was saved, of all kinds, in order; tensors that share a storage are listed each.
    """

    everything: list[SavedTensor] = field(default_factory=list)

    def of(self, kind: Kind) -> list[SavedTensor]:
        """What was saved of one kind, in order.

        Raises:
            ValueError: kind is none of "activation", "cast copy", "parameter".
        """
        _check.one_of("kind", kind, KINDS)
        return [item for item in self.everything if item.kind == kind]

    @property
    def items(self) -> list[SavedTensor]:
        """The activations, in order."""
        return self.of("activation")

    @property
    def storages(self) -> list[SavedTensor]:
        """One activation per storage, the first that was saved of it."""
        return _one_per_storage(self.items)

    @property
    def bytes(self) -> int:
        """Bytes of activations held for backward, each storage counted once."""
        return self.totals["activation"]

    @property
    def totals(self) -> dict[Kind, int]:
        """Bytes held for backward by kind, each storage counted once."""
        return {kind: sum(item.bytes for item in _one_per_storage(self.of(kind))) for kind in KINDS}

    def bytes_as(self, *, float_bytes: int = 2, bool_bytes: int = 1) -> int:
        """Bytes of activations if an element of floating point took float_bytes, a boolean bool_bytes.

        Others count as they are. The defaults show what 16-bit training would save, from a float32 run. A
        complex number is two floats.
        """
        _check.count("float_bytes", float_bytes)
        _check.count("bool_bytes", bool_bytes)
        total = 0
        for item in self.storages:
            elements = item.bytes // item.dtype.itemsize
            if item.dtype.is_floating_point:
                total += elements * float_bytes
            elif item.dtype.is_complex:
                total += elements * 2 * float_bytes
            elif item.dtype == torch.bool:
                total += elements * bool_bytes
            else:
                total += item.bytes
        return total

    def table(self, kinds: Sequence[Kind] = KINDS) -> str:
        """Lay out what was saved of the given kinds, a line for each tensor and a total for each kind.

        Raises:
            ValueError: kinds holds something that is no kind.
        """
        for index, kind in enumerate(kinds):
            _check.one_of(f"kinds[{index}]", kind, KINDS)
        rows = [("operation", "kind", "shape", "dtype", "storage", "bytes")]
        seen: set[tuple[str, int]] = set()
        for item in self.everything:
            if item.kind not in kinds:
                continue
            size = "shared" if (item.kind, item.storage) in seen else f"{item.bytes:,}"
            seen.add((item.kind, item.storage))
            shape = " x ".join(map(str, item.shape)) or "scalar"
            dtype = str(item.dtype).removeprefix("torch.")
            rows.append((item.operation or "?", item.kind, shape, dtype, str(item.storage), size))
        totals = self.totals
        for kind in kinds:
            number = sum(seen_kind == kind for seen_kind, _ in seen)
            rows.append(("total", kind, "", "", str(number), f"{totals[kind]:,}"))
        if tuple(kinds) == ("activation",):  # then nobody needs to be told
            return _text([row[:1] + row[2:] for row in rows], "<<<>>", totals=1)
        return _text(rows, "<<<<>>", totals=len(kinds))

    def __str__(self) -> str:
        return self.table(("activation", "cast copy") if self.of("cast copy") else ("activation",))


def _one_per_storage(items: Iterable[SavedTensor]) -> list[SavedTensor]:
    first: dict[int, SavedTensor] = {}
    for item in items:
        first.setdefault(item.storage, item)
    return list(first.values())


def _text(rows: Sequence[Sequence[str]], align: str, *, totals: int) -> str:
    """Align columns, with a rule under the header and one over the totals."""
    width = [max(len(row[column]) for row in rows) for column in range(len(align))]
    lines = [
        "  ".join(f"{cell:{align[column]}{width[column]}}" for column, cell in enumerate(row)) for row in rows
    ]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:-totals], rule, *lines[-totals:]])
