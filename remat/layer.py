"""A layer as a graph of tensors, and the ledger of what its backward needs.

Nothing here knows a formula for the total: an operation says which tensors its backward reads, and what a
layer saves follows from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from remat import _check


@dataclass(frozen=True)
class Tensor:
    """One tensor of a layer, as one GPU holds it.

    Attributes:
        name: unique within the layer.
        bytes: its size on one GPU.
        part: the part of the layer it belongs to, for tables and bars.
    """

    name: str
    bytes: float
    part: str

    def __post_init__(self) -> None:
        _check.amount(f"bytes of tensor {self.name!r}", self.bytes)


@dataclass(frozen=True)
class Operation:
    """One operation of a layer's forward.

    Attributes:
        name: unique within the layer.
        kind: what sort of operation it is ("matmul", "softmax", ...); costs may look at it.
        inputs: names of the tensors it reads.
        outputs: names of the tensors it makes.
        backward_needs: names of the tensors that its backward reads (weights apart). The layer saves these.
        flops: multiply-adds of matrix products counted as two, on one GPU.
        element_flops: FLOPs of elementwise work, on one GPU.
        moved: bytes it reads and writes in device memory, on one GPU.
        why: the rule of calculus behind ``backward_needs``, in words.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    backward_needs: tuple[str, ...] = ()
    flops: float = 0
    element_flops: float = 0
    moved: float = 0
    why: str = ""

    def __post_init__(self) -> None:
        for figure in ("flops", "element_flops", "moved"):
            _check.amount(f"{figure} of operation {self.name!r}", getattr(self, figure))


@dataclass(frozen=True)
class Layer:
    """A layer: its tensors and operations in the order of execution.

    Attributes:
        name: what to call it in a table.
        tensors: every tensor, saved or not, in the order in which forward meets them.
        operations: in the order of execution.
        input: the name of the tensor that the layer receives.
        output: the name of the tensor that the layer hands on.
        unit: bytes to express sizes in (for a transformer layer: s·b·h elements of one byte).
        parameters: how many parameters the whole layer has, over all GPUs.
        shape: the arguments of the builder, for titles and captions.

    Raises:
        ValueError: if a name is used twice, an operation reads what no earlier one made, a backward needs a
            tensor that its operation neither reads nor makes, or unit or parameters is no such number.
    """

    name: str
    tensors: tuple[Tensor, ...]
    operations: tuple[Operation, ...]
    input: str
    output: str
    unit: float = 1
    parameters: int = 0
    shape: Mapping[str, object] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", MappingProxyType(dict(self.shape)))
        _check.amount("unit", self.unit, positive=True)
        _check.count("parameters", self.parameters, least=0)
        names = [tensor.name for tensor in self.tensors]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"tensors of {self.name!r} must have unique names, got {sorted(repeated)} twice")
        made = {self.input}
        for op in self.operations:
            if missing := [name for name in op.inputs if name not in made]:
                raise ValueError(f"operation {op.name!r} reads {missing}, which nothing before it makes")
            if twice := made.intersection(op.outputs):
                raise ValueError(f"operation {op.name!r} makes {sorted(twice)}, which exists already")
            made.update(op.outputs)
            if strange := set(op.backward_needs) - set(op.inputs) - set(op.outputs):
                raise ValueError(
                    f"backward of {op.name!r} needs {sorted(strange)}, not among its inputs or outputs"
                )
        if unknown := made.symmetric_difference(names):
            raise ValueError(f"tensors and operations of {self.name!r} disagree about {sorted(unknown)}")
        if self.output not in made:
            raise ValueError(f"output must be one of the layer's tensors, got {self.output!r}")

    def __getitem__(self, name: str) -> Tensor:
        return _check.known("tensor", name, self._by_name)

    @cached_property
    def _by_name(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def saved(self) -> tuple[Tensor, ...]:
        """The tensors that backward reads, hence what plain training keeps."""
        needed = {name for op in self.operations for name in op.backward_needs}
        return tuple(tensor for tensor in self.tensors if tensor.name in needed)

    @cached_property
    def saved_bytes(self) -> float:
        """Bytes that plain training keeps for backward, on one GPU."""
        return self.bytes_of(tensor.name for tensor in self.saved)

    @property
    def transients(self) -> tuple[Tensor, ...]:
        """The tensors that no backward reads: they live only while forward runs."""
        return tuple(tensor for tensor in self.tensors if tensor not in self.saved)

    @property
    def flops(self) -> float:
        """FLOPs of the forward's matrix products, on one GPU."""
        return sum(op.flops for op in self.operations)

    def bytes_of(self, names: Iterable[str]) -> float:
        """Sum the sizes of some tensors, each counted once.

        Raises:
            ValueError: if a name is not a tensor of this layer.
        """
        return sum({name: self[name].bytes for name in names}.values())

    def maker(self, name: str) -> Operation | None:
        """Return the operation that makes a tensor, or None for the layer's input."""
        self[name]
        return next((op for op in self.operations if name in op.outputs), None)

    def needed_by(self, name: str) -> tuple[Operation, ...]:
        """Return the operations whose backward reads a tensor."""
        self[name]
        return tuple(op for op in self.operations if name in op.backward_needs)


@dataclass(frozen=True)
class Entry:
    """One line of a ledger: a saved tensor, its size, and why backward needs it."""

    tensor: str
    part: str
    bytes: float
    units: float
    share: float
    needed_by: tuple[str, ...]
    why: str


def ledger(layer: Layer, kept: Iterable[str] | None = None) -> tuple[Entry, ...]:
    """List what backward keeps of a layer, one entry a tensor, with its size and the reason.

    Args:
        layer: the description.
        kept: names of the tensors to list; all that backward needs if left out.

    Returns:
        Entries in forward order: bytes on one GPU, the same in the layer's unit, the share of the bytes
        listed, the operations whose backward reads the tensor, and why.

    Raises:
        ValueError: if a kept tensor is unknown or is needed by no backward.

    Source: Korthikanti et al. 2023, section 4.1, done for any graph.

    >>> from remat.gpt import gpt_layer
    >>> layer = gpt_layer(s=2048, b=1, h=12288, a=96)
    >>> [(entry.tensor, entry.units) for entry in ledger(layer)[:3]]
    [('x', 2.0), ('ln1', 2.0), ('qkv', 6.0)]
    >>> sum(entry.units for entry in ledger(layer))
    114.0
    """
    names = [tensor.name for tensor in layer.saved]
    if kept is not None:
        wanted = list(kept)
        for name in wanted:
            layer[name]
            if name not in names:
                raise ValueError(f"kept must name saved tensors ({', '.join(names)}), got {name!r}")
        names = [name for name in names if name in wanted]
    total = layer.bytes_of(names)
    entries = []
    for name in names:
        tensor, readers = layer[name], layer.needed_by(name)
        entries.append(
            Entry(
                tensor=name,
                part=tensor.part,
                bytes=tensor.bytes,
                units=tensor.bytes / layer.unit,
                share=tensor.bytes / total if total else 0.0,
                needed_by=tuple(op.name for op in readers),
                why="; ".join(dict.fromkeys(op.why for op in readers)),
            )
        )
    return tuple(entries)
