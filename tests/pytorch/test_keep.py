import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from remat.choice import RECOMPUTE, program
from remat.choice import kept as kept_under
from remat.choices import every_choice
from remat.cost import flops, roofline
from remat.gpt import gpt_layer
from remat.hardware import device
from remat.pytorch import GPTLayer, live_bytes, peak_bytes, saved_tensors
from remat.pytorch.keep import Keep, keep

LEDGER = tuple(tensor.name for tensor in gpt_layer(s=1, b=1, h=1, a=1).saved)
WITH_STATISTICS = tuple(t.name for t in gpt_layer(s=1, b=1, h=1, a=1, norm_statistic_bytes=4).saved)
MASKS = ("attention_mask", "mask1", "mask2")
STATE = torch.get_rng_state().nbytes
DIVISOR = 8  # x / 2 saves its 2 as a tensor of 8 bytes, which hooks do not see; the plain layer does it too


def make(h: int, a: int, **options: Any) -> GPTLayer:
    """A layer with the same weights each time."""
    torch.manual_seed(0)
    return GPTLayer(h, a, **options)


def in_16_bits(layer: GPTLayer) -> GPTLayer:
    """Activations of 2 bytes, statistics of 4, as on a GPU: LayerNorm's weights stay in 32 bits."""
    layer.bfloat16()
    layer.norm1.float()
    layer.norm2.float()
    return layer


