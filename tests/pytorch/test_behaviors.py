from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import checkpoint as module
from torch.utils.checkpoint import checkpoint

from remat.pytorch.checkpointing import behaviors as pages
from remat.pytorch.checkpointing.behaviors import GROUPS, Behavior, LeftOut, behaviors, left_out
from remat.pytorch.checkpointing.described import DESCRIBED, unlike_described
from remat.pytorch.checkpointing.trial import (
    Checkpoint,
    non_reentrant,
    plain,
    reentrant,
)

PINNED = torch.__version__.split("+")[0] == "2.13.0"  # the version of requirements.txt
PROBES = {name: probe for group in GROUPS.values() for name, probe in group.items()}


def test_the_module_under_trial_is_pytorchs() -> None:
    for variant, flag in ((reentrant, True), (non_reentrant, False)):
        assert variant.func is module.checkpoint  # type: ignore[attr-defined]
        assert variant.keywords == {"use_reentrant": flag}  # type: ignore[attr-defined]


# --- the outcomes of the installed version --------------------------------------------------------


@pytest.mark.parametrize("group", GROUPS)
def test_the_installed_version_does_what_the_page_describes(group: str) -> None:
    assert behaviors(group) == DESCRIBED[group]


def test_every_group_is_described() -> None:
    assert list(DESCRIBED) == list(GROUPS)
    assert len(PROBES) == sum(map(len, GROUPS.values()))  # no name stands in two groups


@pytest.mark.skipif(not PINNED, reason="the documentation of another version")
@pytest.mark.parametrize(
    "phrase",
    [
        "stops recomputation as soon as all needed intermediate activations",
        "with :func:`torch.no_grad`, the backward pass will raise",
        "does not consider tensors in nested structures",
        "backward pass without its `inputs` argument",
        "version 2.9 we will raise an exception",
        "under torch.compile, this flag doesn't take effect",
    ],
)
def test_the_documentation_still_makes_the_claims_that_the_page_tests(phrase: str) -> None:
    assert phrase in " ".join(str(checkpoint.__doc__).split())


def test_the_documentation_does_not_speak_of_create_graph() -> None:
    assert "create_graph" not in str(checkpoint.__doc__)


@pytest.mark.skipif(not PINNED, reason="pinned for one version")
def test_use_reentrant_left_out() -> None:
    rows = {row.call: row for row in left_out()}
    assert {call: (row.taken, row.announced) for call, row in rows.items()} == {
        "checkpoint": ("reentrant", "2.9"),
        "checkpoint_sequential": ("reentrant", "2.9"),
        "checkpoint_wrapper": ("non-reentrant", ""),
    }
    assert "use_reentrant=False is recommended" in rows["checkpoint"].warning


# --- a probe would say something else if the behavior were another --------------------------------


