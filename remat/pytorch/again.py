"""What must be put back before a stage runs again: random state and buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remat.pytorch.random_state import RandomState
from remat.pytorch.tape import Stage, name_of


@dataclass(frozen=True)
class Buffer:
    """A buffer of a module at one moment: which tensor it was, and with which values.

    Modules change a buffer in place (BatchNorm) or put another tensor in its place; both are put back.
    """

    owner: nn.Module
    name: str
    tensor: Tensor
    values: Tensor

    def changed(self) -> bool:
        """Whether it is another one now."""
        now = self.owner._buffers[self.name]
        return now is not self.tensor or not _same(now, self.values)

    def put_back(self) -> None:
        """Make it again what it was."""
        self.tensor.data.copy_(self.values)
        self.owner._buffers[self.name] = self.tensor


def buffers_of(stage: object) -> list[Buffer]:
    """Note all buffers of a stage, if it is a module."""
    owners = stage.modules() if isinstance(stage, nn.Module) else ()
    return [
        Buffer(owner, name, tensor, tensor.detach().clone())
        for owner in owners
        for name, tensor in owner._buffers.items()
        if tensor is not None
    ]


class Again:
    """What lets a stage run again as it did the first time: random state, and buffers if asked for.

    Args:
        stages: all stages; those that run once need nothing.
        runs: how often each runs forward, by number.
        restore_buffers: whether a stage that changes its buffers is put back, or refused.
    """

    def __init__(self, stages: Sequence[Stage], runs: Sequence[int], *, restore_buffers: bool) -> None:
        self.stages, self.runs, self.restore_buffers = stages, runs, restore_buffers
        self.random: dict[int, list[RandomState]] = {}
        self.buffers: dict[int, list[Buffer]] = {}
        self.seen: set[int] = set()
        self.random_bytes = 0

    @contextmanager
    def around(self, i: int, device: torch.device) -> Iterator[None]:
        """Surround one forward of stage i.

        Raises:
            ValueError: the stage runs several times and changes its buffers, which were not to be restored.
        """
        if self.runs[i] <= 1:
            yield
        elif i not in self.seen:
            self.seen.add(i)
            yield from self._first(i, device)
        else:
            yield from self._again(i)

    def forget(self, i: int) -> None:
        """Release what was held for a stage whose backward has run."""
        self.random.pop(i, None)
        self.buffers.pop(i, None)

    def _first(self, i: int, device: torch.device) -> Iterator[None]:
        random = _generators(device)
        buffers = buffers_of(self.stages[i - 1])
        yield
        if any(state.moved() for state in random):
            self.random[i] = random
            self.random_bytes += sum(state.bytes for state in random)
        changed = [buffer for buffer in buffers if buffer.changed()]
        if changed and not self.restore_buffers:
            for buffer in changed:
                buffer.put_back()
            raise ValueError(
                f"stage {i} ({name_of(self.stages[i - 1])}) changes {', '.join(b.name for b in changed)} in "
                f"forward, and this schedule runs it {self.runs[i]} times, which would change that "
                f"{self.runs[i]} times: pass restore_buffers=True to have it changed once, or a schedule "
                "that keeps this stage"
            )
        if changed:
            self.buffers[i] = changed

    def _again(self, i: int) -> Iterator[None]:
        before = self.buffers.get(i, [])
        after = buffers_of(self.stages[i - 1]) if before else []
        for buffer in before:
            buffer.put_back()
        with ExitStack() as stack:
            for buffer in after:
                stack.callback(buffer.put_back)
            for state in self.random.get(i, []):
                stack.enter_context(state.restored())
            yield


def _generators(device: torch.device) -> list[RandomState]:
    """The states of the CPU's generator and of the device's own."""
    return [RandomState.now(d) for d in dict.fromkeys((torch.device("cpu"), device))]


def _same(a: Tensor | None, b: Tensor) -> bool:
    if a is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or (
        a.is_floating_point() and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    )
