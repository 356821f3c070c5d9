"""All choices inside a layer at once: every way to keep, recompute or offload its tensors, and the frontiers.

A tensor that is neither kept nor offloaded is recomputed from those that are. An operation runs at most once
more, and only if backward needs what it makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from remat.choice import steady_wait
from remat.cost import complete, forward_cost
from remat.hardware import Link
from remat.layer import Layer

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

MOST = 5_000_000  # choices; 22 tensors to keep or recompute, or 14 with offload
_DIGITS = 12  # shares of a step that differ by less than 10^-12 count as equal


@dataclass(frozen=True)
class Choice:
    """One choice, and what it costs.

    Attributes:
        kept: names of the tensors that stay on the device, in forward order.
        offloaded: names of the tensors that wait on the host.
        kept_bytes: bytes of the former.
        copied_bytes: bytes of the latter; they cross the link once in each direction.
        recompute: what it costs to make the other tensors again, in the unit of the costs.
        forward: what one forward costs, in the same unit.
    """

    kept: tuple[str, ...]
    offloaded: tuple[str, ...]
    kept_bytes: float
    copied_bytes: float
    recompute: float
    forward: float

    @property
    def share(self) -> float:
        """The recompute as a share of forward and backward, which is three forwards."""
        return self.recompute / (3 * self.forward) if self.forward else 0.0

    def overhead(self, link: Link) -> float:
        """Recompute and wait together as a share of forward and backward; see ``Choices.overhead``."""
        wait = steady_wait(self.copied_bytes, self.forward, self.recompute, link=link)
        return (self.recompute + wait) / (3 * self.forward) if self.forward else 0.0


@dataclass(frozen=True, eq=False)
class Choices:
    """Every choice for one layer under one cost, one entry of each array a choice.

    Attributes:
        layer: the description.
        ways: for each tensor that a choice is about, in forward order, the words it is free to take.
        forward: what one forward costs, in the unit of the costs.
        kept: bytes that stay on the device, the layer's input included.
        copied: bytes that cross the link, once in each direction.
        recompute: what it costs to make the rest again, in the unit of the costs.
    """

    layer: Layer
    ways: Mapping[str, tuple[str, ...]]
    forward: float
    kept: Array
    copied: Array
    recompute: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "ways", MappingProxyType(dict(self.ways)))
        for column in (self.kept, self.copied, self.recompute):
            column.flags.writeable = False

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> Choice:
        if not 0 <= index < len(self):
            raise IndexError(f"choices are numbered from 0 to {len(self) - 1}, got {index}")
        way, rest = {}, index
        for name, words in reversed([*self.ways.items()]):  # the last tensor is the last digit of the number
            rest, digit = divmod(rest, len(words))
            way[name] = words[digit]
        kept = {self.layer.input} - set(way) | {name for name in way if way[name] == "keep"}
        return Choice(
            kept=tuple(tensor.name for tensor in self.layer.tensors if tensor.name in kept),
            offloaded=tuple(name for name in self.ways if way[name] == "offload"),
            kept_bytes=float(self.kept[index]),
            copied_bytes=float(self.copied[index]),
            recompute=float(self.recompute[index]),
            forward=self.forward,
        )

    def of(self, kept: Iterable[str], *, offloaded: Iterable[str] = ()) -> Choice:
        """Find the choice that keeps and offloads these tensors and recomputes the rest.

        Args:
            kept: names; the layer's input may be left out, unless it is free to be offloaded.
            offloaded: names.

        Raises:
            ValueError: if there is no such choice here.
        """
        stay, away, end = set(kept), set(offloaded), self.layer.input
        for argument, names, word in (("kept", stay, "keep"), ("offloaded", away, "offload")):
            right = [name for name, words in self.ways.items() if word in words]
            if word == "keep" and end not in right:
                right.insert(0, end)
            if strange := sorted(names.difference(right)):
                raise ValueError(
                    f"{argument} must name tensors among {', '.join(right) or 'none'}, got {strange}"
                )
        if both := sorted(stay & away):
            raise ValueError(f"offloaded must not name what is kept, got {both} in both")
        if end in self.ways and end not in stay | away:
            raise ValueError(f"kept or offloaded must name {end!r}, which no operation can make again")
        index = 0
        for name, words in self.ways.items():
            word = "keep" if name in stay else "offload" if name in away else "recompute"
            index = index * len(words) + words.index(word)
        return self[index]

    @cached_property
    def frontier(self) -> tuple[Choice, ...]:
        """The choices without offload that no other of them beats, by rising bytes and falling recompute."""
        here = np.flatnonzero(self.copied == 0)
        scale = 3 * self.forward or 1
        return self._points(here, self.recompute[here] / scale)

    def overhead(self, link: Link) -> Array:
        """Compute what every choice costs with a link, as a share of forward and backward.

        The costs must be seconds. Two streams work in order, copies and compute; in the steady state of many
        equal layers, one layer's copies out go on beside the forward of the next, its copies in beside the
        backward of the one before. What does not fit there is waited for; see ``steady_wait``. Collectives
        are left out, and so is the memory of the buffers in which copies wait.
        """
        wait = steady_wait(self.copied, self.forward, self.recompute, link=link)
        shares: Array = (self.recompute + wait) / (3 * self.forward or 1)
        return shares

    def frontier_with(self, link: Link) -> tuple[Choice, ...]:
        """The choices that no other beats in bytes kept and in overhead; of equals, the least copied."""
        return self._points(np.arange(len(self)), self.overhead(link))

    def _points(self, indices: npt.NDArray[np.intp], cost: Array) -> tuple[Choice, ...]:
        cost = np.round(cost, _DIGITS)
        order = np.lexsort((self.copied[indices], cost, self.kept[indices]))
        lowest = np.minimum.accumulate(cost[order])
        first = np.concatenate(([True], lowest[1:] < lowest[:-1]))
        return tuple(self[int(index)] for index in indices[order[first]])


def every_choice(
    layer: Layer, costs: Mapping[str, float], *, offload: bool = False, offload_input: bool = False
) -> Choices:
    """Try every choice for the tensors that backward needs.

    Args:
        layer: the description.
        costs: what each operation costs, by name, in any unit (seconds, if a link will be asked about).
        offload: whether tensors may also be offloaded; an offloaded one is there when backward needs it.
        offload_input: whether the layer's input may be offloaded. It is kept otherwise, and is never
            recomputed: no operation of the layer makes it.

    Returns:
        All choices. With n tensors beside the input there are 2^n, with offload 3^n, and twice as many if the
        input may be offloaded.

    Raises:
        ValueError: if costs does not name every operation, or there are more than 5,000,000 choices.

    Source: Jain et al. 2020 (Checkmate) for costs that depend on the hardware; here each operation runs at
    most once more.

    >>> from remat.choice import kept
    >>> from remat.cost import flops
    >>> from remat.gpt import gpt_layer
    >>> layer = gpt_layer(s=2048, b=1, h=12288, a=96)
    >>> choices = every_choice(layer, flops(layer))
    >>> len(choices)
    4096
    >>> megatron = choices.of(kept(layer, recompute="selective"))
    >>> print(f"{megatron.kept_bytes / layer.unit:g} sbh kept, {100 * megatron.share:.2f} % recomputed")
    34 sbh kept, 0.45 % recomputed
    """
    seconds = complete("costs", layer, costs)
    words = ("keep", "recompute", "offload") if offload else ("keep", "recompute")
    ways = {tensor.name: words for tensor in layer.saved if tensor.name != layer.input}
    if offload_input:
        ways = {layer.input: ("keep", "offload"), **ways}
    if (total := prod(map(len, ways.values()))) > MOST:
        raise ValueError(
            f"layer must have at most {MOST:,} choices (22 tensors, 14 with offload), "
            f"got {total:,} of {layer.name!r} with {len(ways)} tensors"
        )

    there: dict[str, Mask] = {layer.input: np.ones(total, bool)}
    kept = np.full(total, 0 if offload_input else layer[layer.input].bytes, float)
    copied, recompute = np.zeros(total), np.zeros(total)
    period = total
    for name, words in ways.items():  # each way is a digit of the choice's number
        period //= len(words)
        way = np.tile(np.repeat(np.arange(len(words), dtype=np.int8), period), total // (period * len(words)))
        stays, leaves = (way == (words.index(word) if word in words else -1) for word in ("keep", "offload"))
        kept += stays * layer[name].bytes
        copied += leaves * layer[name].bytes
        there[name] = stays | leaves

    missing = {tensor.name: ~there[tensor.name] for tensor in layer.saved}
    for op in reversed(layer.operations):
        again = np.zeros(total, bool)
        for name in op.outputs:
            if name in missing:
                again |= missing.pop(name)
        if not again.any():
            continue
        recompute += again * seconds[op.name]
        for name in op.inputs:
            asked = again & ~there[name] if name in there else again
            missing[name] = missing[name] | asked if name in missing else asked
    return Choices(layer, ways, forward_cost(seconds), kept, copied, recompute)
