from collections.abc import Callable, Sequence
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

from remat.chain import chain_of
from remat.frontier import best
from remat.offload import offload_all
from remat.pytorch import (
    checkpoint_segments,
    checkpointed,
    mlp,
    peak_bytes,
    profile,
    saved_tensors,
    step_peak,
)
from remat.replay import replay
from remat.schedules import recursive, store_all
from remat.segments import Segment

BATCH, WIDTH = 512, 64
UNIT = BATCH * WIDTH * 4  # bytes of one activation


def compositions(n: int) -> st.SearchStrategy[list[int]]:
    """Ways to write n as a sum, in order."""
    cuts = st.lists(st.integers(1, n - 1), unique=True).map(sorted)
    return cuts.map(lambda inner: [b - a for a, b in zip([0, *inner], [*inner, n], strict=True)])


def chain(n: int, p: float) -> list[nn.Module]:
    return [nn.Sequential(stage, nn.Dropout(p)) for stage in mlp(n, 8)]


def gradients(stages: Sequence[nn.Module], run: Callable[[Tensor], Tensor], *, seed: int = 0) -> list[Tensor]:
    x = torch.linspace(-1, 1, 40).reshape(5, 8).requires_grad_()
    torch.manual_seed(seed)
    y = run(x)
    parameters = [parameter for stage in stages for parameter in stage.parameters()]
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *parameters])]


@settings(max_examples=25, deadline=None)
@given(lengths=compositions(7), keep_last=st.booleans())
def test_gradients_are_bitwise_equal_with_dropout_on(lengths: list[int], keep_last: bool) -> None:
    stages = chain(7, 0.3)
    expected = gradients(stages, nn.Sequential(*stages))
    cut = gradients(stages, lambda x: checkpoint_segments(stages, lengths, x, keep_last=keep_last))
    assert len(cut) == 2 + 7 * 2
    assert all(map(torch.equal, expected, cut))


def test_the_gradients_above_depend_on_the_draws() -> None:
    stages = chain(7, 0.3)
    first, second = (gradients(stages, nn.Sequential(*stages), seed=seed) for seed in (0, 1))
    assert not any(map(torch.equal, first, second))


