import gc
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as module_internals
from torch.utils.checkpoint import checkpoint

from remat.pytorch import SavedTensors, live_bytes, saved_tensors


def record_of(
    function: Callable[[], object], leave_out: nn.Module | list[Tensor] | None = None
) -> SavedTensors:
    with saved_tensors(leave_out) as record:
        function()
    return record


# --- an independent count: the tensors that the nodes of the autograd graph show as `_saved_...` --


def saved_by_graph(result: Tensor) -> Iterator[Tensor]:
    pending, seen = [result.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        pending.extend(parent for parent, _ in node.next_functions)
        for name in dir(node):
            value = getattr(node, name) if name.startswith("_saved_") else None
            # A float64 scalar is a Python number of the code, wrapped: no hook sees it.
            if isinstance(value, Tensor) and (value.dim() or value.dtype != torch.float64):
                yield value


def graph_bytes(result: Tensor, parameters: list[Tensor]) -> int:
    left_out = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    sizes = {
        saved.untyped_storage().data_ptr(): saved.untyped_storage().nbytes()
        for saved in saved_by_graph(result)
    }
    return sum(size for address, size in sizes.items() if address not in left_out)


LINEAR, NORM = nn.Linear(6, 6), nn.LayerNorm(6)
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": LINEAR,
    "norm": NORM,
    "gelu": F.gelu,
    "relu": F.relu,
    "softmax": lambda x: x.softmax(-1),
    "square": lambda x: x * x,
    "exp": lambda x: x.exp(),
    "weight": lambda x: x @ LINEAR.weight.t(),
    "view": lambda x: (x.reshape(2, -1) * 2.0).sin().view(-1, 6),
    "transpose": lambda x: x.t().contiguous().t() * x,
    "half": lambda x: torch.cat([x[:, :3].sin(), x[:, 3:].cos()], dim=1),
    "expand": lambda x: x * x[:1].expand_as(x),
    "dropout": lambda x: F.dropout(x, 0.5),
}


@settings(max_examples=40, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=6),
    rows=st.sampled_from([2, 4, 10]),
)
def test_bytes_are_those_of_the_autograd_graph(names: list[str], rows: int) -> None:
    def run() -> Tensor:
        y = torch.ones(rows, 6, requires_grad=True) * 0.5
        for name in names:
            y = OPERATIONS[name](y)
        return y

    assert record_of(run).bytes == graph_bytes(run(), [*LINEAR.parameters(), *NORM.parameters()])


# --- storages -------------------------------------------------------------------------------------


def test_an_expanded_tensor_takes_the_bytes_of_its_storage() -> None:
    row = torch.ones(1, 8)
    weight = torch.ones(1000, 8, requires_grad=True)
    record = record_of(lambda: weight * row.expand(1000, 8))
    assert [(item.shape, item.bytes) for item in record.items] == [((1000, 8), 8 * 4)]


def test_a_view_takes_the_bytes_of_its_whole_storage_once() -> None:
    table = torch.ones(100, 8)
    weight = torch.ones(8, requires_grad=True)
    record = record_of(lambda: (weight * table[0], weight * table[1:3]))
    assert [(item.shape, item.storage, item.bytes) for item in record.items] == [
        ((8,), 0, 3200),
        ((2, 8), 0, 3200),
    ]
    assert record.bytes == 3200


@pytest.mark.parametrize(
    "view", [lambda w: w, lambda w: w.t(), lambda w: w[:2].t(), lambda w: w.reshape(-1, 4)]
)
def test_parameters_and_their_views_are_left_out(view: Callable[[Tensor], Tensor]) -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    x = torch.ones(4, 4, requires_grad=True)

    def run() -> Tensor:
        return x @ (view(weight) if view(weight).shape[0] == 4 else view(weight).t())

    for leave_out in (None, [weight]):
        record = record_of(run, leave_out)
        assert [item.bytes for item in record.items] == [x.nbytes]
    # The other way round: x left out, so that only the weight counts.
    assert record_of(run, [x]).bytes == weight.nbytes


