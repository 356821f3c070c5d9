"""Offloading for real: the same gradients, each storage out and back once, nothing held that need not be."""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from remat.pytorch import GPTLayer, checkpoint_segments, copies, host, mlp, saved_tensors
from remat.pytorch.host import Offloaded, offload

Step = Callable[[], Tensor]


def gradients(step: Step, wanted: list[Tensor], around: AbstractContextManager[Any]) -> list[Tensor]:
    """Loss and gradients of one step from the same random state, its forward in a context."""
    torch.manual_seed(0)
    with around:
        loss = step()
    return [
        loss.detach().reshape(1),
        *torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True),
    ]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    """Bit for bit, whatever the bits mean: a NaN is like itself."""
    pairs = zip(first, second, strict=True)
    return all(
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) for a, b in pairs
    )


def gone(reference: StorageWeakRef) -> bool:
    return bool(reference.expired())


@contextmanager
def counted_save_on_cpu() -> Iterator[list[int]]:
    """The oracle: PyTorch's own hooks, which copy tensor by tensor. On a CPU it copies if told to pin."""
    hooks, moved = save_on_cpu(pin_memory=True), []

    def pack(tensor: Tensor) -> Any:
        packed = hooks.pack_hook(tensor)
        assert packed[1].untyped_storage()._cdata != tensor.untyped_storage()._cdata
        moved.append(packed[1].untyped_storage().nbytes())
        return packed

    with saved_tensors_hooks(pack, hooks.unpack_hook):
        yield moved


# --- the same gradients, and how many bytes -------------------------------------------------------

LINEAR, NORM = nn.Linear(6, 6), nn.LayerNorm(6)
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": LINEAR,
    "norm": NORM,
    "gelu": F.gelu,
    "relu": F.relu,
    "softmax": lambda x: x.softmax(-1),
    "square": lambda x: x * x,
    "exp": lambda x: x.exp(),
    "exp in place": lambda x: (x + 1).exp_(),
    "weight": lambda x: x @ LINEAR.weight.t(),
    "view": lambda x: (x.reshape(2, -1) * 2.0).sin().view(-1, 6),
    "transpose": lambda x: x.t().contiguous().t() * x,
    "half": lambda x: torch.cat([x[:, :3].sin(), x[:, 3:].cos()], dim=1),
    "expand": lambda x: x * x[:1].expand_as(x),
    "dropout": lambda x: F.dropout(x, 0.5),
    "index": lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)],
    "double": lambda x: x.double().sigmoid().float(),
}
WEIGHTS = [*LINEAR.parameters(), *NORM.parameters()]


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=7),
    least_bytes=st.sampled_from([0, 1, 60, 10**9]),
)
def test_gradients_are_bitwise_those_of_a_plain_run(names: list[str], least_bytes: int) -> None:
    x = torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_()

    def step() -> Tensor:
        y = x
        for name in names:
            y = OPERATIONS[name](y)
        return y.square().sum()

    plain = gradients(step, [x, *WEIGHTS], nullcontext())
    with saved_tensors() as record:
        gradients(step, [x, *WEIGHTS], nullcontext())
    with offload(least_bytes=least_bytes) as moved:
        assert same(plain, gradients(step, [x, *WEIGHTS], nullcontext()))
    sizes = [item.bytes for item in record.storages if item.bytes >= max(least_bytes, 1)]
    assert (moved.storages_out, moved.bytes_out) == (len(sizes), sum(sizes))
    assert moved.bytes_back <= moved.bytes_freed <= moved.bytes_out
    assert moved.host_bytes == 0


def layered() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(4))), torch.randn(8, 16)


