"""Any plan runs on real modules: gradients bit for bit, the peak that replay counts, nothing left behind."""

import gc
import weakref
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from models import (
    MODELS,
    Residual,
    dropped,
    outcome,
    parameters,
    plain_step,
    same,
    squares,
    zero,
)
from remat.chain import Action, Backward, Chain, Drop, Fetch, Forward, Offload, Tape, chain_of
from remat.frontier import frontier
from remat.hardware import Link
from remat.offload import offload_all, offload_checkpoints
from remat.pytorch import mlp, peak_bytes, phases, profile, run, step_peak
from remat.replay import Replay, replay
from remat.schedules import Schedule, recursive, segmented, sequential, store_all, uniform
from strategies import plans
from timeline import copying_plans

WIRE = Link("a wire", 1e9, 1e9, "a test")
RANDOM_STATE = 5056  # bytes of PyTorch's CPU generator


def line(n: int) -> Chain:
    return chain_of([1] * n, needs="tape")


def plans_of(chain: Chain) -> list[Schedule]:
    """Plans by every planner for chains of tapes."""
    points = frontier(chain).points
    return [
        store_all(chain),
        uniform(chain, 3),
        uniform(chain, 2, keep_last=True),
        sequential(chain, 3),
        recursive(chain, 1),
        recursive(chain, 2),
        points[0].schedule(chain),
        points[len(points) // 2].schedule(chain),
        offload_all(chain),
        offload_all(chain, buffers=1),
        offload_checkpoints(chain),
        offload_checkpoints(chain, [2] * (len(chain) // 2) + [1] * (len(chain) % 2)),
    ]


# --- gradients: plain training is the oracle


@settings(max_examples=40, deadline=None)
@given(data=st.data(), copies=st.booleans())
def test_gradients_are_bitwise_equal_over_random_plans_with_dropout_on(
    data: st.DataObject, copies: bool
) -> None:
    n = data.draw(st.integers(1, 5))
    plan = data.draw(copying_plans(line(n)) if copies else plans(line(n)))
    stages, x = dropped(n), torch.linspace(-1, 1, 24).reshape(4, 6)
    expected = outcome(stages, lambda: plain_step(stages, x, squares))
    assert same(expected, outcome(stages, lambda: run(plan, stages, x, squares).loss))


def test_the_gradients_above_depend_on_the_draws() -> None:
    stages, x = dropped(), torch.linspace(-1, 1, 24).reshape(4, 6)
    first, second = (outcome(stages, lambda: plain_step(stages, x, squares), seed=s) for s in (0, 1))
    assert not same(first[2:4], second[2:4])


@pytest.mark.parametrize("model", MODELS)
def test_every_planners_plan_gives_the_gradients_of_plain_training(model: str) -> None:
    stages, x = MODELS[model]()
    expected = outcome(stages, lambda: plain_step(stages, x, squares))
    for plan in plans_of(line(len(stages))):
        assert same(expected, outcome(stages, lambda plan=plan: run(plan, stages, x, squares).loss)), plan


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_an_input_that_requires_a_gradient_gets_it_also_through_what_made_it(data: st.DataObject) -> None:
    stages, weight = dropped(4), torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_()
    plan = data.draw(plans(line(4)))
    gradients = []
    for step in (plain_step, lambda s, x, loss: run(plan, s, x, loss)):
        weight.grad = None
        torch.manual_seed(0)
        step(stages, weight * 2, squares)
        gradients.append(weight.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("start", [None, 3.0])
def test_weights_shared_between_stages_add_up_as_in_plain_training(start: float | None) -> None:
    """Also on top of a gradient that is there already, where the order of additions shows in the last bit."""
    shared = nn.Linear(6, 6)
    a, b = nn.Sequential(shared, nn.GELU()), nn.Sequential(nn.Linear(6, 6), nn.GELU(), shared)
    stages = [a, b, nn.GELU(), a, shared]
    x, results = torch.linspace(-1, 1, 24).reshape(4, 6), []
    for step in (
        lambda: plain_step(stages, x, squares),
        lambda: run(uniform(line(5), 2), stages, x, squares),
    ):
        for parameter in parameters(stages):
            parameter.grad = None if start is None else torch.full_like(parameter, start)
        step()
        results.append([parameter.grad for parameter in parameters(stages)])
    assert same(*results)


def test_frozen_stages_stay_without_a_gradient() -> None:
    stages, x = dropped(5), torch.linspace(-1, 1, 24).reshape(4, 6)
    for frozen in (0, 1, 3):
        stages[frozen].requires_grad_(False)
    expected = outcome(stages, lambda: plain_step(stages, x, squares))
    assert sum(gradient is None for gradient in expected) == 6
    for plan in plans_of(line(5)):
        assert same(expected, outcome(stages, lambda plan=plan: run(plan, stages, x, squares).loss))


def test_a_stage_that_cuts_the_graph_leaves_those_before_it_without_a_gradient() -> None:
    stages = [nn.Linear(6, 6), lambda x: x.detach(), nn.Linear(6, 6)]
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    expected = outcome(stages, lambda: plain_step(stages, x, squares))
    assert same(expected, outcome(stages, lambda: run(uniform(line(3), 2), stages, x, squares).loss))
    assert stages[0].weight.grad is None  # type: ignore[union-attr]


@pytest.mark.parametrize("plan", [uniform(line(4), 2), offload_all(line(4), buffers=1)], ids=lambda p: p.name)
def test_under_autocast_too(plan: Schedule) -> None:
    stages, x = dropped(4, 16), torch.linspace(-1, 1, 64).reshape(4, 16)

    def plain() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = x
            for stage in stages:
                y = stage(y)
            loss = squares(y.float())
        loss.backward()
        return loss.detach()

    def planned() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return run(plan, stages, x, lambda y: squares(y.float())).loss

    assert same(outcome(stages, plain), outcome(stages, planned))


def test_stages_that_return_views_and_functions_that_are_no_modules() -> None:
    stages = [nn.Linear(6, 12), lambda x: x.chunk(2, dim=1)[1], torch.sigmoid, nn.Flatten(), nn.Linear(6, 2)]
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    expected = outcome(stages, lambda: plain_step(stages, x, squares))
    for plan in plans_of(line(5)):
        assert same(expected, outcome(stages, lambda plan=plan: run(plan, stages, x, squares).loss)), plan


# --- measured = predicted


@pytest.mark.parametrize("model", MODELS)
def test_the_measured_peak_is_what_replay_counts_to_the_byte(model: str) -> None:
    """What replay leaves out: the loss itself, and the random state of stages that run again."""
    stages, x = MODELS[model]()
    chain = profile(stages, x, squares, repeats=1)
    for plan in plans_of(chain):
        counted = replay(chain, plan, link=WIRE)
        over = step_peak(lambda plan=plan: run(plan, stages, x, squares), stages, x) - counted.peak
        done = run(plan, stages, x, squares)
        # A number that an operation saved (8 bytes each, four in a GPT layer) is not moved.
        unmoved = 32 * len(stages) if done.copied_out else 0
        assert 0 <= over <= 4 + done.random_bytes + unmoved, (plan.name, over)
        assert 0 <= counted.host_peak - done.host_peak <= unmoved, plan.name
        assert done.random_bytes % RANDOM_STATE == 0
        assert counted.peak > 100_000  # so the allowance is small


def test_a_plan_of_the_middle_takes_less_than_keeping_everything_and_more_than_the_least() -> None:
    stages, x = MODELS["mlp"]()
    chain = profile(stages, x, squares, repeats=1)
    least, most = (
        step_peak(lambda plan=plan: run(plan, stages, x, squares), stages, x)
        for plan in (frontier(chain).points[0].schedule(chain), store_all(chain))
    )
    assert most > 2 * least


def with_random_state(counted: Replay) -> float:
    """The peak if a state is held during each first forward of a stage that runs again."""
    forwards = [event for event in counted.events if isinstance(event.action, Forward)]
    runs = Counter(event.action.stage for event in forwards)
    firsts = {event.action.stage: event for event in reversed(forwards)}.values()
    held = [event.during.total + RANDOM_STATE for event in firsts if runs[event.action.stage] > 1]
    return max(counted.peak, *held, 0)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_random_plans_peak_where_replay_says(data: st.DataObject) -> None:
    stages = mlp(4, 16)
    x = torch.linspace(-1, 1, 256 * 16).reshape(256, 16)  # an activation is more than two random states
    chain = profile(stages, x, squares, repeats=1)
    plan = data.draw(copying_plans(line(4)))
    counted = replay(chain, plan, link=Link("instant", 1e30, 1e30, "a test"))
    measured = step_peak(lambda: run(plan, stages, x, squares), stages, x)
    assert counted.peak <= measured <= with_random_state(counted) + 8


def test_where_nothing_runs_again_no_random_state_is_looked_at() -> None:
    stages, x = mlp(4, 16), torch.linspace(-1, 1, 256 * 16).reshape(256, 16)
    counted = replay(profile(stages, x, squares, repeats=1), store_all(line(4)))
    assert with_random_state(counted) == counted.peak
    measured = step_peak(lambda: run(store_all(line(4)), stages, x, squares), stages, x)
    assert counted.peak <= measured <= counted.peak + 8


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_work_is_what_replay_counts(data: st.DataObject) -> None:
    stages, x = mlp(4, 8), torch.ones(2, 8)
    plan = data.draw(plans(line(4)))
    runs = [0] * 4
    for i, stage in enumerate(stages):
        stage.register_forward_hook(lambda *_, i=i: runs.__setitem__(i, runs[i] + 1))
    with FlopCounterMode(display=False) as counter:
        done = run(plan, stages, x, squares)
    counted = replay(line(4), plan)
    assert done.forwards == counted.forwards == sum(runs)
    one = 2 * 2 * 8 * 8
    backward = 7 * one  # the first stage's input needs no gradient
    assert counter.get_total_flops() == counted.forwards * one + backward


# --- random state and buffers


def test_random_state_is_kept_only_for_stages_that_draw_and_run_again() -> None:
    stages, x = dropped(4), torch.ones(4, 6)  # stages 2 and 4 draw
    assert run(store_all(line(4)), stages, x, squares).random_bytes == 0
    assert run(segmented(line(4), [2, 2]), stages, x, squares).random_bytes == 2 * RANDOM_STATE
    assert run(segmented(line(4), [2, 2], keep_last=True), stages, x, squares).random_bytes == RANDOM_STATE
    assert run(recursive(line(4), 1), mlp(4, 6), x, squares).random_bytes == 0


def test_a_stage_that_changes_its_buffers_is_refused_where_it_runs_again() -> None:
    stages = [nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), nn.Linear(6, 6)]
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    before = [buffer.clone() for buffer in stages[1].buffers()]
    with pytest.raises(
        ValueError, match=r"stage 2 .*changes running_mean, running_var, num_batches_tracked in .* 2 times"
    ):
        run(uniform(line(3), 3), stages, x, squares)
    assert same(before, list(stages[1].buffers()))  # refused, and not changed even once
    run(segmented(line(3), [1, 2], keep_last=True), stages, x, squares)  # where it runs once it may


@pytest.mark.parametrize("plan", [uniform(line(4), 2), recursive(line(4), 1)], ids=lambda plan: plan.name)
def test_buffers_change_once_if_they_may_be_restored(plan: Schedule) -> None:
    def stack() -> list[nn.Module]:
        torch.manual_seed(0)
        return [nn.Conv2d(3, 4, 1), *(Residual(4, nn.BatchNorm2d) for _ in range(3))]

    x, results = torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8), []
    for step in (plain_step, lambda *a: run(plan, *a, restore_buffers=True).loss):
        stages = stack()
        results.append(
            [
                *outcome(stages, lambda step=step, stages=stages: step(stages, x, squares)),
                *(buffer for stage in stages for buffer in stage.buffers()),
            ]
        )
    assert len(results[0]) > 30 and same(*results)


class Averaged(nn.Module):
    """Puts another tensor in the place of its buffer, and adds it to the result: an order that shows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.average = 0.9 * self.average + x.detach().mean(0)
        return self.linear(x) + self.average


def test_a_buffer_that_is_replaced_is_put_back_too() -> None:
    x, results = torch.linspace(-1, 1, 24).reshape(4, 6), []
    for step in (
        plain_step,
        lambda *a: run(recursive(line(3), 1), *a, restore_buffers=True).loss,
    ):
        torch.manual_seed(0)
        stages = [Averaged(), Averaged(), Averaged()]
        results.append(
            [
                *outcome(stages, lambda step=step, stages=stages: step(stages, x, squares)),
                *(stage.average for stage in stages),
            ]
        )
    assert same(*results)
    stages = [Averaged(), Averaged(), Averaged()]
    before = [stage.average for stage in stages]
    with pytest.raises(ValueError, match="stage 1 .* changes average in forward"):
        run(recursive(line(3), 1), stages, x, squares)
    profile(stages, x, repeats=1)
    assert all(stage.average is old for stage, old in zip(stages, before, strict=True))


# --- nothing is left behind


class Watched(nn.Module):
    """Notes weak references to every result; fails at the given call."""

    def __init__(self, fails_at: int = 0) -> None:
        super().__init__()
        self.inner, self.fails_at, self.calls = nn.Linear(6, 6), fails_at, 0
        self.made: list[weakref.ref[Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = torch.sigmoid(self.inner(x))
        self.made += [weakref.ref(y), weakref.ref(x)]
        if self.calls == self.fails_at:
            raise KeyError("on purpose")
        return y


@pytest.mark.parametrize("plan", plans_of(line(4)), ids=lambda plan: plan.name)
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_no_tensor_outlives_the_step_even_if_a_stage_fails(plan: Schedule, fails_at: int) -> None:
    stages = [Watched(), Watched(), Watched(fails_at), Watched()]
    x, held = torch.ones(4, 6), []
    before = weakref.ref(x)
    try:
        run(plan, stages, x, squares)
    except KeyError as error:
        assert any("stage 3 (Watched)" in note for note in error.__notes__)
        held.append(error)  # with its traceback, and the frames of run in it
    assert bool(held) == (0 < fails_at <= stages[2].calls)
    for error in held:
        error.__traceback__ = None
    gc.collect()
    made = [ref for stage in stages for ref in stage.made]
    assert len(made) >= 6
    assert all(ref() is None or ref() is x for ref in made)
    del x
    assert before() is None


def test_what_a_failed_step_held_is_free_at_once_even_while_its_error_lives() -> None:
    stages = [mlp(1, 64)[0], mlp(1, 64)[0], lambda x: x.no_such_thing]
    x = torch.ones(512, 64)

    def failing() -> Exception:
        try:
            run(store_all(line(3)), stages, x, squares)
        except AttributeError as error:
            return error
        raise AssertionError

    error: list[Exception] = []
    left = phases([lambda: error.append(failing()), gc.collect])[1].after
    assert error and left <= 2 * x.nbytes  # the frames of the traceback hold the input of the failed stage


def test_a_tape_on_the_host_is_off_the_device() -> None:
    """The same plan, with the tapes that leave dropped or not."""
    n, x = 4, torch.ones(512, 64)
    stages = mlp(n, 64)

    def plan(*, drop: bool) -> list[Action]:
        actions: list[Action] = []
        for i in range(1, n + 1):
            actions.append(Forward(i, "tape"))
            if i < n:
                actions.append(Offload(Tape(i)))
                actions += [Drop(Tape(i))] * drop
        for i in range(n, 0, -1):
            if i < n and drop:
                actions.append(Fetch(Tape(i)))
            actions.append(Backward(i))
        return actions

    kept, moved = (
        peak_bytes(lambda drop=drop: run(plan(drop=drop), stages, x, squares)) for drop in (False, True)
    )
    assert kept - moved >= 2 * x.nbytes
    done = run(plan(drop=True), stages, x, squares)
    assert done.copied_out == done.copied_back == done.host_peak == 3 * x.nbytes


# --- bad input


def refused(message: str, *arguments: object) -> None:
    with pytest.raises(ValueError, match=message):
        run(*arguments)  # type: ignore[arg-type]


def test_bad_input_is_refused_with_what_would_be_right() -> None:
    stages, x, plan = mlp(3, 8), torch.ones(2, 8), uniform(line(3), 2)
    refused("plan for 3 stages, and there are 2", plan, stages[:2], x, squares)
    refused("plan for 3 stages, and there are 4", plan, mlp(4, 8), x, squares)
    refused('needs="values".*needs="tape"', uniform(chain_of([1] * 3), 2), stages, x, squares)
    early = [Forward(1, "tape"), Backward(3)]
    refused("refused at action 1, Backward.*there is no gradient", early, stages, x, squares)
    refused("ends before the backward of stage 2", list(store_all(line(3)))[:-2], stages, x, squares)
    refused("schedule must be a plan, .* got 3", 3, stages, x, squares)
    refused(r"must hold actions only, got \[4, 4\]", [[4, 4]], stages, x, squares)
    refused("stages must be a list of at least one module, got 5", plan, 5, x, squares)
    refused("got 'relu' as stage 2", plan, [stages[0], "relu", stages[1]], x, squares)
    refused("on stages given by their number", [Forward([1])], stages, x, squares)
    refused("stage must be from 1 to 3, got 'a'", [Forward("a"), Forward(1, "tape")], stages, x, squares)
    refused("x must be a tensor, got list", plan, stages, [1.0], squares)
    refused(r"loss must be a function of the last stage's output, got None", plan, stages, x, None)
    refused(r"loss must return one number .* got shape \[2, 8\]", plan, stages, x, torch.sigmoid)
    refused("loss must return one number .* got 2.0", plan, stages, x, lambda y: 2.0)
    refused("loss must depend on the output", plan, stages, x, lambda y: torch.ones(()))
    refused(
        "a parameter that requires a gradient", plan, [torch.relu] * 2 + [nn.ReLU()], x, squares
    ) if 0 else None


def test_stages_that_do_not_fit_together_are_named() -> None:
    plan, x = uniform(line(3), 2), torch.ones(2, 8)
    refused(
        r"stage 2 \(Linear\) on an input of shape \[2, 4\] failed: ",
        plan, [nn.Linear(8, 4), nn.Linear(5, 8), nn.Linear(8, 8)], x, squares,
    )  # fmt: skip
    refused(r"stage 1 \(LSTM\) must return one tensor, got tuple", plan, [nn.LSTM(8, 8)] * 3, x, squares)
    refused(
        "must return numbers that have gradients, got torch.int64",
        plan, [nn.Linear(8, 8), nn.Linear(8, 8), lambda y: y.argmax(1)], x, squares,
    )  # fmt: skip
    refused("plain dense tensor", plan, [nn.Linear(8, 8), lambda y: y.to_sparse(), nn.ReLU()], x, squares)


@pytest.mark.parametrize("plan", [store_all(line(3)), uniform(line(3), 3)], ids=lambda plan: plan.name)
def test_a_stage_that_changes_its_input_in_place_is_refused(plan: Schedule) -> None:
    stages = [nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8)]
    refused(r"stage 2 \(ReLU\) changes its input in place", plan, stages, torch.ones(2, 8), squares)
    joined = [stages[0], nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)), stages[2]]
    x = torch.linspace(-1, 1, 16).reshape(2, 8)
    expected = outcome(joined, lambda: plain_step(joined, x, squares))
    assert same(expected, outcome(joined, lambda: run(plan, joined, x, squares).loss))


def test_what_was_saved_and_then_changed_in_place_is_refused_also_where_tapes_move() -> None:
    stages = [nn.Linear(8, 8), lambda x: torch.sigmoid(x).mul_(2), nn.Linear(8, 8)]
    x = torch.ones(2, 8)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        plain_step(stages, x, squares)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run(store_all(line(3)), stages, x, squares)
    refused("changed in place after it was saved", offload_all(line(3)), stages, x, squares)


@pytest.mark.parametrize("plan", [store_all(line(3)), offload_all(line(3))], ids=lambda plan: plan.name)
def test_a_weight_changed_after_it_was_saved_is_refused_as_in_plain_training(plan: Schedule) -> None:
    first = nn.Linear(8, 8)

    def meddling(x: Tensor) -> Tensor:
        with torch.no_grad():
            first.weight.add_(1)
        return x.sigmoid()

    stages, x = [first, meddling, nn.Linear(8, 8)], torch.ones(2, 8, requires_grad=True)
    for step in (plain_step, lambda *a: run(plan, *a)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            step(stages, x, squares)


def test_two_models_run_one_after_the_other_do_not_mix() -> None:
    peaks = []
    for order in ((0, 1), (1, 0)):
        models = [MODELS["mlp"](), MODELS["convolutions"]()]
        found: dict[int, float] = {}
        for which in order:
            stages, x = models[which]
            plan = uniform(line(len(stages)), 3)
            found[which] = step_peak(lambda s=stages, x=x, plan=plan: run(plan, s, x, squares), stages, x)
            zero(stages)
        peaks.append(found)
    assert peaks[0] == peaks[1] and peaks[0][0] != peaks[0][1]
