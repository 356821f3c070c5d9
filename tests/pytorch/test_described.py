"""What the book's text says about the rows of its tables, beyond what the rows show."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from remat.pytorch.checkpointing.trial import (
    Checkpoint,
    Listed,
    leaf,
    non_reentrant,
    outcome,
    reentrant,
)


@pytest.mark.parametrize("extra", range(4))
def test_early_stop_counts_what_forward_saved_and_not_what_backward_needs(extra: int) -> None:
    """Operations that only an unused output needs run again, all but the last of them."""

    def region(x: Tensor) -> tuple[Tensor, Tensor]:
        unused = x.exp() if extra else x
        for _ in range(extra):
            unused = unused.sin()
        return x.sin().cos(), unused

    listed = Listed(region)
    first, unused = non_reentrant(listed, leaf(1, 2))
    first.sum().backward()
    assert unused.shape == (2,)
    # Alone: the sine. Else sine, cosine, exponential, and all sines but the last, which saves its input.
    assert len(listed.runs[1]) == (1 if extra == 0 else 3 + extra - 1)


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_the_gradient_of_a_reentrant_region_has_no_graph() -> None:
    requires = []
    for under in (reentrant, non_reentrant):
        x = leaf(1, 2)
        torch.autograd.backward(under(torch.sin, x).sum(), create_graph=True)
        assert x.grad is not None
        requires.append(x.grad.requires_grad)
        x.grad = None
    assert requires == [False, True]


def test_a_first_layer_is_trained_once_its_input_requires_a_gradient() -> None:
    layer = nn.Linear(2, 2)
    for requires, trained in ((False, False), (True, True)):
        layer.zero_grad()
        x = torch.ones(1, 2, requires_grad=requires)
        with pytest.warns(UserWarning, match="None of the inputs") if not trained else nullcontext():
            y = reentrant(layer, x)
        (y * leaf(1, 2)).sum().backward()
        assert (layer.weight.grad is not None) == trained


WAYS: dict[str, Callable[[Checkpoint, Tensor, Tensor], Tensor]] = {
    "argument": lambda under, x, scale: under(lambda x, it: x.exp() * it.sin(), x, scale),
    "list": lambda under, x, scale: under(lambda x, it: x.exp() * it[0].sin(), x, [scale]),
    "dict": lambda under, x, scale: under(lambda x, it: x.exp() * it["it"].sin(), x, {"it": scale}),
    "keyword": lambda under, x, scale: under(lambda x, *, it: x.exp() * it.sin(), x, it=scale),
    "closure": lambda under, x, scale: under(lambda x: x.exp() * scale.sin(), x),
}


@pytest.mark.parametrize("way", WAYS)
def test_only_an_argument_is_watched_for_changes_in_place(way: str) -> None:
    def attempt(under: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        x, scale = leaf(1, 2), torch.tensor([3.0, 4.0])
        loss = WAYS[way](under, x, scale).sum()
        scale.mul_(2)
        return loss, [x]

    expected = "RuntimeError in backward" if way == "argument" else "wrong gradients, no error"
    assert outcome(attempt, non_reentrant) == expected


@pytest.mark.parametrize("under", [reentrant, non_reentrant])
def test_batch_norm_moves_its_running_mean_twice(under: Checkpoint) -> None:
    x = torch.tensor([[1.0], [3.0]], requires_grad=True)
    norms = [nn.BatchNorm1d(1, momentum=0.5) for _ in range(2)]
    under(lambda x: norms[0](x).tanh(), x).sum().backward()
    norms[1](x), norms[1](x)
    means = [norm.running_mean for norm in norms]
    assert means[0] is not None and means[1] is not None
    assert torch.equal(means[0], means[1])
    assert means[0].item() == 1.5  # 0 -> 1 -> 1.5
