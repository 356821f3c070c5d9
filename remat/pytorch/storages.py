"""Tell storages apart, and see that a saved tensor was changed, without keeping data alive."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef


class Storages:
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
        """Number the storages of tensors."""
        for tensor in tensors:
            for part in parts(tensor):
                self.number(part.untyped_storage())

    def holds_part_of(self, tensor: Tensor) -> bool:
        """Whether a storage of the tensor was seen before."""
        try:
            return any(part.untyped_storage() in self for part in parts(tensor))
        except NotImplementedError:  # what torch.vmap hands to its function shows no storage
            return False

    def clear(self) -> None:
        """Forget all."""
        self.numbers.clear()
        self.references.clear()


def parts(tensor: Tensor) -> list[Tensor]:
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


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is no more than a view of real memory: then its bytes and its place say all."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )


def expired(reference: StorageWeakRef) -> bool:
    """Whether the storage is gone."""
    return bool(reference.expired())  # type: ignore[no-untyped-call]


class Kept:
    """A saved tensor that stays where it is.

    With hooks, autograd no longer looks whether the tensor was changed since; this does. It holds an alias
    without history: a result that holds itself, through the graph that made it, would never be released.
    """

    __slots__ = ("alias", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.alias, self.version = tensor.detach(), tensor._version

    def tensor(self) -> Tensor:
        """Return it, or refuse it if it was changed in place since."""
        refuse_changed(self.alias, self.version, self.alias.shape)
        return self.alias


def refuse_changed(tensor: Tensor, version: int, shape: torch.Size) -> None:
    """Raise what autograd would if the tensor, saved at a version, was changed in place since."""
    if tensor._version != version:
        raise RuntimeError(
            f"a tensor of shape {list(shape)} needed for backward was modified by an inplace "
            f"operation: it is at version {tensor._version}, it was saved at version {version}"
        )


class Version:
    """Sees whether a saved tensor was changed in place, without holding its data.

    An alias counts changes together with the tensor, also after the alias was given other data.
    """

    __slots__ = ("alias", "saved", "shape")

    def __init__(self, tensor: Tensor) -> None:
        self.alias, self.saved, self.shape = tensor.detach(), tensor._version, tensor.shape
        self.alias.data = tensor.new_empty(0)

    def check(self) -> None:
        """Refuse the tensor if it was changed."""
        refuse_changed(self.alias, self.saved, self.shape)
