"""Move what autograd saved to the host until its backward: each storage once, out and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from remat import _check
from remat.pytorch.copies import Copies, as_bytes, copies_for
from remat.pytorch.storages import Kept, Version, expired, is_plain
from remat.pytorch.watch import watching
from remat.tables import table


@dataclass
class Offloaded:
    """What one ``offload`` context moved: plain numbers, no tensor is held; prints as a table.

    Attributes:
        storages_out: how many storages were copied to the host.
        bytes_out: their bytes.
        storages_back: how many of them were copied back.
        bytes_back: their bytes.
        host_bytes: bytes that are on the host now.
        host_peak: the most bytes that were there at once.
    """

    storages_out: int = 0
    bytes_out: int = 0
    storages_back: int = 0
    bytes_back: int = 0
    host_bytes: int = 0
    host_peak: int = 0
    _stayed: list[int] = field(default_factory=list, init=False, repr=False)
    _waiting: WeakSet[_Moved] = field(default_factory=WeakSet, init=False, repr=False, compare=False)

    @property
    def storages_freed(self) -> int:
        """How many of the storages copied to the host left the device too, as nobody else held them.

        Whether one did is seen when backward needs it; until then, now.
        """
        return self.storages_out - len(self._not_freed())

    @property
    def bytes_freed(self) -> int:
        """The bytes of those: what offloading brought."""
        return self.bytes_out - sum(self._not_freed())

    def _not_freed(self) -> list[int]:
        return self._stayed + [moved.bytes for moved in self._waiting if not expired(moved.origin)]

    def __str__(self) -> str:
        rows = [
            ("copied to the host", self.storages_out, f"{self.bytes_out:,}"),
            ("and freed on the device", self.storages_freed, f"{self.bytes_freed:,}"),
            ("copied back", self.storages_back, f"{self.bytes_back:,}"),
            ("peak on the host", "", f"{self.host_peak:,}"),
        ]
        return table(["", "storages", "bytes"], rows)

    def _repr_markdown_(self) -> str:
        return str(self)


class _Moved:
    """A storage that was copied out: on the host until it is first needed, then on the device again.

    Only the saved tensors that live in it hold this: when the last of them goes, after its backward or with
    its graph, so does this and what it holds.
    """

    def __init__(self, storage: torch.UntypedStorage, copies: Copies, report: Offloaded) -> None:
        self.origin = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.bytes, self.copies, self.report = storage.nbytes(), copies, report
        self.host: Tensor | None = None
        self.device: Tensor | None = None
        self.arrival: Any = None
        self.host = copies.out(storage)
        report.storages_out += 1
        report.bytes_out += self.bytes
        report.host_bytes += self.bytes
        report.host_peak = max(report.host_peak, report.host_bytes)
        report._waiting.add(self)

    def storage(self) -> torch.UntypedStorage:
        """The storage on the device: copied back if this is the first call, unless it is still there."""
        if self.host is not None:
            there = torch.UntypedStorage._new_with_weak_ptr(self.origin.cdata)
            if there is not None and there.nbytes() == self.bytes:
                self.device = as_bytes(there)
            else:
                self.device, self.arrival = self.copies.back(self.host)
                self.report.storages_back += 1
                self.report.bytes_back += self.bytes
            self.leave_host()
        assert self.device is not None
        if self.arrival is not None:
            self.copies.await_arrival(self.device, self.arrival)
        return self.device.untyped_storage()

    def leave_host(self) -> None:
        """Let go of the copy on the host, and settle whether it was of use."""
        if self.host is not None:
            self.host = None
            self.report.host_bytes -= self.bytes
            self.report._waiting.discard(self)
            if not expired(self.origin):
                self.report._stayed.append(self.bytes)

    def __del__(self) -> None:
        self.leave_host()


class _View:
    """One saved tensor of a storage that was moved."""

    def __init__(self, tensor: Tensor, moved: _Moved) -> None:
        self.moved, self.version, self.dtype = moved, Version(tensor), tensor.dtype
        self.place = tensor.storage_offset(), tensor.size(), tensor.stride()

    def tensor(self) -> Tensor:
        self.version.check()
        storage = self.moved.storage()
        return torch.empty(0, dtype=self.dtype, device=storage.device).set_(storage, *self.place)


@contextmanager
def offload(
    leave_out: nn.Module | Iterable[Tensor] | None = None,
    *,
    least_bytes: int = 0,
    cast_copies: bool = False,
) -> Iterator[Offloaded]:
    """Move the activations that forward saves inside the context to the host, and back when backward comes.

    A storage is copied out once, whole, however many saved tensors are views of it; they come back as views
    of one storage, with the first that is needed, and it stays until the last was used. Gradients are the
    same bit for bit. Backward may run inside the context or after it, more than once with ``retain_graph``,
    and through itself with ``create_graph``. A tensor changed in place after it was saved is refused in
    backward, as by autograd.

    Moving frees only what nobody else holds: the batch that the caller keeps is copied out for nothing, and
    used where it is (``storages_freed``, ``bytes_freed``).

    On CUDA the host's memory is pinned and copies run on a stream of their own. A copy back is asked for by
    the backward that needs it; only as far as backward is queued ahead of the GPU does it start before. On a
    CPU other memory stands for the host.

    Sparse, quantized, nested and lazily conjugated tensors stay, and so does what other saved-tensor hooks,
    opened inside, take over: of a region of ``torch.utils.checkpoint`` (non-reentrant) only the inputs move.
    Like autograd, it does not see what is changed through ``.data``.

    Args:
        leave_out: the module, or the tensors, that stay with every view of them. By default every
            ``nn.Parameter`` that a torch function receives and the parameters and buffers of every module
            called inside the context.
        least_bytes: smaller storages stay; a copy has a cost however small it is.
        cast_copies: move copies of weights that a cast made inside the context, as autocast's, too.

    Yields:
        The counts, which backward goes on with. They hold no tensor.

    Raises:
        ValueError: leave_out holds something that is not a tensor, or least_bytes is not a whole number.

    Source: what vDNN (Rhu et al. 2016, "vDNN: Virtualized Deep Neural Networks for Scalable,
    Memory-Efficient Neural Network Design") does for feature maps, by PyTorch's saved-tensor hooks.

    >>> layer = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    >>> with offload(layer) as moved:
    ...     loss = layer(torch.ones(4, 8)).sum()
    >>> loss.backward()
    >>> print(moved)
    |                         | storages | bytes |
    |:------------------------|---------:|------:|
    | copied to the host      |        3 |   384 |
    | and freed on the device |        3 |   384 |
    | copied back             |        3 |   384 |
    | peak on the host        |          |   384 |
    """
    _check.count("least_bytes", least_bytes, least=0)
    report = Offloaded()
    away: WeakValueDictionary[tuple[int, int], _Moved] = WeakValueDictionary()
    copies: dict[torch.device, Copies] = {}
    with watching(leave_out) as watch:

        def pack(tensor: Tensor) -> Kept | _View:
            if not is_plain(tensor):
                return Kept(tensor)
            storage = tensor.untyped_storage()
            stays = ("parameter",) if cast_copies else ("parameter", "cast copy")
            if storage.nbytes() < max(least_bytes, 1) or watch.kind(storage) in stays:
                return Kept(tensor)
            key = storage._cdata, tensor._version
            moved = away.get(key)
            if moved is None or moved.host is None:
                if storage.device not in copies:
                    copies[storage.device] = copies_for(storage.device)
                moved = away[key] = _Moved(storage, copies[storage.device], report)
            return _View(tensor, moved)

        with saved_tensors_hooks(pack, lambda saved: saved.tensor()):
            yield report