def convolutional() -> tuple[nn.Module, Tensor]:
    parts = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.3)]
    return nn.Sequential(*parts, nn.Conv2d(4, 4, 3, bias=False), nn.Flatten()), torch.randn(2, 3, 12, 12)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.attend = nn.LSTM(8, 8, 2), nn.MultiheadAttention(8, 2, dropout=0.1)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(x)
        return self.attend(y, y, y)[0]  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "layers": layered,
    "convolutions": convolutional,
    "recurrent and attention": lambda: (Recurrent(), torch.randn(5, 2, 8)),
    "gpt": lambda: (nn.Sequential(GPTLayer(16, 2), GPTLayer(16, 2)), torch.randn(8, 2, 16)),
    "gpt, selective": lambda: (GPTLayer(16, 2, recompute="selective"), torch.randn(8, 2, 16)),
    "gpt, full": lambda: (GPTLayer(16, 2, recompute="full"), torch.randn(8, 2, 16)),
}


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("leave_out", ["found", "named"])
@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_same_gradients_and_keep_their_weights(
    name: str, leave_out: str, autocast: bool
) -> None:
    torch.manual_seed(1)
    model, x = MODELS[name]()
    parameters = list(model.parameters())

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(x.clone()).float().square().mean()

    plain = gradients(step, parameters, nullcontext())
    with saved_tensors(model) as record:
        step()
    assert (record.totals["cast copy"] > 0) == (autocast and name != "gpt, full")
    with offload(model if leave_out == "named" else None) as moved:
        assert same(plain, gradients(step, parameters, nullcontext()))
    assert moved.bytes_out == moved.bytes_freed == record.bytes
    assert moved.bytes_back == moved.bytes_out
    with counted_save_on_cpu() as theirs:
        assert same(plain, gradients(step, parameters, nullcontext()))
    assert moved.bytes_out <= sum(theirs)
    with offload(cast_copies=True) as everything:
        assert same(plain, gradients(step, parameters, nullcontext()))
    assert everything.bytes_out == record.bytes + record.totals["cast copy"]


def test_each_storage_crosses_once_where_save_on_cpu_copies_each_tensor() -> None:
    weight = nn.Parameter(torch.ones(100))
    x = torch.linspace(0, 1, 100)

    def step() -> Tensor:
        y = weight * x.clone()  # saves the clone
        return (y.sin() + y.cos() + y * y.flip(0) + y[:1] * y).sum()  # y four times, and a part of it

    with offload() as moved:
        ours = gradients(step, [weight], nullcontext())
    with counted_save_on_cpu() as theirs:
        oracle = gradients(step, [weight], nullcontext())
    assert same(ours, oracle)
    with saved_tensors() as record:
        step()
    assert moved.bytes_out == record.bytes == 3 * 400  # the clone, y, y flipped
    assert sum(theirs) == 400 + 400 + 4 * 400 + 4


def test_expanded_tensors_move_as_they_are_stored() -> None:
    weight = torch.ones(1000, 8, requires_grad=True)
    with offload([weight]) as moved:
        (weight * torch.ones(1, 8).expand(1000, 8)).sum().backward()
    with counted_save_on_cpu() as theirs:
        (weight * torch.ones(1, 8).expand(1000, 8)).sum()
    assert moved.bytes_out == moved.bytes_back == 8 * 4
    assert theirs[0] == weight.nbytes


# --- out and back ---------------------------------------------------------------------------------


def test_the_bytes_that_come_back_are_those_that_backward_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(10, requires_grad=True)
    with offload([weight]):
        loss = (weight * torch.full((10,), 3.0)).sum()
    monkeypatch.setattr(copies.Copies, "back", lambda self, data: (torch.zeros_like(data), None))
    loss.backward()
    assert weight.grad is not None and not weight.grad.any()


def test_forward_leaves_nothing_on_the_device_and_backward_nothing_on_the_host() -> None:
    model, x = layered()
    references: list[StorageWeakRef] = []
    for module in model.modules():
        module.register_forward_hook(
            lambda module, inputs, y: references.append(StorageWeakRef(y.untyped_storage()))
        )
    with offload(model) as moved:
        loss = model(x.clone()).sum()
        assert all(map(gone, references))
    assert len(references) == 4 * 3 + 1
    assert moved.host_bytes == moved.bytes_out == moved.bytes_freed == 8 * x.nbytes
    assert moved.bytes_back == 0
    loss.backward()
    assert moved.host_bytes == 0
    assert moved.host_peak == moved.bytes_out == moved.bytes_back


class Halves(torch.autograd.Function):
    """Saves two views of its input; its backward shows what came back."""

    seen: tuple[Tensor, ...] = ()

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x[:4], x[2:].t(), x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Halves.seen = ctx.saved_tensors
        return gradient * 2