class Scaled(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((16,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale[:8]


def test_buffers_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Scaled())
    x = torch.ones(2, 8)
    for leave_out in (None, model):
        assert record_of(lambda: model(x), leave_out).bytes == x.nbytes
    buffer_counted = record_of(lambda: model(x), list(model.parameters()))
    assert buffer_counted.bytes == x.nbytes + 16 * 4


def test_only_what_is_named_is_left_out() -> None:
    first, second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    x = torch.ones(2, 8, requires_grad=True)
    # Autograd saves each layer's input and each weight.
    assert record_of(lambda: second(first(x)), first).bytes == 2 * x.nbytes + second.weight.nbytes


# --- kinds ----------------------------------------------------------------------------------------


def test_weights_and_their_views_are_listed_apart() -> None:
    weight, x = nn.Parameter(torch.ones(4, 4)), torch.ones(2, 4, requires_grad=True)
    record = record_of(lambda: (x @ weight).exp() @ weight.t())
    assert [(item.kind, item.storage) for item in record.of("parameter")] == [("parameter", 0)] * 2
    assert [item.storage for item in record.items] == [0, 1, 1]  # x, and exp's result for exp and the product
    assert len(record.everything) == 5
    assert record.totals == {"activation": 2 * x.nbytes, "cast copy": 0, "parameter": weight.nbytes}
    assert record.bytes == record.totals["activation"] == sum(item.bytes for item in record.storages)


CASTS: dict[str, Callable[[Tensor], Tensor]] = {
    "bfloat16": lambda w: w.bfloat16(),
    "to": lambda w: w.to(torch.bfloat16),
    "to, by keyword": lambda w: w.to(dtype=torch.bfloat16),
    "type": lambda w: w.type(torch.bfloat16),
    "type_as": lambda w: w.type_as(torch.ones(1, dtype=torch.bfloat16)),
    "of a view": lambda w: w.t().bfloat16(),
    "viewed": lambda w: w.bfloat16().t()[:, :],
    "twice": lambda w: w.double().bfloat16(),
}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("cast", CASTS)
def test_a_cast_copy_of_a_weight_is_no_activation(cast: str, frozen: bool) -> None:
    weight = nn.Parameter(torch.ones(8, 8), requires_grad=not frozen)
    x = torch.ones(2, 8, dtype=torch.bfloat16, requires_grad=True)
    kept = 0 if frozen else x.nbytes  # x is saved for the weight's gradient
    for leave_out in (None, [weight]):
        record = record_of(lambda: x @ CASTS[cast](weight), leave_out)
        assert record.totals == {"activation": kept, "cast copy": 8 * 8 * 2, "parameter": 0}


def test_a_cast_to_what_it_is_already_is_the_weight() -> None:
    weight, x = nn.Parameter(torch.ones(4, 4)), torch.ones(2, 4, requires_grad=True)
    record = record_of(lambda: x @ weight.float())
    assert record.totals == {"activation": x.nbytes, "cast copy": 0, "parameter": weight.nbytes}


def test_a_cast_activation_is_an_activation() -> None:
    x = torch.ones(8, 8, requires_grad=True)
    weight = nn.Parameter(torch.ones(8, 8, dtype=torch.bfloat16))
    record = record_of(lambda: x.bfloat16() @ weight)
    assert record.totals == {"activation": 128, "cast copy": 0, "parameter": 128}


def cast_copies_by_graph(result: Tensor, parameters: list[Tensor]) -> int:
    """The oracle: of the storages in the graph, those with a weight's numbers in 16 bits."""

    def numbers(tensor: Tensor) -> Tensor:
        return tensor.detach().bfloat16().flatten().sort().values

    sizes = {
        saved.untyped_storage().data_ptr(): saved.untyped_storage().nbytes()
        for saved in saved_by_graph(result)
        if saved.dtype == torch.bfloat16
        and any(torch.equal(numbers(saved), numbers(weight)) for weight in parameters)
    }
    return sum(sizes.values())


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", ["linear", "convolution", "attention", "lstm", "by hand"])
def test_autocast_copies_are_those_of_the_graph(kind: str, frozen: bool) -> None:
    torch.manual_seed(0)
    by_hand = nn.Linear(8, 8, bias=False)
    models: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor], Tensor]] = {}
    linear = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))
    convolution = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    attention, lstm = nn.MultiheadAttention(8, 2), nn.LSTM(8, 8)
    models["linear"] = linear, linear, torch.randn(4, 8)
    models["convolution"] = convolution, convolution, torch.randn(2, 3, 8, 8)
    models["attention"] = attention, lambda x: attention(x, x, x)[0], torch.randn(3, 2, 8)
    models["lstm"] = lstm, lambda x: lstm(x)[0], torch.randn(3, 2, 8)
    models["by hand"] = by_hand, lambda x: x @ by_hand.weight.t(), torch.randn(4, 8)
    model, run, x = models[kind]
    model.requires_grad_(not frozen)
    x.requires_grad_()

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return run(x)

    expected = cast_copies_by_graph(step(), list(model.parameters()))
    for leave_out in (None, model):
        record = record_of(step, leave_out)
        assert record.totals["cast copy"] == expected > 0
        assert record.totals["activation"] + expected == graph_bytes(step(), list(model.parameters()))


