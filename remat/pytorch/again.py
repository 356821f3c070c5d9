"""What must be put back before a stage runs again: random state and buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from remat.pytorch.tape import Stage, name_of


class Again:
    """What lets a stage run again as it did the first time: random state, and buffers if asked for.

    Args:
        stages: all stages; those that run once need nothing.
        runs: how often each runs forward, by number.
        restore_buffers: whether a stage that changes its buffers is put back, or refused.
    """

    def __init__(self, stages: Sequence[Stage], runs: Sequence[int], *, restore_buffers: bool) -> None:
        self.stages, self.runs, self.restore_buffers = stages, runs, restore_buffers
        self.random: dict[int, list[Tensor]] = {}
        self.buffers: dict[int, list[tuple[Tensor, Tensor]]] = {}
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
            yield from self._again(i, device)

    def forget(self, i: int) -> None:
        """Release what was held for a stage whose backward has run."""
        self.random.pop(i, None)
        self.buffers.pop(i, None)

    def _first(self, i: int, device: torch.device) -> Iterator[None]:
        random = _random_state(device)
        buffers = [(buffer, buffer.detach().clone()) for buffer in self._buffers(i)]
        yield
        if not all(map(torch.equal, random, _random_state(device))):
            self.random[i] = random
            self.random_bytes += sum(state.nbytes for state in random)
        changed = [(buffer, old) for buffer, old in buffers if not _same(buffer, old)]
        if changed and not self.restore_buffers:
            stage = self.stages[i - 1]
            assert isinstance(stage, nn.Module)
            names = [n for n, b in stage.named_buffers() if any(b is buffer for buffer, _ in changed)]
            for buffer, old in changed:
                buffer.data.copy_(old)
            raise ValueError(
                f"stage {i} ({name_of(stage)}) changes {', '.join(names)} in forward, and this schedule runs "
                f"it {self.runs[i]} times, which would change that {self.runs[i]} times: pass "
                "restore_buffers=True to have it changed once, or a schedule that keeps this stage"
            )
        if changed:
            self.buffers[i] = changed

    def _again(self, i: int, device: torch.device) -> Iterator[None]:
        random = self.random.get(i)
        now = _random_state(device) if random else []
        after = [(buffer, buffer.detach().clone()) for buffer, _ in self.buffers.get(i, [])]
        try:
            if random:
                _set_random_state(random, device)
            for buffer, old in self.buffers.get(i, []):
                buffer.data.copy_(old)
            yield
        finally:
            if random:
                _set_random_state(now, device)
            for buffer, new in after:
                buffer.data.copy_(new)

    def _buffers(self, i: int) -> list[Tensor]:
        stage = self.stages[i - 1]
        return list(stage.buffers()) if isinstance(stage, nn.Module) else []


def _random_state(device: torch.device) -> list[Tensor]:
    state = [torch.get_rng_state()]
    if device.type == "cuda":
        state.append(torch.cuda.get_rng_state(device))
    return state


def _set_random_state(state: Sequence[Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or (
        a.is_floating_point() and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    )