def test_views_come_back_as_views_of_one_storage() -> None:
    x = torch.arange(24.0).reshape(6, 4).requires_grad_()
    with offload() as moved:
        loss = Halves.apply(x * 1).sum()
    loss.backward()
    top, bottom, whole = Halves.seen
    assert torch.equal(top, x[:4]) and torch.equal(bottom, x[2:].t()) and torch.equal(whole, x)
    assert (top.stride(), bottom.stride(), bottom.storage_offset()) == ((4, 1), (1, 4), 8)
    assert len({tensor.untyped_storage()._cdata for tensor in Halves.seen}) == 1
    assert (moved.storages_out, moved.storages_back, moved.bytes_back) == (1, 1, x.nbytes)
    reference = StorageWeakRef(top.untyped_storage())
    Halves.seen = ()
    del top, bottom, whole
    assert gone(reference)  # the graph went with its backward, and it alone held the rest


def test_a_storage_saved_by_several_operations_comes_back_once_and_stays_until_the_last() -> None:
    x = torch.linspace(0, 1, 50, requires_grad=True)
    order: list[str] = []
    with offload([x]) as moved:
        y = x * 1
        first = y.sin()
        second = first + y.cos()
        y.register_hook(lambda gradient: order.append(f"y: {moved.storages_back} back"))
        first.register_hook(lambda gradient: order.append(f"sin: {moved.storages_back} back"))
        loss = second.exp().sum()
        del y, first, second
    loss.backward()
    assert moved.storages_out == moved.storages_back == 2  # y, and what exp gave
    assert order[-1] == "y: 2 back"


def test_what_the_caller_holds_is_copied_for_nothing_and_used_where_it_is() -> None:
    model, x = layered()
    with offload() as moved:
        loss = model(x).sum()
    assert moved.bytes_out - moved.bytes_freed == x.nbytes
    assert moved.storages_out - moved.storages_freed == 1
    loss.backward()
    assert moved.bytes_back == moved.bytes_freed == moved.bytes_out - x.nbytes
    assert moved.storages_back == moved.storages_freed == 7


def test_a_leaf_let_go_of_in_time_is_freed() -> None:
    weight, x = torch.ones(10, requires_grad=True), torch.ones(10)
    with offload([weight]) as moved:
        loss = (weight * x).sum()
    assert moved.bytes_freed == 0
    del x
    assert moved.bytes_freed == 40
    loss.backward()
    assert moved.bytes_back == 40


@pytest.mark.parametrize(
    "view", [lambda w: w, lambda w: w.t(), lambda w: w[:].t(), lambda w: w.detach().t(), lambda w: w.data]
)
def test_weights_and_their_views_stay(view: Callable[[Tensor], Tensor]) -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    x = torch.ones(4, 4, requires_grad=True)
    for leave_out in (None, [weight]):
        with offload(leave_out) as moved:
            weight.add(0)  # a function that receives it, so that it is found
            (x @ view(weight)).sum().backward()
        assert moved.storages_out == (1 if view(weight).requires_grad else 0)  # x, for the weight's gradient


def test_small_storages_stay() -> None:
    x = torch.ones(100, requires_grad=True)
    for least_bytes, storages in [(0, 2), (16, 2), (17, 1), (400, 1), (401, 0)]:
        with offload(least_bytes=least_bytes) as moved:
            (x * 1).exp().sum().backward()
            torch.ones(4, requires_grad=True).exp().sum().backward()
        assert moved.storages_out == storages


def test_sparse_conjugated_and_empty_tensors_stay_and_work() -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    z = torch.randn(5, dtype=torch.complex64, requires_grad=True)
    with offload() as moved:
        torch.sparse.mm(torch.eye(4).to_sparse(), weight).sum().backward()
        torch.ones(0, requires_grad=True).exp().sum().backward()
    assert moved.storages_out == 0

    def step() -> Tensor:
        return (z * z.conj() * (z * 2).conj().imag).abs().sum()

    assert same(gradients(step, [z], nullcontext()), gradients(step, [z], offload()))


# --- in place, again, and through itself ----------------------------------------------------------

CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "an input": lambda x: (lambda y: ((y * y).sum(), y.add_(1))[0])(x * 2),
    "a result": lambda x: (lambda y: (y.sum(), y.add_(1))[0])(x.exp()),
    "a view": lambda x: (lambda y: ((y[:2] * y[:2]).sum(), y.add_(1))[0])(x * 2),
    "a part": lambda x: (lambda y: ((y * y).sum(), y[0].zero_())[0])(x * 2),
}


