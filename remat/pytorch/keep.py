"""Run a GPT layer with a choice of ``remat.choice``: just the kept tensors are held from forward to backward.

A policy of ``torch.utils.checkpoint`` could not do it exactly. It decides by ATen operation, so it keeps a
LayerNorm's output only with its statistics; what it does not keep it replays all at once, needed or not; and
if it keeps one random draw and replays another, the gradients are wrong and nothing says so. So here the
description itself is run, and what an operation saves for backward is held or promised; see ``promises``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from remat import _check
from remat.choices import Choice
from remat.gpt import gpt_layer
from remat.pytorch.gpt import GPTLayer
from remat.pytorch.promises import run_kept

_GRAPH = gpt_layer(s=1, b=1, h=1, a=1, norm_statistic_bytes=4)  # names alone matter here, not sizes
_STATISTICS = tuple(tensor.name for tensor in _GRAPH.saved if tensor.name.endswith("_statistics"))


@dataclass(frozen=True)
class Keep:
    """Runs a GPT layer with a choice; made by ``keep``.

    Attributes:
        kept: names of the tensors that are held from forward to backward, in forward order.
    """

    kept: tuple[str, ...]

    def __call__(self, layer: GPTLayer, x: Tensor) -> Tensor:
        """Return the layer's result for x, [s, b, h], holding what is kept and nothing else.

        Raises:
            ValueError: layer is not a GPTLayer, or one with ``F.dropout``; x is not [s, b, h].
        """
        if not isinstance(layer, GPTLayer):
            raise ValueError(f"layer must be a GPTLayer, got a {type(layer).__name__}")
        functions = layer.operations(x)
        if not torch.is_grad_enabled():
            return layer._layer(x)
        return run_kept(_GRAPH, functions, x, self.kept)


def keep(choice: Choice | Iterable[str], *, norm_statistics: bool = False) -> Keep:
    """Turn a choice into a way to run a `GPTLayer`: what is not kept is recomputed when backward needs it.

    The operations that run again are those of ``remat.choice.program``, once each, just before the first use
    of what they make. The gradients are the plain layer's bit for bit, whichever masks are kept: a dropped
    mask is drawn again from the random state before its own draw.

    The bytes held are the ledger's and, for each dropped mask, one random state (5,056 on a CPU, 16 on CUDA).
    With causal="masked_fill" a layer holds s·s bytes more under every choice. Where nothing is dropped out
    there are no masks, and softmax and attention_dropout are one tensor. Python runs between any two
    operations, so a time measured on a small layer says little.

    Args:
        choice: names of tensors of ``gpt_layer`` to keep, or a choice of ``remat.choices`` without offload.
            The layer's input is always kept and may be left out.
        norm_statistics: whether the choice is about LayerNorm's mean and deviation too, as in a description
            with norm_statistic_bytes=4. Otherwise they are kept where the LayerNorm's output is: 8·s·b bytes
            that the ledger leaves out.

    Returns:
        A function of layer and x, for ``GPTLayer(..., recompute=keep(choice))`` or to call by itself.

    Raises:
        ValueError: a name is not that of a tensor that backward needs, or the choice offloads.

    Source: Korthikanti et al. 2023, section 5; as a property of the graph, Chen et al. 2016, section 4.2.

    >>> from remat.choices import every_choice
    >>> from remat.cost import flops
    >>> from remat.pytorch import saved_tensors
    >>> s, b, h, a = 256, 1, 256, 4
    >>> choices = every_choice(described := gpt_layer(s=s, b=b, h=h, a=a), flops(described))
    >>> for choice in choices.frontier[0], choices.of(["qkv", "context", "gelu_in"]):
    ...     layer = GPTLayer(h, a, recompute=keep(choice))
    ...     with saved_tensors(layer) as record:
    ...         y = layer(torch.ones(s, b, h))
    ...     print(f"described {choice.kept_bytes / described.unit:g} sbh, ", end="")
    ...     print(f"measured {record.bytes_as() / described.unit:g} sbh")
    described 2 sbh, measured 2 sbh
    described 18 sbh, measured 18 sbh
    """
    if isinstance(choice, Choice):
        if choice.offloaded:
            raise ValueError(f"choice must not offload, got {list(choice.offloaded)} offloaded")
        choice = choice.kept
    if isinstance(choice, str):
        raise ValueError(f"choice must be names of tensors, got the string {choice!r}")
    names = list(choice)
    if not norm_statistics and (asked := [name for name in names if name in _STATISTICS]):
        raise ValueError(f"norm_statistics must be True for a choice that names {asked[0]!r}")
    known = [t.name for t in _GRAPH.saved if norm_statistics or t.name not in _STATISTICS]
    kept = {_GRAPH.input, *(_check.one_of("choice", name, known) for name in names)}
    if not norm_statistics:
        kept |= {name for name in _STATISTICS if name.removesuffix("_statistics") in kept}
    return Keep(tuple(tensor.name for tensor in _GRAPH.saved if tensor.name in kept))
