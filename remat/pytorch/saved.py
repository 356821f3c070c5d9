"""Measure what autograd saves for backward, in bytes of storage."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from remat import _check


@dataclass(frozen=True)
class SavedTensor:
    """One tensor that an operation saved for its backward.

    Attributes:
        operation: the torch function that saved it ("linear", "softmax", "checkpoint", ...), "" if not known.
        shape: its shape.
        dtype: its element type.
        storage: which storage holds it: 0 for the first one of the record, then 1, 2, ...
        bytes: size of that whole storage, even when the tensor is a view of a part of it.
    """

    operation: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    storage: int
    bytes: int


@dataclass
class SavedTensors:
    """The record of one ``saved_tensors`` context: plain numbers, no tensor is held.

    Attributes:
        items: what was saved, in order; tensors that share a storage are listed each.
    """

    items: list[SavedTensor] = field(default_factory=list)

    @property
    def storages(self) -> list[SavedTensor]:
        """One item per storage, the first that was saved of it."""
        return list({item.storage: item for item in reversed(self.items)}.values())[::-1]

    @property
    def bytes(self) -> int:
        """Bytes held for backward, each storage counted once."""
        return sum(item.bytes for item in self.storages)

    def bytes_as(self, *, float_bytes: int = 2, bool_bytes: int = 1) -> int:
        """Bytes if a floating-point element took float_bytes, a boolean bool_bytes, others what they take.

        The defaults show what 16-bit training would save, from a float32 run. A complex number is two floats.
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

    def __str__(self) -> str:
        rows = [("operation", "shape", "dtype", "storage", "bytes")]
        seen: set[int] = set()
        for item in self.items:
            size = "shared" if item.storage in seen else f"{item.bytes:,}"
            seen.add(item.storage)
            shape = " x ".join(map(str, item.shape)) or "scalar"
            dtype = str(item.dtype).removeprefix("torch.")
            rows.append((item.operation or "?", shape, dtype, str(item.storage), size))
        rows.append(("total", "", "", str(len(seen)), f"{self.bytes:,}"))
        width = [max(len(row[column]) for row in rows) for column in range(5)]
        align = "<<<>>"  # words to the left, numbers to the right
        lines = [
            "  ".join(f"{cell:{align[column]}{width[column]}}" for column, cell in enumerate(row))
            for row in rows
        ]
        rule = "-" * len(lines[0])
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