@pytest.mark.parametrize("changed", CHANGES)
@pytest.mark.parametrize("least_bytes", [0, 1000], ids=["moved", "kept"])
def test_a_tensor_changed_in_place_is_refused_as_by_autograd(changed: str, least_bytes: int) -> None:
    for around in (nullcontext(), offload(least_bytes=least_bytes)):
        x = torch.ones(4, requires_grad=True)
        with around:
            loss = CHANGES[changed](x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_weight_changed_before_backward_is_refused() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with offload():
        loss = layers(torch.ones(2, 4)).sum()
    with torch.no_grad():
        layers[1].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_tensor_changed_between_two_saves_moves_twice() -> None:
    bias = torch.ones(4, requires_grad=True)

    def step() -> Tensor:
        y = torch.linspace(0, 1, 4, requires_grad=True).exp()  # saves y as it is then; not asked for below
        y.add_(bias)
        return y.exp_().sum()

    plain = gradients(step, [bias], nullcontext())
    with offload() as moved:
        assert same(plain, gradients(step, [bias], nullcontext()))
    assert moved.storages_out == 2


def test_backward_again_uses_what_came_back() -> None:
    model, x = layered()
    parameters = list(model.parameters())
    with offload() as moved:
        loss = model(x.clone()).sum()
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    back = moved.bytes_back
    assert (back, moved.host_bytes) == (moved.bytes_out, 0)
    second = torch.autograd.grad(loss, parameters)
    assert same(list(first), list(second)) and moved.bytes_back == back
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, parameters)


def test_what_came_back_moves_again_when_it_is_saved_again() -> None:
    x = torch.linspace(0, 1, 10, requires_grad=True)
    with offload() as moved:
        y = x * 1
        first = y.sin().sum()
        first.backward(retain_graph=True)
        assert (moved.storages_out, moved.host_bytes) == (1, 0)
        second = y.cos().sum()
        assert (moved.storages_out, moved.host_bytes) == (2, 40)
    second.backward()
    assert x.grad is not None and torch.equal(x.grad, x.detach().cos() - x.detach().sin())


@pytest.mark.parametrize("inside", [False, True])
def test_backward_through_backward(inside: bool) -> None:
    x = torch.linspace(0, 1, 20, requires_grad=True)
    weight = nn.Parameter(torch.linspace(1, 2, 20))

    def second(around: AbstractContextManager[Any]) -> list[Tensor]:
        with around if inside else nullcontext():
            with nullcontext() if inside else around:
                loss = ((x * weight).exp() * x).tanh().sum()
            slopes = torch.autograd.grad(loss, [x, weight], create_graph=True)
            penalty = sum((slope * slope).sum() for slope in slopes)
        return [*slopes, *torch.autograd.grad(penalty, [x, weight])]

    assert same(second(nullcontext()), second(offload()))


@pytest.mark.parametrize("lengths", [[6], [3, 3], [1, 2, 3]])
def test_of_a_checkpointed_region_the_inputs_move(lengths: list[int]) -> None:
    stages, x = mlp(6, 8), torch.ones(5, 8)
    parameters = [parameter for stage in stages for parameter in stage.parameters()]

    def step() -> Tensor:
        return checkpoint_segments(stages, lengths, x.clone(), keep_last=False).sum()

    plain = gradients(step, parameters, nullcontext())
    with offload() as moved:
        assert same(plain, gradients(step, parameters, nullcontext()))
    assert moved.bytes_out == moved.bytes_back == len(lengths) * x.nbytes


def test_the_innermost_context_moves() -> None:
    x = torch.ones(10, requires_grad=True)
    with offload() as outer:
        y = x.exp()
        with offload() as inner:
            y = y.sin()
        loss = y.cos().sum()
    loss.backward()
    assert (outer.storages_out, inner.storages_out) == (2, 1)


# --- what is left behind --------------------------------------------------------------------------


def references_held() -> int:
    gc.collect()
    return sum(type(thing) is StorageWeakRef for thing in gc.get_objects())


def test_a_graph_that_is_dropped_takes_everything_with_it() -> None:
    before = references_held()
    x = torch.ones(1000, requires_grad=True)
    with offload([x]) as moved:
        y = x.exp()
        host_copies = [StorageWeakRef(piece.host.untyped_storage()) for piece in moved._waiting]
        device = StorageWeakRef(y.untyped_storage())
        assert len(host_copies) == 1 and not gone(device)
        del y
        assert gone(device) and all(map(gone, host_copies))
        assert moved.host_bytes == 0
    del host_copies, device
    assert references_held() == before


