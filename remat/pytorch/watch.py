"""Watch torch functions run: which one saves a tensor, and what is a weight or a cast copy of one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from remat.pytorch.record import Kind
from remat.pytorch.storages import Storages

_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
_CASTS = {"to", "type", "type_as", "half", "bfloat16", "float", "double", "cpu", "cuda"}


class Watch(TorchFunctionMode):
    """Knows which torch function runs, and the storages of weights and of their cast copies.

    Attributes:
        weights: parameters, buffers, or what else is no activation.
        casts: copies of weights that a cast made inside the context.
        discover: take each ``nn.Parameter`` that a torch function receives for a weight.
    """

    def __init__(self, *, discover: bool) -> None:
        super().__init__()
        self.running: list[str] = []
        self.weights, self.casts = Storages(), Storages()
        self.discover = discover

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = list(_tensors_in((args, tuple(kwargs.values()))))
        if self.discover:
            self.weights.add_tensors(tensor for tensor in tensors if isinstance(tensor, nn.Parameter))
        name = getattr(func, "__name__", "").strip("_")
        self.running.append(name)
        try:
            with _CastSight(self) if self._may_cast(name, tensors) else nullcontext():
                return func(*args, **kwargs)
        finally:
            self.running.pop()

    def kind(self, storage: torch.UntypedStorage) -> Kind:
        """Whether a storage holds a weight, a cast copy of one, or an activation."""
        if storage in self.weights:
            return "parameter"
        return "cast copy" if storage in self.casts else "activation"

    def operation(self) -> str:
        """The torch function running now, or "checkpoint", or the ``autograd.Function`` that saves."""
        if self.running:
            return self.running[-1]
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
                return "checkpoint"
            if frame.f_code is _APPLY and frame.f_locals["cls"].__module__ != "torch.utils.checkpoint":
                return str(frame.f_locals["cls"].__name__)
            frame = frame.f_back
        return ""

    def is_weight(self, tensor: Tensor) -> bool:
        """Whether the tensor is a weight, a view of one, or a cast copy."""
        return self.weights.holds_part_of(tensor) or self.casts.holds_part_of(tensor)

    def _may_cast(self, name: str, tensors: Iterable[Tensor]) -> bool:
        """Only then is the function looked into; all others run as without the context."""
        if name not in _CASTS and not any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            return False
        return any(map(self.is_weight, tensors))


class _CastSight(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the casts of weights inside a torch function; autocast's happen where Python does not look."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and self.watch.is_weight(args[0]):
            self.watch.casts.add_tensors([result])
        return result


@contextmanager
def watching(leave_out: nn.Module | Iterable[Tensor] | None) -> Iterator[Watch]:
    """Open a watch whose weights are those of leave_out.

    Args:
        leave_out: a module, or tensors. None: every ``nn.Parameter`` that a torch function receives and the
            parameters and buffers of every module called inside the context.

    Raises:
        ValueError: leave_out holds something that is not a tensor.
    """
    watch = Watch(discover=leave_out is None)
    if isinstance(leave_out, nn.Module):
        watch.weights.add_tensors(_state(leave_out))
    elif leave_out is not None:
        tensors = list(leave_out)
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise ValueError(f"leave_out must be a module or tensors, got an item {tensor!r}")
        watch.weights.add_tensors(tensors)

    def before_module(module: nn.Module, arguments: Any) -> None:
        watch.weights.add_tensors(_state(module))

    with ExitStack() as stack:
        stack.callback(watch.weights.clear)
        stack.callback(watch.casts.clear)
        if watch.discover:
            stack.callback(register_module_forward_pre_hook(before_module).remove)
        torch.clear_autocast_cache()  # casts made before would not be seen: they are made again
        stack.enter_context(watch)
        yield watch


def _tensors_in(arguments: Any) -> Iterator[Tensor]:
    if isinstance(arguments, Tensor):
        yield arguments
    elif isinstance(arguments, (tuple, list)):
        for argument in arguments:
            yield from _tensors_in(argument)


def _state(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()
