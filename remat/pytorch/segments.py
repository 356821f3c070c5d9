"""Checkpoint a list of modules cut into segments of any lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from remat import _check
from remat.chain import chain_of
from remat.schedules import Schedule
from remat.segments import Segment, as_segments


def mlp(n: int, width: int, *, seed: int = 0) -> list[nn.Module]:
    """Return n stages, each a Linear(width, width) followed by a GELU; the same seed gives the same weights.

    The global random state is left as it was.

    Raises:
        ValueError: n or width is not a positive whole number.

    >>> stages = mlp(3, 8)
    >>> len(stages), [type(part).__name__ for part in stages[0]]
    (3, ['Linear', 'GELU'])
    """
    n, width = _check.count("n", n), _check.count("width", width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(n)]


def checkpoint_segments(
    layers: Sequence[Callable[[Tensor], Tensor]],
    lengths: Sequence[int],
    x: Tensor,
    *,
    keep_last: bool = True,
) -> Tensor:
    """Run layers one after another, checkpointed in consecutive segments of the given lengths.

    Each segment keeps its input and is run again during backward (``torch.utils.checkpoint``, non-reentrant,
    random state restored). The gradients equal those of a plain run bit for bit.

    Args:
        layers: the layers, each a function of the one before's result.
        lengths: how many layers each segment holds, first to last; they sum to ``len(layers)``.
        x: the input of the first layer.
        keep_last: run the last segment plainly, as ``checkpoint_sequential`` does: its backward comes first,
            so what it dropped would have to be made again at once.

    Returns:
        The last layer's result.

    Raises:
        ValueError: a length is not a positive whole number, or they do not sum to the number of layers.

    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", section 4; uneven segments.

    >>> checkpoint_segments(mlp(6, 8), [3, 2, 1], torch.ones(4, 8)).shape
    torch.Size([4, 8])
    """
    for index, length in enumerate(lengths):
        _check.count(f"lengths[{index}]", length)
    if sum(lengths) != len(layers):
        raise ValueError(
            f"lengths must sum to the number of layers, {len(layers)}: {list(lengths)} sums to {sum(lengths)}"
        )
    last = len(lengths) - 1
    return _run(layers, [Segment(n, kept=keep_last and q == last) for q, n in enumerate(lengths)], x)


class Checkpointed(nn.Sequential):
    """A sequential model whose segments are checkpointed while it trains; see `checkpointed`."""

    def __init__(self, model: nn.Sequential, segments: Sequence[Segment]) -> None:
        super().__init__()
        for name, module in model.named_children():
            self.add_module(name, module)
        self.segments = tuple(segments)
        self.train(model.training)

    def forward(self, input: Tensor) -> Tensor:
        """Return the model's result; without gradients to come, run it plainly."""
        if not torch.is_grad_enabled():
            result: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
            return result
        return _run(list(self), self.segments, input)

    def extra_repr(self) -> str:
        """Name the segments."""
        return "segments=" + ", ".join(f"{s.length}{' kept' if s.kept else ''}" for s in self.segments)


def checkpointed(model: nn.Sequential, segments: Schedule | Iterable[int | Segment]) -> Checkpointed:
    """Wrap a sequential model for an ordinary training loop, checkpointed as a planner cut it.

    The modules are the same objects under the same names, so an optimizer, a ``state_dict`` and hooks of the
    model go on working. Each segment that is not kept goes through ``torch.utils.checkpoint``,
    non-reentrant, with the random state restored; gradients equal those of the model bit for bit.

    Args:
        model: an ``nn.Sequential``, one module a stage of the plan.
        segments: a plan of segments (``best``, ``segmented``, ...), whose kept segments run plainly; or the
            lengths, of which the last segment then runs plainly, as in ``checkpoint_sequential``.

    Returns:
        A module to call instead of the model.

    Raises:
        ValueError: model is no ``nn.Sequential``; the lengths do not sum to its modules; or the plan
            recomputes a stage more than once or moves something to the host, which only `run` can do.

    Source: Chen et al. 2016, section 4; uneven segments.

    >>> model = nn.Sequential(*mlp(6, 8))
    >>> checkpointed(model, [3, 2, 1])(torch.ones(4, 8)).shape
    torch.Size([4, 8])
    """
    if not isinstance(model, nn.Sequential):
        raise ValueError(f"model must be an nn.Sequential, got {type(model).__name__}")
    if isinstance(segments, Schedule):
        if not segments.segments:
            raise ValueError(
                f"segments must be a plan of segments, and {segments.name!r} recomputes a stage more than "
                "once or uses the host: remat.pytorch.run runs any plan"
            )
        segments = segments.segments
    nominal = chain_of([1] * len(model), needs="tape")
    listed = list(segments)
    whole = not any(isinstance(segment, Segment) for segment in listed)
    return Checkpointed(model, as_segments(nominal, listed, keep_last=whole))


def _run(layers: Sequence[Callable[[Tensor], Tensor]], segments: Sequence[Segment], x: Tensor) -> Tensor:
    start = 0
    for segment in segments:
        part = _composed(layers[start : start + segment.length])
        start += segment.length
        x = part(x) if segment.kept else checkpoint(part, x, use_reentrant=False)
    return x


def _composed(layers: Sequence[Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    return run
