"""Measure what autograd saves for backward, in bytes of storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from remat.pytorch.record import KINDS, SavedTensor, SavedTensors
from remat.pytorch.storages import Kept, Storages, parts
from remat.pytorch.watch import watching

__all__ = ["SavedTensor", "SavedTensors", "saved_tensors"]


@contextmanager
def saved_tensors(
    leave_out: nn.Module | Iterable[Tensor] | None = None,
) -> Iterator[SavedTensors]:
    """Record what autograd saves for backward inside the context: real bytes, each storage counted once.

    Parameters and buffers are told apart from activations, and with them every view of one (a transposed
    weight is no activation). So are copies of weights that a cast makes inside the context, by autocast or
    by hand: they are held for backward, so they are listed beside the activations, with a total of their own.

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

    >>> import torch
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
    >>> with saved_tensors(layer) as record, torch.autocast("cpu", torch.bfloat16):
    ...     y = layer(layer(torch.ones(4, 8)))
    >>> record.totals
    {'activation': 256, 'cast copy': 128, 'parameter': 0}
    """
    record = SavedTensors()
    numbers = {kind: Storages() for kind in KINDS}
    with watching(leave_out) as watch:

        def pack(tensor: Tensor) -> Kept:
            for part in parts(tensor):
                storage = part.untyped_storage()
                kind = watch.kind(storage)
                number = numbers[kind].number(storage)
                what, shape, size = watch.operation(), tuple(part.shape), storage.nbytes()
                record.everything.append(SavedTensor(what, shape, part.dtype, number, size, kind))
            return Kept(tensor)

        try:
            with saved_tensors_hooks(pack, Kept.tensor):
                yield record
        finally:
            for storages in numbers.values():
                storages.clear()