def test_copies_that_autocast_made_before_are_told_apart_too() -> None:
    layer, x = nn.Linear(8, 8, bias=False), torch.ones(2, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
        record = record_of(lambda: layer(x), layer)
    assert record.totals == {"activation": 2 * 8 * 2, "cast copy": 8 * 8 * 2, "parameter": 0}


def test_autocast_inside_a_vmap_passes() -> None:
    weight, x = nn.Parameter(torch.ones(4, 4)), torch.ones(3, 2, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        record = record_of(lambda: torch.vmap(lambda row: row @ weight.t())(x))
    assert record.totals["activation"] == 3 * 2 * 4 * 2


@settings(max_examples=20, deadline=None)
@given(names=st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=4))
def test_under_autocast_bytes_of_all_kinds_are_those_of_the_graph(names: list[str]) -> None:
    def run() -> Tensor:
        y = torch.ones(4, 6, requires_grad=True) * 0.5
        with torch.autocast("cpu", torch.bfloat16):
            for name in names:
                y = OPERATIONS[name](y)
        return y

    totals = record_of(run).totals
    weights = [*LINEAR.parameters(), *NORM.parameters()]
    assert totals["activation"] + totals["cast copy"] == graph_bytes(run(), weights)


def test_without_cast_copies_nothing_new_is_printed() -> None:
    weight, x = nn.Parameter(torch.ones(4, 4)), torch.ones(2, 4, requires_grad=True)
    record = record_of(lambda: (x @ weight).exp() @ weight)
    assert "kind" not in str(record) and "parameter" not in str(record)
    assert str(record) == record.table(["activation"])


def test_with_cast_copies_each_kind_has_a_total() -> None:
    layer, x = nn.Linear(8, 8, bias=False), torch.ones(2, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        record = record_of(lambda: layer(layer(x)) * layer.weight[0])
    assert str(record).splitlines() == [
        "operation  kind        shape  dtype     storage   bytes",
        "-------------------------------------------------------",
        "linear     cast copy   8 x 8  bfloat16        0     128",
        "linear     activation  2 x 8  bfloat16        0      32",
        "linear     cast copy   8 x 8  bfloat16        0  shared",
        "linear     activation  2 x 8  bfloat16        1      32",
        "mul        activation  2 x 8  bfloat16        2      32",
        "-------------------------------------------------------",
        "total      activation                         3      96",
        "total      cast copy                          1     128",
    ]
    assert record.table().splitlines()[-1].split() == ["total", "parameter", "1", "256"]
    assert record.bytes_as(float_bytes=4) == 2 * 96


# --- storages of their own ------------------------------------------------------------------------


def test_a_reused_address_is_a_new_storage() -> None:
    weight = torch.ones(1000, requires_grad=True)
    addresses: list[int] = []
    with saved_tensors() as record:
        while len(set(addresses)) == len(addresses) < 10_000:
            x = torch.ones(1000)
            addresses.append(x.data_ptr())
            y = weight * x
            del x, y
    assert len(set(addresses)) < len(addresses), "the allocator gave no address twice: nothing is tested"
    assert record.bytes == len(addresses) * 4000
    assert [item.storage for item in record.items] == list(range(len(addresses)))


def test_the_same_tensor_saved_in_two_contexts_is_in_both_records() -> None:
    x = torch.ones(10, requires_grad=True)
    records = [record_of(lambda: x.exp().sum()), record_of(lambda: x.sin().sum())]
    assert [record.bytes for record in records] == [40, 40]


def test_two_models_measured_one_after_the_other_do_not_mix() -> None:
    small = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    large = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    measured = [
        record_of(lambda m=m, n=n: m(torch.ones(2, n)), m) for m, n in ((small, 8), (large, 64), (small, 8))
    ]
    assert [record.bytes for record in measured] == [2 * 2 * 8 * 4, 3 * 2 * 64 * 4, 2 * 2 * 8 * 4]
    assert measured[0] == measured[2]


# --- what a context leaves behind -----------------------------------------------------------------


def test_nothing_is_held_while_the_context_is_open_nor_afterwards() -> None:
    weight = torch.ones(1000, requires_grad=True)
    with saved_tensors() as record:
        x = torch.ones(1000)
        y = weight * x
        reference = StorageWeakRef(x.untyped_storage())
        del x
        assert not reference.expired()  # the graph holds it
        del y
        assert reference.expired()
        z = weight * torch.ones(1000)
    assert record.bytes == 8000
    reference = StorageWeakRef(z.grad_fn._saved_other.untyped_storage())
    del z
    assert reference.expired()


@pytest.mark.parametrize(
    "function", [torch.exp, torch.sigmoid, lambda x: x.softmax(0), lambda x: Double.apply(x)]
)
def test_a_result_that_saves_itself_is_released(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.ones(1000, requires_grad=True)
    with saved_tensors() as record:
        y = function(x * 1)
    assert record.items
    reference = StorageWeakRef(y.untyped_storage())
    del y
    assert reference.expired()


def test_after_an_error_inside_what_was_saved_is_released() -> None:
    references = []

    def forward(x: Tensor) -> None:
        y = (x * 2).exp()
        references.append(StorageWeakRef(y.untyped_storage()))
        y.sin()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught, saved_tensors():
        forward(torch.ones(1000, requires_grad=True))
    del caught
    gc.collect()
    assert references[0].expired()


def test_afterwards_a_living_graph_holds_nothing_of_the_record() -> None:
    def references() -> int:
        gc.collect()
        return sum(type(thing) is StorageWeakRef for thing in gc.get_objects())

    weight, before = torch.ones(10, requires_grad=True), references()
    with saved_tensors([weight]):
        y = (weight.double() * torch.ones(10)).exp()
        inside = references()
    assert references() == before < inside
    y.sum().backward()  # the graph was alive, with the context's hooks in it


def test_a_step_inside_leaves_no_memory_and_the_same_peak() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32), nn.Softmax(-1))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    x = torch.ones(64, 32)
    records = []

    def plain() -> None:
        model(x)[:, 0].sum().backward()

    def recorded() -> None:
        with saved_tensors(model) as record:
            model(x)[:, 0].sum().backward()
        records.append(record)

    expected, history = live_bytes(plain), live_bytes(recorded)
    assert history[-1] == 0
    assert max(history) == max(expected)
    assert records[0].bytes == 4 * 64 * 32 * 4


def test_after_an_error_inside_nothing_is_recorded_any_more() -> None:
    x = torch.ones(10, requires_grad=True)
    with pytest.raises(KeyError, match="mine"), saved_tensors() as record:
        x.exp()
        raise KeyError("mine")
    x.exp()
    assert len(record.items) == 1
    assert not module_internals._global_forward_pre_hooks


def test_gradients_are_those_without_the_context() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.Softmax(-1))
    x = torch.randn(4, 16)

    def gradients() -> list[Tensor]:
        return list(torch.autograd.grad(model(x)[:, 0].prod(), list(model.parameters())))

    expected = gradients()
    with saved_tensors():
        inside = gradients()
    assert all(map(torch.equal, expected, inside))
    assert all(gradient.abs().sum() > 0 for gradient in expected[:2])


