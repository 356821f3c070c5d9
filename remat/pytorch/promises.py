"""Run a described layer so that autograd holds what a choice keeps, and promises to make the rest again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from remat.layer import Layer
from remat.pytorch.random_state import RandomState

Value = tuple[Tensor, ...]  # what one tensor of a description is in PyTorch: its parts; there may be none


def run_kept(
    graph: Layer, functions: Mapping[str, Callable[..., tuple[Value, ...]]], x: Tensor, kept: Collection[str]
) -> Tensor:
    """Run a described layer forward so that autograd holds what is kept, and promises to make the rest again.

    Args:
        graph: the description.
        functions: each operation, by name: it takes the parts of its inputs, one after another, and returns
            the parts of each output. It changes nothing in place. What it saves is a part of an input or an
            output, or a view of one; anything else (a weight, a copy of its own) is held. An operation of
            kind "mask" draws from its device's global generator, others draw nothing.
        x: the layer's input, always kept.
        kept: names of the tensors to hold; a promise to make one again is kept at most once, when autograd
            or another promise asks for it, without gradients, in the same autocast mode and random state.

    Returns:
        The layer's output.

    >>> from remat.convnet import mlp_net
    >>> from remat.pytorch import saved_tensors
    >>> w = torch.ones(8, 8, requires_grad=True)
    >>> functions = {f"linear{i}": lambda x: ((x @ w,),) for i in (1, 2)}
    >>> functions |= {f"sigmoid{i}": lambda x: ((x.sigmoid(),),) for i in (1, 2)}
    >>> for kept in ["sigmoid1", "sigmoid2"], ["sigmoid2"], []:
    ...     with saved_tensors([w]) as record:
    ...         y = run_kept(mlp_net(layers=2, width=8, batch=4), functions, torch.ones(4, 8), kept)
    ...     print(record.bytes)
    384
    256
    128
    """
    last = {name: index for index, op in enumerate(graph.operations) for name in op.inputs}
    last[graph.output] = len(graph.operations)
    values: dict[str, Value] = {graph.input: (x,)}
    slots = {graph.input: _Slot(_held((x,)))}
    autocast = _autocast(x.device)
    for index, op in enumerate(graph.operations):
        function, handles = functions[op.name], _Handles()
        promise = None
        if not set(op.outputs).issubset(kept):
            state = RandomState.now(x.device) if op.kind == "mask" else None
            promise = _Promise(function, [slots[name] for name in op.inputs], state, autocast)
        with saved_tensors_hooks(handles.pack, _unpack):
            results = function(*(part for name in op.inputs for part in values[name]))
        for number, (name, value) in enumerate(zip(op.outputs, results, strict=True)):
            there = promise is None or name in kept or not value
            values[name] = value
            slots[name] = _Slot(_held(value)) if there else _Slot(None, promise, number)
        del results, value
        around = (*op.inputs, *op.outputs)  # a backward needs nothing else, weights apart
        handles.settle([(slots[name], values[name]) for name in around])
        for name in around:
            if last.get(name, index) == index:  # nobody reads it any more: it lives on only if it is held
                values.pop(name, None)
    return values[graph.output][0]


class _Slot:
    """One tensor of the description from forward to backward: there, or a promise to make it again.

    It lives as long as autograd, or the promise of another tensor, has a use for it. There are no cycles: a
    slot knows its promise, a promise the slots that it reads, and those that it makes only weakly.
    """

    __slots__ = ("__weakref__", "_get", "_promise")

    def __init__(
        self, get: Callable[[], Value] | None, promise: _Promise | None = None, number: int = 0
    ) -> None:
        self._get, self._promise = get, promise
        if promise is not None:
            promise.outputs[number] = weakref.ref(self)

    def parts(self) -> Value:
        if self._promise is not None:
            self._promise.fulfill()
        assert self._get is not None
        self.fulfill(value := self._get())  # once: hooks around the layer may have work to do to get it back
        return value

    def fulfill(self, value: Value) -> None:
        self._get, self._promise = (lambda: value), None


class _Promise:
    """To run an operation again, once for all that is missing of its outputs."""

    def __init__(
        self,
        function: Callable[..., tuple[Value, ...]],
        inputs: list[_Slot],
        state: RandomState | None,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.function, self.inputs, self.autocast = function, inputs, autocast
        self.restored = nullcontext if state is None else state.restored
        self.outputs: dict[int, weakref.ref[_Slot]] = {}

    def fulfill(self) -> None:
        inputs = [part for slot in self.inputs for part in slot.parts()]
        with torch.no_grad(), self.autocast(), self.restored():
            results = self.function(*inputs)
        for number, reference in self.outputs.items():
            slot = reference()
            if slot is not None:
                slot.fulfill(results[number])


class _Handles:
    """What autograd is given in place of the tensors that one operation saves."""

    def __init__(self) -> None:
        self.open: list[tuple[_Handle, Tensor]] = []

    def pack(self, tensor: Tensor) -> _Handle:
        handle = _Handle()
        self.open.append((handle, tensor))
        return handle

    def settle(self, around: Iterable[tuple[_Slot, Value]]) -> None:
        """Let each handle refer to the slot whose storage it lies in; what lies in none is held."""
        parts = [(slot, number, part) for slot, value in around for number, part in enumerate(value)]
        for handle, tensor in self.open:
            same = [item for item in parts if _storage(item[2]) == _storage(tensor)]
            same.sort(key=lambda item: item[2].storage_offset() != tensor.storage_offset())
            if same:
                handle.refer(tensor, *same[0])
            else:
                handle.get = _alone(_held((tensor,)))
        self.open.clear()


class _Handle:
    """How to get one saved tensor back."""

    __slots__ = ("get",)
    get: Callable[[], Tensor]

    def refer(self, tensor: Tensor, slot: _Slot, number: int, part: Tensor) -> None:
        """Get it as the same view of a part of a slot."""
        size, stride, laid_out = tensor.shape, tensor.stride(), part.stride()
        offset = tensor.storage_offset() - part.storage_offset()

        def get() -> Tensor:
            base = slot.parts()[number]
            if base.stride() != laid_out:  # hooks around the layer, such as save_on_cpu, may lay it out anew
                empty = torch.empty_strided(base.shape, laid_out, dtype=base.dtype, device=base.device)
                base = empty.copy_(base)
            return base.as_strided(size, stride, base.storage_offset() + offset)

        self.get = get


def _alone(get: Callable[[], Value]) -> Callable[[], Tensor]:
    return lambda: get()[0]


def _unpack(handle: _Handle) -> Tensor:
    return handle.get()


class Kept(torch.autograd.Function):
    """Saves tensors like any operation, so that hooks around the layer see them and versions are checked."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        """Save the tensors for a backward that never comes."""
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Refuse: nobody has the result of forward."""
        raise AssertionError("nothing is computed from what this function returns")


def _held(value: Value) -> Callable[[], Value]:
    # Detached: a tensor that knows its operation would be held by what that operation saves, a cycle.
    with torch.enable_grad():
        anchor = torch.empty(0, requires_grad=True)
        saved = Kept.apply(anchor, *(part.detach() for part in value))  # type: ignore[no-untyped-call]
    # By way of the result: before PyTorch 2.13 its node frees what it saved once the result is gone.
    return lambda: tuple(saved.grad_fn.saved_tensors)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _autocast(device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """Return how to enter the autocast mode of now again."""
    kind = device.type
    if not torch.amp.is_autocast_available(kind):
        return nullcontext
    dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    return lambda: torch.autocast(kind, dtype=dtype, enabled=enabled)
