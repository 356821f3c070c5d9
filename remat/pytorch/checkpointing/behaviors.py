"""How both implementations of ``torch.utils.checkpoint`` behave, decided by running the installed one."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from remat.pytorch.checkpointing import trial
from remat.pytorch.checkpointing.probes import arguments, derivatives, recompute, second_run
from remat.pytorch.checkpointing.trial import Checkpoint

Probe: TypeAlias = Callable[[Checkpoint], str]

GROUPS: dict[str, dict[str, Probe]] = {
    "recompute": {
        "forward records the region's graph": recompute.records_graph,
        "operations: two products with a tanh between": recompute.runs_again,
        "… under `set_checkpoint_early_stop(False)`": recompute.runs_again_without_early_stop,
        "… with `early_stop=False`": recompute.runs_again_with_early_stop_false,
        "… in two backward passes over one graph": recompute.runs_again_per_backward,
        "operations: two outputs, the loss uses the first": recompute.runs_again_for_one_output,
        "a region checkpointed inside a region": recompute.nested,
        "batches that a BatchNorm inside counts": recompute.batches_counted,
    },
    "derivatives": {
        "`loss.backward()`": derivatives.backward,
        "`loss.backward(inputs=[x])`": derivatives.backward_inputs,
        "`torch.autograd.grad(loss, x)`": derivatives.autograd_grad,
        "`backward(create_graph=True)`, then differentiate the gradient": derivatives.gradient_of_gradient,
    },
    "arguments": {
        "the input needs no gradient, a weight inside does": arguments.weights_only,
        "all tensors in a list": arguments.list_alone,
        "a weight in a list, beside a tensor": arguments.list_beside,
        "a computed tensor in a dict, used after the region too": arguments.dict_shared,
        "the result in a dict": arguments.dict_returned,
        "a number, a text and None returned too": arguments.other_outputs,
        "a tensor passed by keyword": arguments.keyword,
        "`context_fn`": arguments.contexts,
        "a detached tensor used inside": arguments.detached_inside,
        "a detached tensor returned beside another": arguments.detached_beside,
        "only a detached tensor returned": arguments.detached_only,
    },
    "second run": {
        'recompute gives another shape, `determinism_check="default"`': second_run.other_shape,
        '… `determinism_check="none"`': second_run.other_shape_unchecked,
        "recompute gives other values of the same shape": second_run.other_values,
        "an argument changed in place before backward": second_run.changed_argument,
        "… the argument stands in a list": second_run.changed_in_list,
        "the region changes an argument in place": second_run.changes_argument,
    },
}


@dataclass(frozen=True)
class Behavior:
    """One row of the table.

    Attributes:
        behavior: what was tried.
        reentrant: what happened under ``use_reentrant=True``.
        non_reentrant: what happened under ``use_reentrant=False``.
    """

    behavior: str
    reentrant: str
    non_reentrant: str


def behaviors(
    group: str,
    *,
    reentrant: Checkpoint = trial.reentrant,
    non_reentrant: Checkpoint = trial.non_reentrant,
) -> list[Behavior]:
    """Run the probes of a group on both implementations and report what happened.

    Args:
        group: "recompute", "derivatives", "arguments" or "second run".
        reentrant: what stands in for the reentrant implementation.
        non_reentrant: what stands in for the non-reentrant one.

    Returns:
        One row a probe. Every verdict is made from what happened in this process, with the installed version:
        gradients compared bit for bit with a plain run's, operations counted, the type of an exception.

    Raises:
        ValueError: there is no such group.

    >>> for row in behaviors("derivatives")[:2]:
    ...     print(row.behavior, "|", row.reentrant, "|", row.non_reentrant)
    `loss.backward()` | right gradients | right gradients
    `loss.backward(inputs=[x])` | RuntimeError in backward | right gradients
    """
    if group not in GROUPS:
        raise ValueError(f"group must be one of {', '.join(map(repr, GROUPS))}, got {group!r}")
    return [
        Behavior(behavior, _verdict(probe, reentrant), _verdict(probe, non_reentrant))
        for behavior, probe in GROUPS[group].items()
    ]


def _verdict(probe: Probe, checkpoint: Checkpoint) -> str:
    try:
        return probe(checkpoint)
    except Exception as error:  # a probe that only counts does not expect one, but another version may raise
        return type(error).__name__


# --- use_reentrant left out -----------------------------------------------------------------------


@dataclass(frozen=True)
class LeftOut:
    """What a call does without ``use_reentrant``.

    Attributes:
        call: the function called.
        taken: "reentrant", "non-reentrant", "not checkpointed", or the type of the exception.
        warning: the text of the warning, "" without one.
    """

    call: str
    taken: str
    warning: str

    @property
    def announced(self) -> str:
        """The version for which the warning announces an exception, "" if it names none."""
        found = re.search(r"(?:PyTorch|version) (\d+\.\d+)", self.warning)
        return found.group(1) if found else ""


def left_out() -> list[LeftOut]:
    """Call PyTorch's checkpoint functions without ``use_reentrant`` and see which implementation runs.

    >>> [row.call for row in left_out()]
    ['checkpoint', 'checkpoint_sequential', 'checkpoint_wrapper']
    """
    return [
        _without("checkpoint", checkpoint),
        _without("checkpoint_sequential", _in_sequence),
        _without("checkpoint_wrapper", _wrapped),
    ]


def _in_sequence(region: nn.Module, x: Tensor) -> Any:
    return checkpoint_sequential([region, nn.Tanh()], 2, x)  # type: ignore[no-untyped-call]


def _wrapped(region: nn.Module, x: Tensor) -> Any:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    return checkpoint_wrapper(region)(x)


class _Watched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[bool] = []  # for each run, whether autograd was on

    def forward(self, x: Tensor) -> Tensor:
        self.recorded.append(torch.is_grad_enabled())
        return x.sin().cos()


def _without(call: str, run: Callable[[nn.Module, Tensor], Any]) -> LeftOut:
    region = _Watched()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run(region, trial.leaf(1, 2)).sum().backward()
            taken = _implementation(region.recorded)
        except Exception as error:  # announced for some version
            taken = type(error).__name__
    return LeftOut(call, taken, " ".join(str(each.message) for each in caught))


def _implementation(recorded: list[bool]) -> str:
    if len(recorded) == 1:
        return "not checkpointed"
    return "non-reentrant" if recorded[0] else "reentrant"
