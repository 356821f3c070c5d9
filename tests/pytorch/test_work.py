import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from remat.pytorch import GPTLayer, held_bytes, mlp, operations, saved_tensors

STATE = torch.get_rng_state().nbytes  # a checkpoint sets one aside
ADDMM = torch.ops.aten.addmm.default


@given(n=st.integers(1, 4), width=st.integers(1, 16), rows=st.integers(1, 16))
@settings(max_examples=20, deadline=None)
def test_held_is_what_the_hooks_record(n: int, width: int, rows: int) -> None:
    model, x = nn.Sequential(*mlp(n, width)), torch.randn(rows, width, requires_grad=True)
    with saved_tensors(model) as record:
        model(x)
    assert held_bytes(model, x) == record.bytes - x.nbytes  # the input lived before


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_held_of_a_gpt_layer(recompute: str) -> None:
    layer, x = GPTLayer(32, 4, recompute=recompute), torch.randn(16, 2, 32, requires_grad=True)
    with saved_tensors(layer) as record:
        layer(x)
    kept = record.bytes - x.nbytes
    # Besides: a few scalars inside operations, and the state of the random generator.
    assert 0 <= held_bytes(layer, x) - kept - (STATE if recompute != "none" else 0) < 64


def test_held_sees_the_cache_of_a_selective_policy() -> None:
    model, x = nn.Sequential(*mlp(3, 16)), torch.randn(8, 16, requires_grad=True)
    plain = held_bytes(lambda x: checkpoint(model, x, use_reentrant=False), x)
    cached = held_bytes(
        lambda x: checkpoint(
            model, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts([ADDMM])
        ),
        x,
    )
    assert plain == STATE
    assert cached == STATE + 3 * x.nbytes


def test_held_when_the_result_is_the_input() -> None:
    x = torch.randn(8, 16, requires_grad=True)
    assert held_bytes(lambda x: x.view(16, 8), x) == 0
    assert held_bytes(lambda x: x, x) == 0


def test_held_refuses_another_device() -> None:
    with pytest.raises(ValueError, match="x must be on the CPU.*'meta'"):
        held_bytes(lambda x: x, torch.ones(2, device="meta"))


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_flops_are_those_of_pytorchs_counter(recompute: str) -> None:
    layer, x = GPTLayer(32, 4, recompute=recompute), torch.randn(16, 2, 32, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer(x).mean().backward()
    assert operations(lambda: layer(x).mean().backward()).flops == counter.get_total_flops() > 0


def test_a_replay_is_counted_and_a_cache_is_not() -> None:
    model, x = nn.Sequential(*mlp(3, 16)), torch.randn(8, 16, requires_grad=True)

    def products(**options: object) -> int:
        seen = operations(lambda: checkpoint(model, x, use_reentrant=False, **options).mean().backward())
        return seen.calls["aten.addmm"]

    assert operations(lambda: model(x).mean().backward()).calls["aten.addmm"] == 3
    assert products() == 6
    assert products(context_fn=lambda: create_selective_checkpoint_contexts([ADDMM])) == 3


def test_copies_of_an_offloading_hook() -> None:
    x = torch.randn(8, 16, requires_grad=True)

    def step() -> None:
        with save_on_cpu(pin_memory=True):  # without pinning, a tensor of the CPU is not copied
            y = x.exp()
        y.sum().backward()

    assert operations(step).copied == x.nbytes
    assert operations(lambda: x.exp().sum().backward()).copied == 0
