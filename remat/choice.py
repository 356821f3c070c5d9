"""Keep or recompute, tensor by tensor, inside a layer: the choices that have a name."""

from __future__ import annotations

from remat import _check
from remat.gpt import ATTENTION_CORE
from remat.layer import Layer

RECOMPUTE = ("none", "selective", "full")


def kept(layer: Layer, *, recompute: str) -> tuple[str, ...]:
    """Name the tensors that a layer keeps for backward under a named choice.

    Args:
        layer: the description.
        recompute: "none" keeps everything that backward needs; "selective" drops the attention core
            (softmax, mask and dropout output, or the statistics of a fused kernel); "full" keeps the input.

    Returns:
        Names in forward order. Everything else that backward needs is recomputed from them.

    Raises:
        ValueError: if recompute is not one of the three words.

    Source: Korthikanti et al. 2023, section 5.

    >>> from remat.gpt import gpt_layer
    >>> layer = gpt_layer(s=2048, b=1, h=12288, a=96)
    >>> [layer.bytes_of(kept(layer, recompute=word)) / layer.unit for word in RECOMPUTE]
    [114.0, 34.0, 2.0]
    """
    _check.one_of("recompute", recompute, RECOMPUTE)
    if recompute == "none":
        return tuple(tensor.name for tensor in layer.saved)
    if recompute == "selective":
        return tuple(tensor.name for tensor in layer.saved if tensor.part != ATTENTION_CORE)
    return (layer.input,)
