"""The state of a device's random numbers: noted, compared, and put back for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class RandomState:
    """The state of a device's default generator at one moment.

    >>> state, drawn = RandomState.now(torch.device("cpu")), torch.rand(2)
    >>> with state.restored():
    ...     again = torch.rand(2)
    >>> state.moved(), torch.equal(drawn, again), torch.equal(drawn, torch.rand(2))
    (True, True, False)
    """

    device: torch.device
    value: Tensor

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        """Note the state of now."""
        cpu = device.type == "cpu"
        return cls(
            device, torch.get_rng_state() if cpu else getattr(torch, device.type).get_rng_state(device)
        )

    @property
    def bytes(self) -> int:
        """What it takes to remember it."""
        return self.value.nbytes

    def moved(self) -> bool:
        """Whether something has drawn from the generator since."""
        return not torch.equal(self.value, RandomState.now(self.device).value)

    def set(self) -> None:
        """Put it back."""
        if self.device.type == "cpu":
            torch.set_rng_state(self.value)
        else:
            getattr(torch, self.device.type).set_rng_state(self.value, self.device)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Draw from this state, and leave the generator as it was."""
        before = RandomState.now(self.device)
        self.set()
        try:
            yield
        finally:
            before.set()