def gradients(layers: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    """Result, random state after forward, and gradients of one step whose dropout starts from seed 1."""
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    for tensor in (x, *parameters):
        tensor.grad = None
    torch.manual_seed(1)
    y = x
    for layer in layers:
        y = layer(y)
    after_forward = torch.get_rng_state()
    torch.rand(3)  # whoever draws between forward and backward must not matter
    before_backward = torch.get_rng_state()
    torch.autograd.backward(y.float().sin().sum())
    assert torch.equal(torch.get_rng_state(), before_backward)
    found = [tensor.grad for tensor in (x, *parameters) if tensor.grad is not None]
    return [y.detach(), after_forward, *found]


def equal(expected: Sequence[Tensor], got: Sequence[Tensor]) -> bool:
    return len(expected) == len(got) and all(map(torch.equal, expected, got))


def held_bytes(layer: GPTLayer, x: Tensor) -> int:
    """What the CPU allocator has given out after forward and not got back, and the input; not the output."""
    held: list[Tensor] = []
    live = live_bytes(lambda: held.append(layer(x)))[-1]
    return live + x.nbytes - held[0].nbytes


def recorded_bytes(layer: GPTLayer, x: Tensor) -> int:
    with saved_tensors(layer) as record:
        layer(x)
    return record.bytes


# --- gradients, work and bytes of every choice ----------------------------------------------------


class Logged(GPTLayer):
    """Writes down which operations run."""

    log: list[str]

    def operations(self, x: Tensor) -> dict[str, Callable[..., Any]]:
        def logged(name: str, function: Callable[..., Any], *parts: Tensor) -> Any:
            self.log.append(name)
            return function(*parts)

        return {name: partial(logged, name, run) for name, run in super().operations(x).items()}


def test_choices_of_a_tiny_layer() -> None:
    """Every eleventh of 4096: gradients are the plain layer's, and the work is what the description says."""
    s, b, h, a = 3, 2, 4, 2
    layer = gpt_layer(s=s, b=b, h=h, a=a)
    forward = [op.name for op in layer.operations]
    choices = every_choice(layer, flops(layer))
    plain, ours = make(h, a), Logged(h, a)
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(s, b, h, requires_grad=True)
    expected = gradients([plain], x)
    assert len(choices) == 4096 and len(expected) == 2 + 1 + 12
    for number in range(0, len(choices), 11):
        kept = choices[number].kept
        ours.recompute, ours.log = keep(kept), []
        assert equal(expected, gradients([ours], x)), kept
        assert ours.log[: len(forward)] == forward
        # Sorted: where one backward needs two tensors, the description asks for them in another order.
        again = sorted(op.name for op in program(layer, kept=kept).recomputed)
        assert sorted(ours.log[len(forward) :]) == again, kept


@settings(max_examples=40, deadline=None)
@given(
    s=st.integers(1, 7),
    b=st.integers(1, 3),
    a=st.integers(1, 3),
    width=st.integers(1, 5),
    kept=st.sets(st.sampled_from(WITH_STATISTICS)),
    causal=st.sampled_from(["bias", "masked_fill"]),
)
def test_shapes_and_choices_with_statistics_in_16_bits(
    s: int, b: int, a: int, width: int, kept: set[str], causal: str
) -> None:
    h = a * width
    layer = gpt_layer(s=s, b=b, h=h, a=a, norm_statistic_bytes=4)
    x = torch.randn(s, b, h, dtype=torch.bfloat16, requires_grad=True)
    plain = in_16_bits(make(h, a, causal=causal))
    ours = in_16_bits(make(h, a, causal=causal, recompute=keep(kept, norm_statistics=True)))
    assert equal(gradients([plain], x), gradients([ours], x))
    causal_mask = s * s if causal == "masked_fill" else 0
    bytes_kept = layer.bytes_of({"x", *kept}) + causal_mask
    assert recorded_bytes(ours, x) == bytes_kept
    states = STATE * len(set(MASKS) - kept)
    assert held_bytes(ours, x) == bytes_kept + states + 4 * DIVISOR


@pytest.mark.parametrize("b", [1, 2])
def test_held_bytes_one_by_one(b: int) -> None:
    """The ledger; 8 s b of statistics a LayerNorm output kept; a state a mask dropped; four divisors."""
    s, h, a = 16, 32, 4
    layer = gpt_layer(s=s, b=b, h=h, a=a)
    x = torch.randn(s, b, h, dtype=torch.bfloat16)
    for kept in (LEDGER, ["x"], *([name] for name in LEDGER), *(set(LEDGER) - {name} for name in LEDGER)):
        ours = in_16_bits(make(h, a, recompute=keep(kept)))
        norms = 8 * s * b * len({"ln1", "ln2"} & set(kept))
        states = STATE * len(set(MASKS) - set(kept))
        expected = layer.bytes_of({"x", *kept}) + norms
        assert recorded_bytes(ours, x) == expected
        assert held_bytes(ours, x) == expected + states + 4 * DIVISOR
    plain = in_16_bits(make(h, a))
    assert held_bytes(plain, x) == layer.saved_bytes + 2 * 8 * s * b + 4 * DIVISOR


@pytest.mark.parametrize("b", [1, 2])
@pytest.mark.parametrize("base", [(), tuple(set(LEDGER) - set(MASKS))], ids=["nothing else", "all else"])
@pytest.mark.parametrize("masks", [*product((False, True), repeat=3)])
def test_every_subset_of_masks_in_a_stack(masks: Sequence[bool], base: Collection[str], b: int) -> None:
    kept = [*base, *(name for name, there in zip(MASKS, masks, strict=True) if there)]
    x = torch.randn(6, b, 8, requires_grad=True)
    expected = gradients([make(8, 2) for _ in range(3)], x)
    assert equal(expected, gradients([make(8, 2, recompute=keep(kept)) for _ in range(3)], x))
    assert not torch.equal(expected[0], gradients([make(8, 2).eval() for _ in range(3)], x)[0])


@pytest.mark.parametrize("costs", ["flops", "roofline"])
def test_the_frontier_runs(costs: str) -> None:
    """As a reader would write it: take a choice, run the layer with it, compare bytes and gradients."""
    s, b, h, a = 32, 1, 32, 4
    layer = gpt_layer(s=s, b=b, h=h, a=a)
    cost = flops(layer) if costs == "flops" else roofline(layer, device("H100"))
    x = torch.randn(s, b, h, requires_grad=True)
    expected = gradients([make(h, a)], x)
    frontier = every_choice(layer, cost).frontier
    assert len(frontier) > 5
    for choice in frontier:
        ours = make(h, a, recompute=keep(choice))
        with saved_tensors(ours) as record:
            ours(x)
        norms = 8 * s * b // 2 * len({"ln1", "ln2"} & set(choice.kept))  # bytes_as counts them at 2 bytes
        assert record.bytes_as() == choice.kept_bytes + norms
        assert equal(expected, gradients([ours], x))


@pytest.mark.parametrize("word", RECOMPUTE)
def test_is_what_the_three_words_do(word: str) -> None:
    s, b, h, a = 64, 1, 64, 4
    layer = gpt_layer(s=s, b=b, h=h, a=a)
    x = torch.randn(s, b, h, requires_grad=True)
    theirs, ours = make(h, a, recompute=word), make(h, a, recompute=keep(kept_under(layer, recompute=word)))
    assert recorded_bytes(theirs, x) == recorded_bytes(ours, x)
    assert equal(gradients([theirs], x), gradients([ours], x))
    for part in (lambda y: y, lambda y: torch.autograd.backward(y.mean())):  # forward alone, then a step
        their_peak, our_peak = (peak_bytes(lambda m=m: part(m(x))) for m in (theirs, ours))  # type: ignore[misc] # noqa: B023
        assert our_peak <= their_peak + 3 * STATE


# --- a policy over ATen operations, for comparison ------------------------------------------------


def under_policy(layer: GPTLayer, saved: dict[Any, Collection[int]], x: Tensor) -> Tensor:
    """Checkpoint the layer, but save the results of some operations: by number among those of their kind."""

    def contexts() -> Any:
        counts: dict[Any, int] = {}

        def policy(context: Any, op: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
            key = op, context.is_recompute
            counts[key] = counts.get(key, -1) + 1
            keeps = counts[key] in saved.get(op, ())
            return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    result: Tensor = checkpoint(layer, x, use_reentrant=False, context_fn=contexts)
    return result


class Policy(nn.Module):
    def __init__(self, layer: GPTLayer, saved: dict[Any, Collection[int]]) -> None:
        super().__init__()
        self.layer, self.saved = layer, saved

    def forward(self, x: Tensor) -> Tensor:
        return under_policy(self.layer, self.saved, x)


aten = torch.ops.aten


def test_a_policy_agrees_where_it_can_say_the_same() -> None:
    s, h, a = 8, 8, 2
    x = torch.randn(s, 1, h, requires_grad=True)
    saved = {aten.addmm.default: [0, 2], aten._softmax.default: [0], aten.ge.Scalar: [0, 1]}
    kept = ["qkv", "gelu_in", "softmax", "attention_mask", "mask1"]
    policy = Policy(make(h, a), saved)
    assert equal(gradients([policy], x), gradients([make(h, a, recompute=keep(kept))], x))
    held: list[Tensor] = []
    live = live_bytes(lambda: held.append(policy(x)))[-1]
    # It holds one random state for the whole layer, as does keep for the mask that it drops.
    assert live == held_bytes(make(h, a, recompute=keep(kept)), x)


def test_a_policy_that_keeps_one_draw_alone_is_silently_wrong() -> None:
    x = torch.randn(8, 1, 8, requires_grad=True)
    expected = gradients([make(8, 2)], x)
    assert not equal(expected, gradients([Policy(make(8, 2), {aten.rand.default: [0]})], x))
    assert equal(expected, gradients([make(8, 2, recompute=keep(["attention_mask"]))], x))


# --- several layers, several steps ----------------------------------------------------------------

SOME = (["qkv", "mask1", "gelu_in"], [], ["context", "attention_mask", "residual"], LEDGER)


def test_layers_with_different_choices_train_alike() -> None:
    def train(choices: Sequence[Any]) -> list[Tensor]:
        layers = nn.ModuleList([make(8, 2, recompute=recompute) for recompute in choices])
        optimizer = torch.optim.Adam(layers.parameters(), lr=0.01)
        torch.manual_seed(2)
        for _ in range(3):
            losses = []
            for _ in range(2):  # two forwards before a backward
                y = torch.randn(5, 2, 8)
                for layer in layers:
                    y = layer(y)
                losses.append(y.square().mean())
            torch.autograd.backward(losses[0] + 2 * losses[1])
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in layers.parameters()]

    start = [p.detach() for _ in SOME for p in make(8, 2).parameters()]
    expected = train(["none"] * len(SOME))
    assert not any(map(torch.equal, start, expected)), "nothing was trained"
    assert equal(expected, train([keep(kept) for kept in SOME]))


@pytest.mark.parametrize("first", [0, 1])
def test_two_forwards_of_one_layer_go_backward_in_any_order(first: int) -> None:
    def run(recompute: Any) -> list[Tensor]:
        layer = make(8, 2, recompute=recompute)
        torch.manual_seed(1)
        inputs = [torch.randn(5, 1, 8, requires_grad=True) for _ in range(2)]
        results = [layer(x) for x in inputs]
        for number in (first, 1 - first):
            torch.autograd.backward(results[number].sin().sum())
        return [t.grad for t in (*inputs, *layer.parameters()) if t.grad is not None]

    for kept in SOME:
        assert equal(run("none"), run(keep(kept)))


# --- nothing is left behind -----------------------------------------------------------------------


class Watched(GPTLayer):
    """Knows by weak references which storages that it ever made are alive."""

    fails_in: str = ""
    made: list[StorageWeakRef]

    def operations(self, x: Tensor) -> dict[str, Callable[..., Any]]:
        def watched(name: str, function: Callable[..., Any], *parts: Tensor) -> Any:
            if name == self.fails_in:
                raise KeyError(name)
            results = function(*parts)
            self.made += [StorageWeakRef(part.untyped_storage()) for value in results for part in value]
            return results

        return {name: partial(watched, name, run) for name, run in super().operations(x).items()}

    def alive(self) -> int:
        return sum(not reference.expired() for reference in self.made)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """What dies without the collector was in no cycle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("kept", SOME, ids=str)
@pytest.mark.parametrize("end", ["backward", "no backward", "forward raises", "recompute raises"])
def test_nothing_lives_on(kept: Sequence[str], end: str) -> None:
    layer, x = Watched(8, 2, recompute=keep(kept)), torch.randn(5, 2, 8, requires_grad=True)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    layer.made = []
    # With b = 2, q, k and v are three storages; there are two of statistics for each LayerNorm output.
    held = sum({"x": 0, "qkv": 3, "ln1": 3, "ln2": 3}.get(name, 1) for name in kept)

    def run() -> None:
        if end == "forward raises":
            layer.fails_in = "gelu"
        y = layer(x).sum()
        assert layer.alive() == held
        if end == "recompute raises":
            layer.fails_in = "softmax"
        if end != "no backward":
            torch.autograd.backward(y)

    fails = end == "forward raises" or (end == "recompute raises" and kept != LEDGER)
    with pytest.raises(KeyError) if fails else nullcontext():
        run()
    x.grad = None
    assert len(layer.made) > 15 and layer.alive() == 0


# --- other ways of training -----------------------------------------------------------------------


def compare(run: Callable[[GPTLayer], list[Tensor]], **options: Any) -> None:
    """The same result from the plain layer and under some choices."""
    expected = run(make(8, 2, **options))
    for kept in SOME:
        assert equal(expected, run(make(8, 2, recompute=keep(kept), **options))), kept


@contextmanager
def around(step: str) -> Iterator[None]:
    context: AbstractContextManager[object] = nullcontext()
    if step == "autocast":
        context = torch.autocast("cpu", dtype=torch.bfloat16)
    if step == "copying hooks":  # as save_on_cpu on a GPU: what comes back is laid out anew
        context = saved_tensors_hooks(lambda t: t.clone(memory_format=torch.contiguous_format), lambda t: t)
    with context:
        yield


@pytest.mark.parametrize("way", ["autocast", "copying hooks", "checkpoint"])
@pytest.mark.parametrize("b", [1, 2])
def test_inside_other_contexts(way: str, b: int) -> None:
    def run(layer: GPTLayer) -> list[Tensor]:
        torch.manual_seed(1)
        x = torch.randn(5, b, 8, requires_grad=True)
        with around(way):
            y = checkpoint(layer, x, use_reentrant=False) if way == "checkpoint" else layer(x)
        torch.autograd.backward(y.sin().sum())
        return [y, *(t.grad for t in (x, *layer.parameters()) if t.grad is not None)]

    compare(run)


class Called(nn.Module):
    def __init__(self, layer: GPTLayer, run: Keep) -> None:
        super().__init__()
        self.layer, self.run = layer, run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.layer, x)


def test_the_called_form_and_an_input_in_another_layout() -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 5, 8).transpose(0, 1).requires_grad_()
    expected = gradients([make(8, 2)], x)
    for kept in SOME:
        assert equal(expected, gradients([Called(make(8, 2, recompute="selective"), keep(kept))], x))


def test_an_input_without_gradient_and_frozen_weights() -> None:
    def run(layer: GPTLayer) -> list[Tensor]:
        layer.qkv.requires_grad_(False)
        layer.norm1.requires_grad_(False)
        layer.up.requires_grad_(False)
        torch.manual_seed(1)
        torch.autograd.backward(layer(torch.randn(5, 2, 8)).sin().sum())
        return [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]

    compare(run)


def test_a_graph_kept_for_a_second_backward_and_gradients_of_gradients() -> None:
    def run(layer: GPTLayer) -> list[Tensor]:
        torch.manual_seed(1)
        x = torch.randn(5, 2, 8, requires_grad=True)
        y = layer(x).sin().sum()
        torch.autograd.backward(y, retain_graph=True)
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        torch.autograd.backward(first.square().sum())
        return [first.detach(), *(t.grad for t in (x, *layer.parameters()) if t.grad is not None)]

    compare(run)


def test_a_switch_to_evaluation_before_backward_changes_nothing() -> None:
    def run(layer: GPTLayer) -> list[Tensor]:
        torch.manual_seed(1)
        y = layer(torch.randn(5, 2, 8)).sin().sum()
        layer.eval()
        torch.autograd.backward(y)
        return [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]

    compare(run)


@pytest.mark.parametrize("without", ["dropout=0", "eval"])
@pytest.mark.parametrize("kept", [[], ["softmax"], ["attention_dropout"], ["softmax", "attention_dropout"]])
def test_without_dropout(without: str, kept: Sequence[str]) -> None:
    s, b, h, a = 6, 2, 8, 2
    options = {"dropout": 0} if without == "dropout=0" else {}
    plain, ours = (make(h, a, recompute=r, **options) for r in ("none", keep([*kept, "mask1"])))
    if without == "eval":
        plain.eval(), ours.eval()
    x = torch.randn(s, b, h, requires_grad=True)
    assert equal(gradients([plain], x), gradients([ours], x))
    one_tensor = 4 * a * s * s * b if kept else 0
    assert recorded_bytes(ours, x) == x.nbytes + one_tensor
    assert held_bytes(ours, x) == x.nbytes + one_tensor + DIVISOR


def test_without_gradients_nothing_is_held() -> None:
    def run(layer: GPTLayer) -> list[Tensor]:
        torch.manual_seed(1)
        with torch.no_grad():
            return [layer(torch.ones(6, 2, 8))]

    compare(run)
    layer, x = make(8, 2, recompute=keep(LEDGER)), torch.ones(6, 2, 8)
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            assert held_bytes(layer, x) == x.nbytes  # the input, which that function adds


@pytest.mark.parametrize("kept", SOME, ids=str)
def test_an_input_changed_before_backward_is_noticed(kept: Sequence[str]) -> None:
    layer, x = make(8, 2, recompute=keep(kept)), torch.randn(6, 2, 8)
    y = layer(x).sum()
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(y)


# --- errors ---------------------------------------------------------------------------------------


def test_a_choice_is_names_or_what_remat_choices_returns() -> None:
    layer = gpt_layer(s=2, b=1, h=4, a=2)
    choice = every_choice(layer, flops(layer)).of(["qkv", "ln2"])
    assert keep(choice) == keep(iter(["ln2", "x", "qkv"])) == Keep(("x", "qkv", "ln2", "ln2_statistics"))
    assert keep(["ln2"], norm_statistics=True) == Keep(("x", "ln2"))
    assert keep([]) == keep(["x"]) == Keep(("x",))


def offloading() -> object:
    layer = gpt_layer(s=2, b=1, h=4, a=2)
    return keep(every_choice(layer, flops(layer), offload=True).of(["qkv"], offloaded=["gelu_in"]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: keep(["qkv", "scores"]), r"choice must be one of 'x', 'ln1', .*'mask2', got 'scores'"),
        (lambda: keep(["out"]), r"choice must be one of .*, got 'out'"),
        (lambda: keep("qkv"), r"choice must be names of tensors, got the string 'qkv'"),
        (lambda: keep([3]), r"choice must be one of .*, got 3"),  # type: ignore[list-item]
        (
            lambda: keep(["ln1_statistics"]),
            r"norm_statistics must be True for a choice that names 'ln1_statistics'",
        ),
        (offloading, r"choice must not offload, got \['gelu_in'\] offloaded"),
        (
            lambda: keep([])(nn.Linear(8, 8), torch.ones(4, 1, 8)),  # type: ignore[arg-type]
            r"layer must be a GPTLayer, got a Linear",
        ),
        (
            lambda: GPTLayer(8, 2, dropout_kind="torch", recompute=keep([]))(torch.ones(4, 1, 8)),
            r"dropout_kind must be 'bool' to run the layer operation by operation, got 'torch'",
        ),
        (
            lambda: GPTLayer(8, 2, recompute=keep([]))(torch.ones(4, 8)),
            r"x must be \[s, b, h\] with h=8, got shape \[4, 8\]",
        ),
    ],
)
def test_errors_name_the_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