@pytest.mark.parametrize("function", [lambda y: (y * y).sum(), lambda y: y.relu_().sum()])
def test_a_tensor_changed_in_place_before_its_backward_is_still_refused(
    function: Callable[[Tensor], Tensor],
) -> None:
    x = torch.ones(3, requires_grad=True)
    with saved_tensors():
        y = x * 2
        z = function(y)
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


# --- checkpointing --------------------------------------------------------------------------------


def test_a_checkpointed_region_shows_its_inputs_and_not_what_it_drops() -> None:
    region = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    x = torch.ones(4, 8, requires_grad=True)
    plain = record_of(lambda: region(x))
    record = record_of(lambda: checkpoint(region, x, use_reentrant=False))
    assert plain.bytes == (8 + 32 + 32) * 4 * 4
    assert [(item.operation, item.shape) for item in record.items if item.bytes] == [("checkpoint", (4, 8))]
    assert record.bytes == x.nbytes


def test_a_tensor_kept_by_a_region_and_by_an_operation_counts_once() -> None:
    x = torch.ones(4, 8, requires_grad=True)

    def run() -> Tensor:
        y = x.sigmoid()  # saves y
        return checkpoint(lambda t: t.exp().sin(), y, use_reentrant=False) * y

    record = record_of(run)
    held = [item for item in record.storages if item.bytes]
    assert [item.operation for item in held] == ["sigmoid", "mul"]  # y, and the region's result
    assert record.bytes == 2 * x.nbytes