class Counted(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.runs = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        result: Tensor = self.inner(x)
        return result


@settings(max_examples=25, deadline=None)
@given(lengths=compositions(7), keep_last=st.booleans())
def test_each_stage_of_a_checkpointed_segment_runs_twice(lengths: list[int], keep_last: bool) -> None:
    stages = [Counted(stage) for stage in mlp(7, 8)]
    checkpoint_segments(stages, lengths, torch.ones(5, 8), keep_last=keep_last).sum().backward()
    twice = 7 - lengths[-1] if keep_last else 7
    assert [stage.runs for stage in stages] == [2] * twice + [1] * (7 - twice)


@settings(max_examples=25, deadline=None)
@given(lengths=compositions(7), keep_last=st.booleans())
def test_keeps_each_segments_input_and_what_the_last_one_saves(lengths: list[int], keep_last: bool) -> None:
    stages, x = mlp(7, 8), torch.ones(5, 8)
    with saved_tensors() as record:
        checkpoint_segments(stages, lengths, x, keep_last=keep_last)
    # A plain segment saves two activations a stage: Linear's input and GELU's.
    held = len(lengths) - 1 + 2 * lengths[-1] if keep_last else len(lengths)
    assert record.bytes == held * x.nbytes


@pytest.mark.parametrize("segments", [2, 3, 4, 6])
def test_even_cuts_keep_what_checkpoint_sequential_keeps(segments: int) -> None:
    stages, x = mlp(12, 8), torch.ones(5, 8)
    records = []
    for run in (
        lambda: checkpoint_segments(stages, [12 // segments] * segments, x),
        lambda: checkpoint_sequential(nn.Sequential(*stages), segments, x, use_reentrant=False),
    ):
        with saved_tensors() as record:
            run()
        records.append(sorted(item.bytes for item in record.storages))
    assert records[0] == records[1]


# --- the measured peak, counted by hand -----------------------------------------------------------


def predicted_peak(lengths: Sequence[int]) -> int:
    """Activations alive at the highest moment of a step whose last segment is kept and whose result is held.

    In the backward of the last stage of a segment: the inputs of this segment and of those before it (the
    batch lived before the step), two activations for each of the segment's stages (its Linear's result, which
    GELU saved; its own result, which the next Linear saved, or, after the last stage, the result that the
    caller holds), the gradient that arrives, and the one that GELU's backward makes of it.
    """
    return max(before + 2 * length + 2 for before, length in enumerate(lengths))


PLANS = {
    "store all": ([16], 34, 0),
    "uniform": ([4, 4, 4, 4], 13, 12),
    "best under values": ([1, 5, 4, 3, 2, 1], 13, 15),
    "best under tape": ([4, 4, 3, 3, 2], 11, 14),
}


def measured_peak(stages: Sequence[nn.Module], run: Callable[[Tensor], Tensor]) -> int:
    for stage in stages:
        for parameter in stage.parameters():
            parameter.grad = torch.zeros_like(parameter)
    x = torch.ones(BATCH, WIDTH)

    def step() -> None:
        y = run(x)  # held to the end of the step
        y.mean().backward()

    step()
    return peak_bytes(step)


@pytest.mark.parametrize("plan", PLANS)
def test_peak_of_sixteen_stages(plan: str) -> None:
    lengths, units, recomputed = PLANS[plan]
    assert predicted_peak(lengths) == units
    assert sum(lengths[:-1]) == recomputed
    stages = mlp(16, WIDTH)
    measured = measured_peak(stages, lambda x: checkpoint_segments(stages, lengths, x))
    states, rest = divmod(measured - units * UNIT, torch.get_rng_state().nbytes)
    # Beyond the count: a few scalars, and the random state that each checkpointed segment restores.
    assert 0 <= states <= len(lengths) - 1
    assert rest < 200


@pytest.mark.parametrize("segments", [1, 2, 4, 6, 8, 11, 16, 32])
def test_peak_of_checkpoint_sequential(segments: int) -> None:
    stages = mlp(32, WIDTH)
    size = 32 // segments
    lengths = [size] * (segments - 1) + [32 - size * (segments - 1)]
    model = nn.Sequential(*stages)
    measured = measured_peak(stages, lambda x: checkpoint_sequential(model, segments, x, use_reentrant=False))
    states, rest = divmod(measured - predicted_peak(lengths) * UNIT, torch.get_rng_state().nbytes)
    assert 0 <= states <= segments - 1
    assert rest < 200


# --- mlp ------------------------------------------------------------------------------------------


def test_mlp_is_the_same_for_the_same_seed_and_leaves_the_random_state() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    weights = [[p for stage in mlp(3, 4, seed=seed) for p in stage.parameters()] for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, weights[0], weights[1]))
    assert not any(map(torch.equal, weights[0], weights[2]))
    assert not torch.equal(weights[0][0], weights[0][2])


def test_lengths_cut_in_order() -> None:
    order: list[int] = []
    layers = [lambda x, i=i: (order.append(i), x * (i + 1))[1] for i in range(5)]
    result = checkpoint_segments(layers, [2, 1, 2], torch.ones(1))
    assert order == list(range(5))
    assert result.item() == list(accumulate(range(1, 6), lambda a, b: a * b))[-1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: checkpoint_segments(mlp(4, 8), [2, 1], x),
            r"lengths must sum to .*, 4: \[2, 1\] sums to 3",
        ),
        (
            lambda x: checkpoint_segments(mlp(4, 8), [4, 1], x),
            r"lengths must sum to .*, 4: \[4, 1\] sums to 5",
        ),
        (lambda x: checkpoint_segments(mlp(4, 8), [], x), r"lengths must sum to .*, 4: \[\] sums to 0"),
        (lambda x: checkpoint_segments(mlp(4, 8), [4, 0], x), r"lengths\[1\] must be .* at least 1, got 0"),
        (lambda x: checkpoint_segments(mlp(4, 8), [5, -1], x), r"lengths\[1\] must be .* at least 1, got -1"),
        (
            lambda x: checkpoint_segments(mlp(4, 8), [2.0, 2], x),
            r"lengths\[0\] must be .* at least 1, got 2.0",
        ),
        (lambda x: mlp(0, 8), r"n must be a whole number at least 1, got 0"),
        (lambda x: mlp(2, -8), r"width must be a whole number at least 1, got -8"),
    ],
)
def test_errors_name_the_argument(call: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.ones(1, 8))


