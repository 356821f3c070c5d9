import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from remat.pytorch.checkpointing.trial import (
    Attempt,
    Checkpoint,
    Listed,
    compared,
    leaf,
    non_reentrant,
    outcome,
    plain,
)


def test_gradients_are_compared_entry_by_entry() -> None:
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 2e-7])
    assert not torch.equal(a, b)
    assert compared([a, a], [a, a.clone()]) == "right gradients"
    assert compared([a, a], [a, b]) == "wrong gradients, no error"
    assert compared([a, a], [a, None]) == "some gradients missing"
    assert compared([a, a], [None, None]) == "no gradients"
    assert compared([a, None], [a, None]) == "right gradients"
    assert compared([a, None], [a, b]) == "wrong gradients, no error"


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_the_place_of_an_exception_is_told(where: str) -> None:
    def differentiate(loss: Tensor, leaves: Any) -> Any:
        if under_trial and where == "backward":
            raise KeyError
        return torch.autograd.grad(loss, leaves)

    under_trial: list[bool] = []

    def trial(function: Callable[..., Any], *arguments: Any) -> Any:
        under_trial.append(True)
        if where == "forward":
            raise KeyError
        return function(*arguments)

    attempt: Attempt = lambda under: (under(torch.sum, x := leaf(1, 2)), [x])  # noqa: E731
    assert outcome(attempt, trial, differentiate=differentiate) == f"KeyError in {where}"


def test_a_warning_in_forward_is_told_and_the_plain_runs_is_not() -> None:
    def warning(function: Callable[..., Any], *arguments: Any) -> Any:
        warnings.warn("careful", stacklevel=1)
        return function(*arguments)

    attempt: Attempt = lambda under: (under(torch.sum, x := leaf(1, 2)), [x])  # noqa: E731
    assert outcome(attempt, warning) == "right gradients, with a warning"

    def warns_itself(under: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        if under is plain:
            warnings.warn("careful", stacklevel=1)
        return attempt(under)  # type: ignore[return-value]

    assert outcome(warns_itself, non_reentrant) == "right gradients"


def test_a_run_that_is_cut_short_is_listed_up_to_the_cut() -> None:
    def region(x: Tensor) -> Tensor:
        y = x.sin()
        if len(listed.runs) == 2:
            raise StopIteration
        return y.cos()

    listed = Listed(region)
    listed(torch.ones(2))
    with pytest.raises(StopIteration):
        listed(torch.ones(2))
    assert listed.runs == [["sin", "cos"], ["sin"]]
    assert listed.again == "1 of 2 again"