def refusing(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    raise NotImplementedError("no checkpoints today")


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


def doubling(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Run plainly, but double each gradient that flows back through a result."""
    return _each_tensor(plain(function, *arguments, **options), _Doubled.apply)


def cutting(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Run plainly, but cut the results off the graph."""
    return _each_tensor(plain(function, *arguments, **options), lambda x: x.detach().requires_grad_())


def repeating(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Run five times."""
    for _ in range(4):
        plain(function, *arguments, **options)
    return plain(function, *arguments, **options)


def _each_tensor(result: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(result, tuple):
        return tuple(_each_tensor(part, change) for part in result)
    if isinstance(result, dict):
        return {key: _each_tensor(part, change) for key, part in result.items()}
    return change(result) if isinstance(result, Tensor) and result.requires_grad else result


COUNTS = [name for name in GROUPS["recompute"] if name != "forward records the region's graph"]
# Names of probes whose verdict is about gradients.
JUDGED = [name for name in PROBES if name not in GROUPS["recompute"]]


def verdict(name: str, under: Checkpoint) -> str:
    return pages._verdict(PROBES[name], under)


@pytest.mark.parametrize("name", PROBES)
def test_a_version_that_refuses_is_reported(name: str) -> None:
    assert "NotImplementedError" in verdict(name, refusing)


@pytest.mark.parametrize("name", JUDGED)
def test_right_gradients_are_reported(name: str) -> None:
    """Of a plain run nothing can go wrong, whatever the probe provokes."""
    assert verdict(name, plain).startswith("right gradients")


@pytest.mark.parametrize("name", JUDGED)
def test_wrong_gradients_are_reported(name: str) -> None:
    # Where the region returns nothing that requires a gradient, there is nothing to double.
    expected = "right gradients" if name == "only a detached tensor returned" else "wrong gradients, no error"
    assert verdict(name, doubling).startswith(expected)


@pytest.mark.parametrize("name", JUDGED)
def test_a_lost_graph_is_reported(name: str) -> None:
    assert not verdict(name, cutting).startswith("right gradients") or name in (
        "only a detached tensor returned",  # cut off anyway
    )


@pytest.mark.parametrize("name", COUNTS)
def test_runs_are_counted(name: str) -> None:
    seen = [verdict(name, under) for under in (plain, repeating, non_reentrant)]
    assert len(set(seen)) == 3


def test_counts_of_a_plain_run_and_of_five() -> None:
    product = "operations: two products with a tanh between"
    assert verdict(product, plain) == "0 of 3 again"
    assert verdict(product, repeating) == "3 + 3 + 3 + 3 of 3 again"
    assert verdict("batches that a BatchNorm inside counts", plain) == "1 for one step"
    assert verdict("batches that a BatchNorm inside counts", repeating) == "5 for one step"


def test_a_recorded_graph_is_told_from_a_missing_one() -> None:
    name = "forward records the region's graph"

    def without_graph(function: Callable[..., Any], *arguments: Any) -> Any:
        with torch.no_grad():
            return function(*arguments)

    assert verdict(name, plain).startswith("yes; the result's node is CosBackward")
    assert verdict(name, without_graph) == "no; the result's node is missing"


def test_contexts_and_lost_values_are_told() -> None:
    def entering(
        function: Callable[..., Any], *arguments: Any, context_fn: Any = None, **options: Any
    ) -> Any:
        with context_fn()[1]:
            return function(*arguments)

    assert verdict("`context_fn`", entering) == "right gradients; contexts entered: recompute"

    def forgetting(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        y, *rest = function(*arguments)
        return y, *[None for _ in rest]

    lost = verdict("a number, a text and None returned too", forgetting)
    assert lost == "right gradients, other values lost"


def test_a_detached_result_is_told_from_one_that_claims_a_gradient() -> None:
    def claiming(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        y, statistic = function(*arguments)
        return y, statistic.requires_grad_()

    name = "a detached tensor returned beside another"
    assert verdict(name, plain).endswith("requires no gradient")
    assert verdict(name, claiming).endswith("claims to require gradient")


def test_a_row_that_comes_out_otherwise_is_named() -> None:
    rows = behaviors("derivatives", reentrant=non_reentrant)
    assert unlike_described("derivatives", rows) == [
        "`loss.backward(inputs=[x])`",
        "`torch.autograd.grad(loss, x)`",
        "`backward(create_graph=True)`, then differentiate the gradient",
    ]
    described = DESCRIBED["derivatives"]
    assert unlike_described("derivatives", described) == []
    changed = replace(described[2], non_reentrant="ValueError in backward")
    assert unlike_described("derivatives", [*described[:2], changed, *described[3:]]) == [changed.behavior]
    assert unlike_described("derivatives", [*described, Behavior("new", "", "")]) == ["new"]


# Versions that behave otherwise when use_reentrant is left out, each a stand-in for `checkpoint`.


def _raises(*arguments: Any, **options: Any) -> Any:
    raise ValueError("use_reentrant must be passed")


@pytest.mark.parametrize(
    ("stand_in", "taken"),
    [(non_reentrant, "non-reentrant"), (reentrant, "reentrant"), (plain, "not checkpointed")]
    + [(_raises, "ValueError")],
)
def test_what_is_taken_is_found_by_running(
    stand_in: Checkpoint, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "checkpoint", stand_in)
    assert left_out()[0] == LeftOut("checkpoint", taken, "")


def test_the_announced_version_is_read_from_the_warning() -> None:
    row = LeftOut("checkpoint", "reentrant", "Starting in PyTorch 3.1, this will raise an exception.")
    assert row.announced == "3.1"
    assert replace(row, warning="In version 2.5 we will raise").announced == "2.5"
    assert replace(row, warning="please pass it").announced == ""


@pytest.mark.parametrize(
    "call", [lambda: behaviors("arguments "), lambda: unlike_described("none", [])], ids=["run", "compare"]
)
def test_errors_name_the_group(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"group must be one of 'recompute', .*, got "):
        call()
