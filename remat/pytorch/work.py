"""What a forward leaves for backward and what a step computes, whatever wrapper or policy is inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from remat.pytorch.peak import live_bytes


@dataclass
class Operations:
    """The ATen operations of one step, those that backward runs again included.

    Attributes:
        calls: how often each ran, by name ("aten.mm", ...).
        flops: FLOPs of matrix products, convolutions and attention kernels, as far as PyTorch's own table of
            formulas knows them; elementwise operations are not in it.
        copied: bytes that ``copy_`` wrote, which is how the offloading hooks of PyTorch move a tensor.
    """

    calls: Counter[str] = field(default_factory=Counter)
    flops: int = 0
    copied: int = 0


class _Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, seen: Operations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        operation = func.overloadpacket
        self.seen.calls[str(operation)] += 1
        if operation in flop_registry:
            self.seen.flops += int(flop_registry[operation](*args, **kwargs, out_val=result))
        if operation is torch.ops.aten.copy_:
            self.seen.copied += args[0].nbytes
        return result


def operations(step: Callable[[], object]) -> Operations:
    """Run step once and count the operations that it dispatches, in forward, backward and any replay.

    What a selective policy takes from its cache is not dispatched, and so not counted.

    Args:
        step: a function without arguments; it runs once.

    >>> x = torch.ones(2, 3, requires_grad=True)
    >>> seen = operations(lambda: (x @ x.T).sum().backward())
    >>> seen.calls["aten.mm"], seen.flops
    (3, 72)
    """
    seen = Operations()
    with _Count(seen):
        step()
    return seen


def held_bytes(run: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Run a forward and return the bytes that are alive after it, besides its input and its output.

    They are counted where they are allocated, so it sees what saved-tensor hooks cannot: the cache of a
    selective policy, a checkpoint's random state, the copies that an offloading wrapper makes.

    Args:
        run: a function of one tensor that returns one tensor.
        x: its input, on the CPU; require a gradient of it if a model's would.

    Returns:
        Bytes. Parameters do not count, as they lived before; nor does x.

    Raises:
        ValueError: x is not on the CPU.

    >>> x = torch.ones(4, 8, requires_grad=True)
    >>> held_bytes(lambda x: x.exp().exp(), x)  # the inner result, 4 x 8 x 4 bytes
    128
    """
    if x.device.type != "cpu":
        raise ValueError(f"x must be on the CPU, where allocations are counted, got {str(x.device)!r}")
    results: list[Tensor] = []
    left = live_bytes(lambda: results.append(run(x)))[-1]
    result = results[0].untyped_storage()
    born_here = result.data_ptr() != x.untyped_storage().data_ptr()
    return left - (result.nbytes() if born_here else 0)
