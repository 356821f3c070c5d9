"""The GPT layer that is measured: Megatron's shape, saving what the paper counts and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from remat import _check
from remat.pytorch.promises import Value

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
            "full" checkpoints the whole layer; what `remat.pytorch.keep` returns, or any other function of
            layer and x, runs the layer in its own way. The gradients are the same bit for bit.

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
        recompute: Recompute | Callable[[GPTLayer, Tensor], Tensor] = "none",
    ) -> None:
        super().__init__()
        _check.divides("a", _check.count("a", a), "h", _check.count("h", h))
        if _check.amount("dropout", dropout) >= 1:
            raise ValueError(f"dropout must be a probability from 0 to below 1, got {dropout!r}")
        _check.one_of("dropout_kind", dropout_kind, ("bool", "torch"))
        _check.one_of("causal", causal, ("bias", "masked_fill"))
        if not callable(recompute):
            _check.one_of("recompute", recompute, ("none", "selective", "full"))
        self.h, self.a, self.p = h, a, dropout
        self.dropout_kind, self.causal, self.recompute = dropout_kind, causal, recompute
        self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.projection = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's result, [s, b, h], for x of [s, b, h]."""
        if callable(self.recompute):
            return self.recompute(self, x)
        self._shape(x)
        if self.recompute == "full":
            return _checkpointed(self._layer, x)
        return self._layer(x)

    def operations(self, x: Tensor) -> dict[str, Callable[..., tuple[Value, ...]]]:
        """Return the layer's operations by their names in `remat.gpt.gpt_layer`, for inputs such as x.

        Each takes its inputs in the description's order, the parts of each one after another, and returns
        its outputs in that order, each as the tuple of its parts. Run in order they are the layer.

        Raises:
            ValueError: x is not [s, b, h]; dropout_kind is "torch".

        >>> layer = GPTLayer(8, 2)
        >>> run = layer.operations(torch.ones(4, 1, 8))
        >>> (ln1,), (mean, deviation) = run["layer_norm_1"](torch.ones(4, 1, 8))
        >>> [tuple(part.shape) for part in run["project_qkv"](ln1)[0]]                # q, k and v, by head
        [(2, 4, 4), (2, 4, 4), (2, 4, 4)]
        """
        s, b, h = self._shape(x)
        if self.dropout_kind == "torch":
            raise ValueError(
                "dropout_kind must be 'bool' to run the layer operation by operation, got 'torch': "
                "F.dropout draws its mask and applies it in one, and on a CPU keeps it as floats"
            )
        device, masks = x.device, self._drops  # not x itself, which would live as long as an operation

        def norm(module: nn.LayerNorm) -> Callable[..., tuple[Value, ...]]:
            def run(source: Tensor) -> tuple[Value, ...]:
                out, *statistics = torch.native_layer_norm(
                    source, [h], module.weight, module.bias, module.eps
                )
                return (out,), tuple(statistics)

            return run

        def draw(*shape: int) -> Callable[..., tuple[Value, ...]]:
            return lambda: ((self._draw(shape, device),) if masks else (),)

        def one(function: Callable[..., Tensor]) -> Callable[..., tuple[Value, ...]]:
            return lambda *parts: ((function(*parts),),)

        return {
            "layer_norm_1": norm(self.norm1),
            "project_qkv": lambda ln1: (self._heads(ln1),),
            "query_key": one(lambda q, k, v: self._scores(q, k)),
            "softmax": one(lambda scores: scores.softmax(dim=-1)),
            "draw_attention_mask": draw(b * self.a, s, s),
            "attention_dropout": one(self._drop),
            "times_value": one(lambda dropped, q, k, v: self._context(dropped, v)),
            "project_out": one(self.projection),
            "draw_mask1": draw(s, b, h),
            "add_residual1": one(lambda x, branch, *mask: x + self._drop(branch, *mask)),
            "layer_norm_2": norm(self.norm2),
            "feed_forward_1": one(self.up),
            "gelu": one(F.gelu),
            "feed_forward_2": one(self.down),
            "draw_mask2": draw(s, b, h),
            "add_residual2": one(lambda x, branch, *mask: x + self._drop(branch, *mask)),
        }

    def _shape(self, x: Tensor) -> torch.Size:
        if x.dim() != 3 or x.shape[2] != self.h:
            raise ValueError(f"x must be [s, b, h] with h={self.h}, got shape {list(x.shape)}")
        return x.shape

    def _layer(self, x: Tensor) -> Tensor:
        q, k, v = self._heads(self.norm1(x))
        selective = self.recompute == "selective"
        context = _checkpointed(self._core, q, k, v) if selective else self._core(q, k, v)
        x = x + self._dropout(self.projection(context))
        return x + self._dropout(self.down(F.gelu(self.up(self.norm2(x)))))

    def _heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return q, k and v, each [b a, s, h/a]: views of one tensor if b is 1, else copies in its place."""
        s, b, h = x.shape
        by_head = (part.view(s, b, self.a, h // self.a) for part in self.qkv(x).chunk(3, dim=-1))
        return tuple(part.permute(1, 2, 0, 3).reshape(b * self.a, s, h // self.a) for part in by_head)

    def _core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._context(self._dropout(self._scores(q, k).softmax(dim=-1)), v)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        # Scaling the scores rather than q: a scaled q would be one more tensor to save.
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.h // self.a)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        if self.causal == "masked_fill":
            return scores.masked_fill(future, -math.inf)
        return scores + torch.zeros_like(future, dtype=scores.dtype).masked_fill(future, -math.inf)

    def _context(self, weights: Tensor, v: Tensor) -> Tensor:
        by_head = (weights @ v).view(-1, self.a, *v.shape[1:])
        # Contiguous, also where reshape could do without a copy: else the linear map would save its own.
        return by_head.permute(2, 0, 1, 3).reshape(v.shape[1], -1, self.h).contiguous()

    @property
    def _drops(self) -> bool:
        return self.training and self.p > 0

    def _dropout(self, x: Tensor) -> Tensor:
        if self.dropout_kind == "torch":
            return F.dropout(x, self.p, self.training)
        return self._drop(x, self._draw(x.shape, x.device)) if self._drops else x

    def _draw(self, shape: Sequence[int], device: torch.device) -> Tensor:
        return torch.rand(shape, dtype=torch.float32, device=device) >= self.p

    def _drop(self, x: Tensor, *kept: Tensor) -> Tensor:
        return x * kept[0] / (1 - self.p) if kept else x


def _checkpointed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    result: Tensor = checkpoint(function, *inputs, use_reentrant=False)
    return result