# --- checkpointed: for ordinary training loops ----------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(lengths=compositions(7), kept=st.lists(st.booleans(), min_size=7, max_size=7))
def test_a_wrapped_model_trains_as_the_model_does(lengths: list[int], kept: list[bool]) -> None:
    torch.manual_seed(0)
    results = []
    for wrap in (False, True):
        model = nn.Sequential(*chain(7, 0.3))
        segments = [Segment(length, kept=keep) for length, keep in zip(lengths, kept, strict=False)]
        called = checkpointed(model, segments) if wrap else model
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        torch.manual_seed(1)
        for step in range(3):
            optimizer.zero_grad()
            called(torch.full((5, 8), step / 3)).square().sum().backward()
            optimizer.step()
        results.append(model.state_dict())
    assert results[0].keys() == results[1].keys()
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])


def test_a_wrapped_model_has_the_models_own_modules_names_and_mode() -> None:
    model = nn.Sequential(*mlp(4, 8)).eval()
    wrapped = checkpointed(model, [2, 2])
    assert list(wrapped) == list(model) and not wrapped.training
    assert wrapped.state_dict().keys() == model.state_dict().keys()
    assert "segments=2, 2 kept" in repr(wrapped)
    with torch.no_grad(), saved_tensors() as record:
        assert torch.equal(wrapped(torch.ones(2, 8)), model(torch.ones(2, 8)))
    assert record.bytes == 0


def test_a_plan_of_the_planner_is_carried_out() -> None:
    described = profile(mlp(12, WIDTH), torch.ones(BATCH, WIDTH), repeats=1)
    budget = 0.6 * replay(described, store_all(described)).peak
    plan = best(described, budget)
    stages, x = mlp(12, WIDTH), torch.ones(BATCH, WIDTH)
    counts = [0] * 12
    for i, stage in enumerate(stages):
        # Before the forward: a replay stops within its last stage, once all that backward needs is there.
        stage.register_forward_pre_hook(lambda *_, i=i: counts.__setitem__(i, counts[i] + 1))
    wrapped = checkpointed(nn.Sequential(*stages), plan)
    wrapped(x).mean().backward()
    again = [not segment.kept for segment in plan.segments for _ in range(segment.length)]
    assert 0 < sum(again) < 12
    assert counts == [1 + twice for twice in again]
    measured = step_peak(lambda: wrapped(x).mean().backward(), wrapped, x)
    # Each checkpointed segment keeps 5,056 bytes of random state.
    assert measured <= budget + 5056 * len(plan.segments)


def test_what_cannot_be_wrapped_is_refused() -> None:
    model, line = nn.Sequential(*mlp(4, 8)), chain_of([1] * 4, needs="tape")
    for plan in (recursive(line, 1), offload_all(line)):
        with pytest.raises(ValueError, match=r"more than once or uses the host: remat\.pytorch\.run"):
            checkpointed(model, plan)
    with pytest.raises(ValueError, match="add up to the 4 stages of the chain, got 3"):
        checkpointed(model, [2, 1])
    with pytest.raises(ValueError, match=r"model must be an nn\.Sequential, got Linear"):
        checkpointed(nn.Linear(8, 8), [1])  # type: ignore[arg-type]