def test_an_error_in_forward_leaves_nothing() -> None:
    x = torch.ones(1000, requires_grad=True)
    devices: list[StorageWeakRef] = []

    def forward() -> None:
        y = (x * 2).exp()
        devices.append(StorageWeakRef(y.untyped_storage()))
        y.sin()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught, offload() as moved:
        forward()
    del caught
    gc.collect()
    assert gone(devices[0])
    assert moved.bytes_out > 0 and moved.host_bytes == 0 and not moved._waiting
    x.exp()
    assert moved.storages_out == 1  # the context is closed


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        ctx.saved_tensors  # noqa: B018 - brings it back
        raise KeyError("mine")


def test_an_error_in_backward_leaves_nothing() -> None:
    x = torch.ones(1000, requires_grad=True)
    with offload() as moved:
        loss = Fails.apply((x * 1).exp()).exp().sum()
    waiting = list(moved._waiting)
    assert len(waiting) == 2
    with pytest.raises(KeyError, match="mine") as caught:
        loss.backward()
    assert (moved.storages_back, moved.host_bytes) == (2, 0)
    back = [StorageWeakRef(piece.device.untyped_storage()) for piece in waiting]
    del caught, loss, waiting
    gc.collect()
    assert all(map(gone, back))


def test_a_copy_that_fails_passes_its_error_on_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, storage: object) -> Tensor:
        raise MemoryError("the host is full")

    monkeypatch.setattr(copies.Copies, "out", full)
    x = torch.ones(10, requires_grad=True)
    with pytest.raises(MemoryError, match="the host is full"), offload() as moved:
        x.exp()
    assert str(moved) == str(Offloaded())


def test_two_steps_in_one_context_count_both_and_their_higher_peak() -> None:
    x = torch.ones(100, requires_grad=True)
    with offload() as moved:
        for chain in (1, 3, 2):
            y = x
            for _ in range(chain):
                y = y.exp()
            y.sum().backward()
            del y
    assert moved.bytes_out == 6 * 400
    assert moved.host_peak == 3 * 400


# --- CUDA: stand-ins for streams, which do what was queued only when somebody waits ---------------


class Event:
    def __init__(self, stream: "Stream") -> None:
        self.stream, self.place = stream, stream.queued

    def synchronize(self) -> None:
        self.stream.run(self.place)


class Stream:
    """Work is queued, and done when it is waited for; ``None`` as work is done at once."""

    def __init__(self, *_: object) -> None:
        self.work: deque[tuple[int, Callable[[], object]]] = deque()
        self.queued = self.waits = 0

    def add(self, work: Callable[[], object]) -> None:
        self.queued += 1
        self.work.append((self.queued, work))

    def run(self, place: int) -> None:
        while self.work and self.work[0][0] <= place:
            self.work.popleft()[1]()

    def record_event(self) -> Event:
        return Event(self)

    def wait_event(self, event: Event) -> None:
        event.synchronize()

    def wait_stream(self, other: "Stream") -> None:
        self.waits += 1
        Event(other).synchronize()