def test_backward_inside_records_nothing_of_what_a_region_makes_again() -> None:
    x = torch.ones(4, 8, requires_grad=True)
    with saved_tensors() as record:
        checkpoint(lambda t: t.exp().sin(), x, use_reentrant=False).sum().backward()
    assert record.bytes == x.nbytes


# --- the record -----------------------------------------------------------------------------------


def test_bytes_as_changes_floats_and_booleans_only() -> None:
    x = torch.ones(6, dtype=torch.float64, requires_grad=True)
    index, mask = torch.zeros(5, dtype=torch.int64), torch.ones(6, dtype=torch.bool)
    phase = torch.ones(6, dtype=torch.complex128)
    record = record_of(lambda: (x.exp(), x * mask, x.gather(0, index), x * phase), [x])
    assert record.bytes == 6 * 8 + 6 + 5 * 8 + 6 * 16
    assert record.bytes_as() == 6 * 2 + 6 + 5 * 8 + 6 * 4
    assert record.bytes_as(float_bytes=4, bool_bytes=2) == 6 * 4 + 6 * 2 + 5 * 8 + 6 * 8


def test_a_sparse_tensor_counts_its_indices_and_values() -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    sparse = torch.eye(4).to_sparse()
    record = record_of(lambda: torch.sparse.mm(sparse, weight))
    assert record.bytes == 2 * 4 * 8 + 4 * 4


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        return gradient * 2


def test_operations_are_named() -> None:
    x = torch.ones(2, 4, requires_grad=True)
    weight = nn.Parameter(torch.ones(4, 4))
    record = record_of(lambda: Double.apply(F.gelu(F.linear(x, weight)).softmax(-1)))
    assert [item.operation for item in record.items] == ["linear", "gelu", "softmax", "Double"]


def test_prints_as_a_table() -> None:
    x = torch.ones(1000, 2, requires_grad=True)

    def run() -> None:
        y = x.exp()
        y[0, 0] * (y * (y > 0)).sum()

    assert str(record_of(run)).splitlines() == [
        "operation  shape     dtype    storage   bytes",
        "---------------------------------------------",
        "exp        1000 x 2  float32        0   8,000",
        "mul        1000 x 2  bool           1   2,000",
        "mul        scalar    float32        2       4",
        "mul        scalar    float32        0  shared",
        "---------------------------------------------",
        "total                               3  10,004",
    ]


def test_an_empty_record_prints_and_has_no_bytes() -> None:
    record = record_of(lambda: torch.ones(3) * 2)
    assert record.items == []
    assert record.bytes == record.bytes_as() == 0
    assert str(record).splitlines()[-1].split() == ["total", "0", "0"]


def test_errors_name_the_argument() -> None:
    with (
        pytest.raises(ValueError, match=r"leave_out must be a module or tensors, got an item 3"),
        saved_tensors([3]),
    ):
        pass
    with pytest.raises(ValueError, match=r"float_bytes must be a whole number at least 1, got 0"):
        SavedTensors().bytes_as(float_bytes=0)
    with pytest.raises(ValueError, match=r"bool_bytes must be a whole number at least 1, got 0.5"):
        SavedTensors().bytes_as(bool_bytes=0.5)
    with pytest.raises(ValueError, match=r"kind must be one of 'activation', .*, got 'weight'"):
        SavedTensors().of("weight")
    with pytest.raises(ValueError, match=r"kinds\[1\] must be one of 'activation', .*, got 'all'"):
        SavedTensors().table(["activation", "all"])
