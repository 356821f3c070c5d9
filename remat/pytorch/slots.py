"""Where bytes of a running plan are: on the device, on the host, or on both.

Only a plan that moves tapes needs this: what a taping forward saves is then kept as a place in a slot, and
the slot can be emptied and filled again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from remat.pytorch.copies import as_bytes, copies_for
from remat.pytorch.storages import Kept, is_plain


@dataclass(eq=False)
class Slot:
    """One storage of the device, or its place while it is empty."""

    storage: torch.UntypedStorage | None = None

    @property
    def bytes(self) -> int:
        """Its size, 0 while it is empty."""
        return 0 if self.storage is None else self.storage.nbytes()


@dataclass(eq=False)
class Place:
    """A tensor without its bytes: where in a slot they are."""

    slot: Slot
    dtype: torch.dtype
    device: torch.device
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor, slot: Slot) -> Place:
        """Say where a tensor lies in a slot that holds its storage."""
        return cls(
            slot, tensor.dtype, tensor.device, tensor.shape, tensor.stride(), int(tensor.storage_offset())
        )

    def tensor(self) -> Tensor:
        """Return the tensor, a view of what the slot holds now."""
        assert self.slot.storage is not None, "the replay has let something through that is not there"
        empty = torch.empty(0, dtype=self.dtype, device=self.device)
        return empty.set_(self.slot.storage, self.offset, self.shape, self.stride)


def storages_of(stages: Iterable[object]) -> set[int]:
    """Return the addresses of all parameters' and buffers' storages: these stay where they are."""
    parts = [stage for stage in stages if isinstance(stage, nn.Module)]
    tensors = [tensor for part in parts for tensor in (*part.parameters(), *part.buffers())]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


@dataclass
class Recorder:
    """Saved-tensor hooks for one taping forward: every activation becomes a place in a slot.

    Attributes:
        input: the slot of the stage's input.
        fixed: addresses of storages that stay where they are.
        slots: the others that it saved, by address; the slots keep them alive, so an address stays taken.
    """

    input: Slot
    fixed: set[int]
    slots: dict[int, Slot] = field(default_factory=dict)
    _places: list[Place] = field(default_factory=list)
    _versions: list[tuple[Tensor, int]] = field(default_factory=list)

    def hooks(self) -> saved_tensors_hooks:
        """Return the context in which the stage runs."""
        return saved_tensors_hooks(self._pack, lambda saved: saved.tensor())

    def _pack(self, tensor: Tensor) -> Kept | Place:
        if not is_plain(tensor):
            return Kept(tensor)
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address in self.fixed or not storage.nbytes():
            return Kept(tensor)
        if self.input.storage is not None and address == self.input.storage.data_ptr():
            slot = self.input
        else:
            slot = self.slots.setdefault(address, Slot(storage))
        place = Place.of(tensor, slot)
        self._places.append(place)
        self._versions.append((tensor.detach(), tensor._version))
        return place

    def finish(self, y: Tensor, output: Slot) -> tuple[Slot, ...]:
        """Tell the stage's output apart, whose slot is its own, and return the slots that remain.

        Raises:
            ValueError: something was changed in place after it had been saved.
        """
        if any(tensor._version != version for tensor, version in self._versions):
            raise ValueError(
                "a tensor that backward needs was changed in place after it was saved: use inplace=False"
            )
        own = self.slots.pop(y.untyped_storage().data_ptr(), None)
        for place in self._places:
            if place.slot is own:
                place.slot = output
        slots = tuple(self.slots.values())
        self._places, self._versions, self.slots = [], [], {}
        return slots


class Host:
    """Holds slots' bytes on the host and counts what moves.

    Attributes:
        out: bytes copied to the host so far.
        back: bytes copied back so far.
        held: bytes that the host holds.
        peak: the most that it held.
    """

    def __init__(self, device: torch.device) -> None:
        self.out = self.back = self.held = self.peak = 0
        self.copies = copies_for(device)
        self.arriving: list[tuple[Slot, Any]] = []

    def take(self, slots: Iterable[Slot]) -> list[tuple[Slot, Tensor]]:
        """Copy slots to the host and return what `give` needs to bring them back."""
        taken = []
        for slot in slots:
            assert slot.storage is not None
            taken.append((slot, self.copies.out(slot.storage)))
            self.out += slot.bytes
            self.held += slot.bytes
        self.peak = max(self.peak, self.held)
        return taken

    def give(self, taken: Iterable[tuple[Slot, Tensor]]) -> None:
        """Copy slots back from the host, which then no longer holds them."""
        for slot, there in taken:
            data, arrival = self.copies.back(there)
            slot.storage = data.untyped_storage()
            if arrival is not None:
                self.arriving.append((slot, arrival))
            self.back += slot.bytes
            self.held -= slot.bytes

    def wait(self) -> None:
        """Let what is computed from now on come after all that is on its way back."""
        for slot, arrival in self.arriving:
            if slot.storage is not None:
                self.copies.await_arrival(as_bytes(slot.storage), arrival)
        self.arriving.clear()
