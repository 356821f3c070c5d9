"""A profile describes real modules: bytes as counted by hand and by hooks, everything left as it was."""

import pytest
import torch
from torch import Tensor, nn

from models import MODELS, Residual, dropped, parameters, same, squares
from remat.frontier import best
from remat.pytorch import mlp, profile, saved_tensors
from remat.replay import replay
from remat.schedules import store_all

B, W = 64, 32
UNIT = B * W * 4


def test_linear_and_gelu_counted_by_hand() -> None:
    chain = profile(mlp(3, W), torch.ones(B, W), squares, repeats=1)
    weight = W * W * 4 + W * 4
    for i, stage in enumerate(chain.stages):
        assert (stage.name, stage.out, stage.saved) == ("Linear+GELU", UNIT, UNIT)
        # Without a tape, Linear's result lives until GELU has made its own; with one, it is what is saved.
        assert (stage.scratch_forward, stage.scratch_taping) == (UNIT, 0)
        # GELU's gradient; then the saved activation is free, and the input's gradient and the weights' come.
        assert UNIT <= stage.scratch_backward <= UNIT + (weight if i else 0)
    assert chain.input == UNIT and chain.needs == "tape"
    assert chain.scratch_loss >= 2 * UNIT  # y squared, then the gradient and what it is made of


@pytest.mark.parametrize("model", MODELS)
def test_what_a_stage_saves_is_what_hooks_see(model: str) -> None:
    """The allocator and saved-tensor hooks agree, but for numbers that an operation saves beside tensors."""
    stages, x = MODELS[model]()
    chain = profile(stages, x, repeats=1)
    for i, (stage, described) in enumerate(zip(stages, chain.stages, strict=True)):
        given = x.detach().requires_grad_(i > 0)
        with saved_tensors([given, *stage.parameters()]) as record:
            y = stage(given)
        own = y.untyped_storage().data_ptr()
        kept = record.bytes - (y.nbytes if _saves(y, own) else 0)
        assert 0 <= described.saved - kept <= 32, described.name
        assert described.out == y.nbytes
        x = y.detach()


def _saves(y: Tensor, address: int) -> bool:
    """Whether the last operation saved its own result."""
    saved = getattr(y.grad_fn, "_saved_result", None)
    return saved is not None and saved.untyped_storage().data_ptr() == address


def test_everything_is_left_as_it_was() -> None:
    stages = [nn.Conv2d(3, 4, 1), Residual(4, nn.BatchNorm2d), nn.Dropout(0.5)]
    x = torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8).requires_grad_()
    stages[0].weight.grad = torch.full_like(stages[0].weight, 3)  # type: ignore[arg-type]
    torch.manual_seed(1)
    before = [
        torch.get_rng_state(),
        *(buffer.clone() for stage in stages for buffer in stage.buffers()),
        *(p.grad if p.grad is None else p.grad.clone() for p in parameters(stages)),
    ]
    profile(stages, x, squares, repeats=2)
    after = [
        torch.get_rng_state(),
        *(buffer for stage in stages for buffer in stage.buffers()),
        *(p.grad for p in parameters(stages)),
    ]
    assert len(before) > 8 and same(before, after) and x.grad is None


def test_bytes_do_not_depend_on_what_ran_before() -> None:
    """Two models measured one after the other, in both orders."""

    def bytes_of(model: str) -> list[tuple[float, ...]]:
        stages, x = MODELS[model]()
        return [
            (s.out, s.saved, s.scratch_forward, s.scratch_taping or 0, s.scratch_backward)
            for s in profile(stages, x, repeats=1).stages
        ]

    first = [bytes_of("gpt"), bytes_of("convolutions")]
    assert [bytes_of("convolutions"), bytes_of("gpt")] == first[::-1]


def test_times_are_positive_and_a_stage_of_more_work_takes_longer() -> None:
    stages = [nn.Linear(256, 256), nn.Sequential(*(nn.Linear(256, 256) for _ in range(40)))]
    short, long = profile(stages, torch.ones(64, 256), repeats=3).stages
    assert 0 < short.forward_s < long.forward_s and 0 < short.backward_s < long.backward_s  # type: ignore[operator]
    assert long.name == "Sequential"


def test_a_view_adds_nothing_and_a_stage_without_gradients_saves_nothing() -> None:
    stages = [nn.Flatten(), nn.Linear(12, 4), torch.relu]
    flat, _, relu = profile(stages, torch.ones(5, 3, 4), repeats=1).stages
    assert (flat.saved, flat.scratch_forward, flat.scratch_taping) == (0, 0, 0)
    assert relu.saved == 0  # relu saves its own result, which is its output


def test_a_planner_takes_a_profile_as_it_is() -> None:
    chain = profile(dropped(6), torch.ones(64, 6), squares, repeats=1)
    most = replay(chain, store_all(chain)).peak
    counted = replay(chain, best(chain, 0.8 * most))
    assert counted.peak <= 0.8 * most and 0 < counted.recomputed < 6


def test_bad_input() -> None:
    x = torch.ones(2, 8)
    with pytest.raises(ValueError, match="repeats must be a whole number"):
        profile(mlp(2, 8), x, repeats=0)
    with pytest.raises(ValueError, match=r"stage 2 \(Linear\) on an input of shape \[2, 4\] failed"):
        profile([nn.Linear(8, 4), nn.Linear(5, 8)], x)
    with pytest.raises(ValueError, match="stage 2 .* changes its input in place"):
        profile([nn.Linear(8, 8), nn.ReLU(inplace=True)], x)
    with pytest.raises(ValueError, match="stages must be a list"):
        profile([], x)
    with pytest.raises(ValueError, match="x must be a tensor, got float"):
        profile(mlp(2, 8), 1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="loss must return one number"):
        profile(mlp(2, 8), x, torch.relu)