class Gpu:
    """A CPU that plays a GPU: compute is done at once, copies on another stream when they are waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compute, self.on, self.pinned = Stream(), None, 0
        self.recorded: list[Stream] = []
        self.most_ahead = 0
        copy, empty = Tensor.copy_, torch.empty

        def queued_copy(into: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
            if self.on is None:
                return copy(into, source)
            assert non_blocking
            self.on.add(lambda: copy(into, source))
            self.most_ahead = max(self.most_ahead, len(self.on.work))
            return into

        def pinned_empty(*size: Any, pin_memory: bool = False, **options: Any) -> Tensor:
            self.pinned += pin_memory
            made = empty(*size, **options)
            return made.fill_(77) if made.dtype == torch.uint8 else made  # what is read too early is wrong

        @contextmanager
        def stream(chosen: Stream) -> Iterator[None]:
            self.on = chosen
            yield
            self.on = None

        def record(data: Tensor, where: Stream) -> None:
            self.recorded.append(where)

        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.compute)
        monkeypatch.setattr(torch, "empty", pinned_empty)
        monkeypatch.setattr(Tensor, "copy_", queued_copy)
        monkeypatch.setattr(Tensor, "record_stream", record)
        monkeypatch.setattr(host, "copies_for", copies.StreamCopies)


def chain_step() -> tuple[Step, list[Tensor]]:
    x = torch.linspace(0, 1, 30, requires_grad=True)

    def step() -> Tensor:
        y = x * 1
        for _ in range(6):
            y = (y.sin() * y).exp()
        return y.sum()

    return step, [x]


def test_on_cuda_compute_waits_for_copies_and_memory_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    step, wanted = chain_step()
    plain = gradients(step, wanted, nullcontext())
    gpu = Gpu(monkeypatch)
    with offload() as moved:
        assert same(plain, gradients(step, wanted, nullcontext()))
    assert gpu.pinned == moved.storages_out > 12
    assert moved.bytes_back > 0
    (copying,) = {where for where in gpu.recorded if where is not gpu.compute}
    assert copying.waits == gpu.recorded.count(copying) == moved.storages_out
    assert gpu.recorded.count(gpu.compute) >= moved.storages_back
    assert gpu.most_ahead <= copies.StreamCopies.AHEAD + 1


@pytest.mark.parametrize("broken", ["await_arrival", "_stay_near"])
def test_the_stand_in_for_a_gpu_notices_what_is_missing(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    step, wanted = chain_step()
    plain = gradients(step, wanted, nullcontext())
    gpu = Gpu(monkeypatch)
    monkeypatch.setattr(copies.StreamCopies, broken, lambda *_: None)
    with offload():
        equal = same(plain, gradients(step, wanted, nullcontext()))
    assert not equal if broken == "await_arrival" else gpu.most_ahead > copies.StreamCopies.AHEAD + 1


def test_devices_have_the_copies_that_suit_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    assert type(copies.copies_for(torch.device("cpu"))) is copies.Copies
    assert type(copies.copies_for(torch.device("cuda", 0))) is copies.StreamCopies


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_gradients_are_the_same_and_memory_is_freed() -> None:
    stages = nn.Sequential(*mlp(8, 512)).cuda()
    x = torch.randn(4096, 512, device="cuda")
    parameters = list(stages.parameters())

    def step() -> Tensor:
        return stages(x.clone()).square().mean()

    plain = gradients(step, parameters, nullcontext())
    before = torch.cuda.memory_allocated()
    with offload() as moved:
        loss = step()
    torch.cuda.synchronize()
    assert moved.bytes_freed == moved.bytes_out >= 16 * x.nbytes
    assert torch.cuda.memory_allocated() - before < 2 * x.nbytes
    assert same(plain[1:], list(torch.autograd.grad(loss, parameters)))


# --- the report, and bad arguments ----------------------------------------------------------------


def test_prints_as_a_table() -> None:
    x = torch.ones(1000, requires_grad=True)
    with offload() as moved:
        y = x.exp().sin()
        loss = y.sum()
    assert moved._repr_markdown_() == str(moved)
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in str(moved).splitlines()[2:]] == [
        ["copied to the host", "1", "4,000"],
        ["and freed on the device", "1", "4,000"],
        ["copied back", "0", "0"],
        ["peak on the host", "", "4,000"],
    ]
    loss.backward()
    assert "copied back             |        1 | 4,000" in str(moved)


def test_errors_name_the_argument() -> None:
    with (
        pytest.raises(ValueError, match="leave_out must be a module or tensors, got an item 3"),
        offload([3]),
    ):
        pass
    for bad in (-1, 0.5, True):
        message = f"least_bytes must be a whole number at least 0, got {bad!r}"
        with pytest.raises(ValueError, match=message), offload(least_bytes=bad):
            pass
    x = torch.ones(10, requires_grad=True)
    x.exp()  # no hook was left open


def test_a_region_inside_a_region() -> None:
    """Offloading inside what is checkpointed: the region's own results are not dropped but moved."""
    x = torch.linspace(0, 1, 12, requires_grad=True)

    def region(t: Tensor) -> Tensor:
        with offload():
            return t.exp().sin()

    def step() -> Tensor:
        return checkpoint(region, x * 1, use_reentrant=False).sum()  # type: ignore[no-any-return]

    plain = gradients(lambda: (x * 1).exp().sin().sum(), [x], nullcontext())
    assert same(plain, gradients(step, [x], nullcontext()))
