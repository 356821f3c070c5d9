"""How much memory is alive during and after each of several functions, run one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from remat.pytorch.peak import _allocations, _quiet_kineto

_MARK = "remat.phase"


@dataclass(frozen=True)
class Phase:
    """Bytes alive in one phase, of those allocated since the first one began.

    Attributes:
        peak: the most during it, what was alive at its start included.
        after: at its end.
    """

    peak: int
    after: int


def phases(functions: Sequence[Callable[[], object]], *, device: str | torch.device = "cpu") -> list[Phase]:
    """Run functions one after the other and return what each of them had allocated at most, and what stayed.

    What a function leaves referenced stays alive into the next one, and what an earlier one allocated and a
    later one releases is subtracted there.

    Args:
        functions: without arguments; each runs once.
        device: where their tensors live, "cpu" or a CUDA device.

    Returns:
        One phase a function, in bytes; on CUDA as the caching allocator counts them, in blocks of 512.

    >>> kept = []
    >>> phases([lambda: kept.append(torch.ones(10)), lambda: kept.append(kept[0].exp()), kept.clear])
    [Phase(peak=40, after=40), Phase(peak=80, after=80), Phase(peak=80, after=0)]
    """
    where = torch.device(device)
    if where.type == "cuda":
        return _on_cuda(functions, where)
    with _quiet_kineto(), torch.autograd.profiler.profile(use_kineto=True, profile_memory=True) as profiler:
        for function in functions:
            with torch.autograd.profiler.record_function(_MARK):
                function()
    assert profiler.kineto_results is not None
    ends = [e.end_time_ns for e in profiler.kineto_results.experimental_event_tree() if e.name == _MARK]
    found, events, live = [], deque(sorted(_allocations(profiler))), 0
    sizes: dict[int, int] = {}  # by address: a release of what lived before is not ours
    for end in sorted(ends):
        peak = live
        while events and events[0][0] <= end:
            _, address, change = events.popleft()
            if change >= 0:
                sizes[address] = change
            elif sizes.pop(address, None) is None:
                continue
            live += change
            peak = max(peak, live)
        found.append(Phase(peak, live))
    return found


def _on_cuda(functions: Sequence[Callable[[], object]], device: torch.device) -> list[Phase]:
    torch.cuda.synchronize(device)
    start, found = torch.cuda.memory_allocated(device), []
    for function in functions:
        torch.cuda.reset_peak_memory_stats(device)
        function()
        torch.cuda.synchronize(device)
        peak, after = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
        found.append(Phase(peak - start, after - start))
    return found
