"""Copies of storages to the host and back, as bytes: in turn with the compute, or beside it on CUDA."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Copies:
    """Copies that the compute stands still for.

    On a CPU the host is other memory of the same machine, which PyTorch's allocator does not count: the bytes
    move as they would elsewhere, so what this costs and frees can be counted there, though not timed.

    Args:
        device: where the storages live.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def out(self, storage: torch.UntypedStorage) -> Tensor:
        """Return a copy of a storage on the host."""
        return torch.from_numpy(np.empty(storage.nbytes(), dtype=np.uint8)).copy_(as_bytes(storage))

    def back(self, host: Tensor) -> tuple[Tensor, Any]:
        """Return a copy on the device, and what ``await_arrival`` needs to wait for it."""
        return torch.empty_like(host, device=self.device).copy_(host), None

    def await_arrival(self, data: Tensor, arrival: Any) -> None:
        """Let the compute that comes next use what came back."""


class StreamCopies(Copies):
    """Copies on a CUDA stream of their own, from and to pinned memory, so that compute may run beside them.

    Copies queue behind one another, so a copy back never overtakes the copy out. The CPU queues work long
    before the GPU does it, and device memory is given out when work is queued: unless the CPU waits now and
    then, forward runs ahead of the copies that should make room, and backward asks for everything at once.
    So it stays at most ``AHEAD`` copies ahead, far enough for them to run beside compute.
    """

    AHEAD = 2

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.queued: deque[Any] = deque()

    def out(self, storage: torch.UntypedStorage) -> Tensor:
        """Queue a copy to pinned memory, behind the compute that makes the data."""
        data, size = as_bytes(storage), storage.nbytes()
        host = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            host.copy_(data, non_blocking=True)
        data.record_stream(self.stream)  # whoever lets go of it: not given away before it has been copied
        self._stay_near(self.stream.record_event())
        return host

    def back(self, host: Tensor) -> tuple[Tensor, Any]:
        """Queue a copy to the device; the pinned memory may be let go of at once, its allocator waits."""
        self._stay_near(torch.cuda.current_stream(self.device).record_event())
        with torch.cuda.stream(self.stream):
            data = torch.empty(len(host), dtype=torch.uint8, device=self.device)
            data.copy_(host, non_blocking=True)
        return data, self.stream.record_event()

    def await_arrival(self, data: Tensor, arrival: Any) -> None:
        """Let the stream of the backward that is running wait for the copy, and keep the data for it."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(arrival)
        data.record_stream(current)

    def _stay_near(self, event: Any) -> None:
        """Let the CPU wait until what was queued a few copies ago is done."""
        self.queued.append(event)
        if len(self.queued) > self.AHEAD:
            self.queued.popleft().synchronize()


def copies_for(device: torch.device) -> Copies:
    """The copies that suit a device."""
    return StreamCopies(device) if device.type == "cuda" else Copies(device)


def as_bytes(storage: torch.UntypedStorage) -> Tensor:
    """A whole storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