class _Storages:
    """Tells storages apart while a context is open, without keeping their data alive.

    A weak reference keeps the address of a storage from being given to another one, though its data goes.
    """

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.references: list[StorageWeakRef] = []

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        return storage._cdata in self.numbers

    def number(self, storage: torch.UntypedStorage) -> int:
        """The number of a storage, a new one if it was not seen before."""
        if storage._cdata not in self.numbers:
            self.numbers[storage._cdata] = len(self.numbers)
            self.references.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        return self.numbers[storage._cdata]

    def add_tensors(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            for part in _parts(tensor):
                self.number(part.untyped_storage())

    def clear(self) -> None:
        self.numbers.clear()
        self.references.clear()


def _parts(tensor: Tensor) -> list[Tensor]:
    """The strided tensors that hold a tensor's data: itself, or the indices and values of a sparse one."""
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []  # a layout that owns no storage we could measure (mkldnn)


_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


class _Watch(TorchFunctionMode):
    """Knows which torch function runs, and shows each call's arguments to ``see``."""

    def __init__(self, see: Callable[[Any], None] | None) -> None:
        super().__init__()
        self.running: list[str] = []
        self.see = see

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.see is not None:
            self.see((args, tuple(kwargs.values())))
        self.running.append(getattr(func, "__name__", "").strip("_"))
        try:
            return func(*args, **kwargs)
        finally:
            self.running.pop()

    def operation(self) -> str:
        """The torch function running now, or "checkpoint", or the ``autograd.Function`` that saves."""
        if self.running:
            return self.running[-1]
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
                return "checkpoint"
            if frame.f_code is _APPLY and frame.f_locals["cls"].__module__ != "torch.utils.checkpoint":
                return str(frame.f_locals["cls"].__name__)
            frame = frame.f_back
        return ""


def _parameters_in(arguments: Any) -> Iterator[Tensor]:
    if isinstance(arguments, nn.Parameter):
        yield arguments
    elif isinstance(arguments, (tuple, list)):
        for argument in arguments:
            yield from _parameters_in(argument)


def _state(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


@contextmanager
def saved_tensors(
    leave_out: nn.Module | Iterable[Tensor] | None = None,
) -> Iterator[SavedTensors]:
    """Record what autograd saves for backward inside the context: real bytes, each storage counted once.

    Parameters and buffers are left out, and with them every view of one (a transposed weight is no
    activation). A copy of a weight, such as one cast to 16 bits, has a storage of its own and is counted.

    The record shows what ``torch.utils.checkpoint`` (non-reentrant) keeps, its regions' inputs, and not what
    it drops. It cannot see tensors that a region reaches without receiving them as arguments, the state of
    random number generators, or what other saved-tensor hooks, opened inside, take over.

    Args:
        leave_out: the module, or the tensors, whose storages are not activations. By default every
            ``nn.Parameter`` that a torch function receives and the parameters and buffers of every module
            called inside the context.

    Yields:
        The record. It holds no tensor, stays readable afterwards, and prints as a table.

    Raises:
        ValueError: leave_out holds something that is not a tensor.

    Source: what to count follows Korthikanti et al. 2023, "Reducing Activation Recomputation in Large
    Transformer Models", section 4: everything that backward needs, parameters apart.

    >>> layer = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    >>> with saved_tensors(layer) as record:
    ...     y = layer(torch.ones(4, 8))
    >>> print(record)
    operation  shape  dtype    storage  bytes
    -----------------------------------------
    linear     4 x 8  float32        0    128
    gelu       4 x 8  float32        1    128
    -----------------------------------------
    total                            2    256
    >>> record.bytes_as(float_bytes=2)
    128
    """
    record = SavedTensors()
    activations, left_out = _Storages(), _Storages()
    if isinstance(leave_out, nn.Module):
        left_out.add_tensors(_state(leave_out))
    elif leave_out is not None:
        tensors = list(leave_out)
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise ValueError(f"leave_out must be a module or tensors, got an item {tensor!r}")
        left_out.add_tensors(tensors)

    discover = leave_out is None
    watch = _Watch((lambda arguments: left_out.add_tensors(_parameters_in(arguments))) if discover else None)

    def pack(tensor: Tensor) -> tuple[Tensor, int]:
        for part in _parts(tensor):
            storage = part.untyped_storage()
            if storage not in left_out:
                number = activations.number(storage)
                shape = tuple(part.shape)
                record.items.append(
                    SavedTensor(watch.operation(), shape, part.dtype, number, storage.nbytes())
                )
        return tensor, tensor._version

    def unpack(packed: tuple[Tensor, int]) -> Tensor:
        # With hooks, autograd no longer looks for itself; it can only be done for what was saved as an input.
        tensor, version = packed
        if tensor._version != version:
            raise RuntimeError(
                f"a tensor of shape {list(tensor.shape)} needed for backward was modified by an inplace "
                f"operation: it is at version {tensor._version}, it was saved at version {version}"
            )
        return tensor

    def before_module(module: nn.Module, arguments: Any) -> None:
        left_out.add_tensors(_state(module))

    with ExitStack() as stack:
        stack.callback(left_out.clear)
        stack.callback(activations.clear)
        if discover:
            stack.callback(register_module_forward_pre_hook(before_module).remove)
        stack.enter_context(saved_tensors_hooks(pack, unpack))
        stack.enter_context(watch)
        yield record
