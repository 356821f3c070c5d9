"""The GPT layer that is measured: Megatron's shape, saving what the paper counts and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from remat import _check

DropoutKind = Literal["bool", "torch"]
Causal = Literal["bias", "masked_fill"]
Recompute = Literal["none", "selective", "full"]


class GPTLayer(nn.Module):
    """A GPT layer in Megatron's shape: attention matrix materialized, three dropouts, feed-forward of 4h.

    With the defaults, and 16-bit floats, it saves sbh (34 + 5as/h + 8/h) bytes for backward; 8/h is the mean
    and the inverse deviation of the two LayerNorms, which the paper leaves out as small.

    Args:
        h: hidden size.
        a: attention heads; a divides h.
        dropout: probability of all three dropouts, at least 0 and below 1.
        dropout_kind: "bool" keeps a mask of one byte an element, as a GPU kernel does; "torch" is
            ``F.dropout``, which on a CPU keeps a mask of floats.
        causal: "bias" adds 0 or minus infinity to the scores, which saves nothing; "masked_fill" saves its
            mask, one byte for each of the s x s pairs.
        recompute: "none"; "selective" checkpoints the attention core (QK^T, softmax, dropout, times V);
            "full" checkpoints the whole layer. The gradients are the same bit for bit.

    Raises:
        ValueError: a size is not a positive whole number, a does not divide h, dropout is not in [0, 1), or a
            word is not one of the above; at the call, x is not [s, b, h].

    Source: Korthikanti et al. 2023, "Reducing Activation Recomputation in Large Transformer Models",
    section 4.

    >>> from remat.pytorch import saved_tensors
    >>> s, b, h, a = 256, 1, 256, 4
    >>> for recompute in ("none", "selective", "full"):
    ...     layer = GPTLayer(h, a, recompute=recompute)
    ...     with saved_tensors(layer) as record:
    ...         y = layer(torch.ones(s, b, h))
    ...     print(f"{recompute:9}  {record.bytes_as() / (s * b * h):.3f} sbh")
    none       54.031 sbh
    selective  34.031 sbh
    full       2.000 sbh
    """

    def __init__(
        self,
        h: int,
        a: int,
        *,
        dropout: float = 0.1,
        dropout_kind: DropoutKind = "bool",
        causal: Causal = "bias",
        recompute: Recompute = "none",
    ) -> None:
        super().__init__()
        _check.divides("a", _check.count("a", a), "h", _check.count("h", h))
        if _check.amount("dropout", dropout) >= 1:
            raise ValueError(f"dropout must be a probability from 0 to below 1, got {dropout!r}")
        _check.one_of("dropout_kind", dropout_kind, ("bool", "torch"))
        _check.one_of("causal", causal, ("bias", "masked_fill"))
        _check.one_of("recompute", recompute, ("none", "selective", "full"))
        self.h, self.a, self.p = h, a, dropout
        self.dropout_kind, self.causal, self.recompute = dropout_kind, causal, recompute
        self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.projection = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's result, [s, b, h], for x of [s, b, h]."""
        if x.dim() != 3 or x.shape[2] != self.h:
            raise ValueError(f"x must be [s, b, h] with h={self.h}, got shape {list(x.shape)}")
        if self.recompute == "full":
            return _checkpointed(self._layer, x)
        return self._layer(x)

    def _layer(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        selective = self.recompute == "selective"
        context = _checkpointed(self._core, q, k, v) if selective else self._core(q, k, v)
        x = x + self._dropout(self.projection(context))
        return x + self._dropout(self.down(F.gelu(self.up(self.norm2(x)))))

    def _core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s, b, h = q.shape
        q, k, v = (part.view(s, b, self.a, h // self.a).permute(1, 2, 0, 3) for part in (q, k, v))
        # Scaling the scores rather than q: a scaled q would be one more tensor to save.
        scores = self._masked(q @ k.transpose(-1, -2) / math.sqrt(h // self.a))
        context = self._dropout(scores.softmax(dim=-1)) @ v
        return context.permute(2, 0, 1, 3).reshape(s, b, h)

    def _masked(self, scores: Tensor) -> Tensor:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        if self.causal == "masked_fill":
            return scores.masked_fill(future, -math.inf)
        return scores + torch.zeros_like(future, dtype=scores.dtype).masked_fill(future, -math.inf)

    def _dropout(self, x: Tensor) -> Tensor:
        if self.dropout_kind == "torch":
            return F.dropout(x, self.p, self.training)
        if not self.training or self.p == 0:
            return x
        kept = torch.rand_like(x) >= self.p
        return x * kept / (1 - self.p)


def _checkpointed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    result: Tensor = checkpoint(function, *inputs, use_reentrant=False)
    return result
