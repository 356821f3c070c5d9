"""The segment model: what none, full and selective recompute keep and cost, by three short formulas.

A back-of-the-envelope count for L equal layers of A bytes with a checkpoint every k. It says nothing about
gradients, scratch or the allocator, and takes a checkpoint to be as large as a whole layer unless it is told
otherwise; ``replay`` counts the same plans tensor by tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat import _check
from remat.chain import Chain
from remat.choice import RECOMPUTE, kept, option
from remat.cost import flops
from remat.gpt import ATTENTION_CORE
from remat.layer import Layer


@dataclass(frozen=True)
class Shares:
    """What the model asks of a layer.

    Attributes:
        A: bytes that plain training keeps of one layer.
        m: the attention core's share of them, from 0 to 1.
        f: the share of the forward's FLOPs in matrix products that read or make the core, from 0 to 1.
        checkpoint: bytes of the layer's input, all that full recompute must keep.
    """

    A: float
    m: float
    f: float
    checkpoint: float


def shares(layer: Layer) -> Shares:
    """Read A, m and f off the description of a layer.

    Args:
        layer: the description, as ``remat.gpt.gpt_layer`` builds it.

    Returns:
        Bytes and shares on one GPU. A layer without an attention core has m = f = 0.

    >>> from remat.gpt import gpt_layer
    >>> found = shares(gpt_layer(s=2048, b=1, h=4096, a=32))
    >>> found.A, f"{found.m:.2%}", f"{found.f:.2%}"
    (956301312, '70.18%', '7.69%')
    """
    core = {tensor.name for tensor in layer.tensors if tensor.part == ATTENTION_CORE}
    costs = flops(layer)
    again = sum(costs[op.name] for op in layer.operations if core.intersection(op.inputs + op.outputs))
    saved = layer.bytes_of(tensor.name for tensor in layer.saved if tensor.name in core)
    return Shares(
        A=layer.saved_bytes,
        m=saved / layer.saved_bytes if layer.saved_bytes else 0.0,
        f=again / layer.flops if layer.flops else 0.0,
        checkpoint=layer[layer.input].bytes,
    )


@dataclass(frozen=True)
class Estimate:
    """What the segment model says of one mode.

    Attributes:
        mode: "none", "selective" or "full".
        kept: bytes that stay from forward to backward.
        replayed: bytes of the segment that is being replayed.
        plain: bytes if everything is kept.
        extra_forward: what is computed again, in forwards of the whole model.
    """

    mode: str
    kept: float
    replayed: float
    plain: float
    extra_forward: float

    @property
    def peak(self) -> float:
        """Bytes at the fullest moment: all that is kept, and one segment."""
        return self.kept + self.replayed

    @property
    def saving(self) -> float:
        """The share of the plain bytes that is saved; negative if more is needed."""
        return 1 - self.peak / self.plain

    @property
    def extra_compute(self) -> float:
        """What is computed again, as a share of forward and backward; a backward counts as two forwards."""
        return self.extra_forward / 3


def segment_model(
    mode: str, *, L: int, k: int, A: float, m: float, f: float, checkpoint: float | None = None
) -> Estimate:
    """Estimate memory and extra compute of L equal layers with a checkpoint every k.

    With s = ⌈L/k⌉ segments, "none" takes L·A bytes, "full" (s + k)·A and one more forward, and "selective",
    which replays only the attention core, [L(1 − m) + (s + k)·m]·A and f of a forward.

    Args:
        mode: "none", "selective" or "full".
        L: layers.
        k: layers per checkpoint, 1 to L.
        A: bytes that a layer keeps, above 0.
        m: the core's share of them, 0 to 1.
        f: the core's share of the forward's FLOPs, 0 to 1.
        checkpoint: bytes that a segment leaves for its replay. As much as one layer replays if left out: A
            under full, m·A under selective recompute, as if a layer were one tensor. A transformer layer
            leaves its input, and its core nothing: queries, keys and values are kept anyway.

    Returns:
        The estimate.

    Raises:
        ValueError: if mode is another word, or a number is not as said above.

    Source: Chen et al. 2016, section 4.1 (the sum of two terms); Korthikanti et al. 2023 (the core).

    >>> found = segment_model("full", L=32, k=4, A=912e6, m=40 / 57, f=1 / 13)
    >>> f"{found.peak / 1e9:.1f} GB, {found.saving:.1%} saved, {found.extra_compute:.1%} more compute"
    '10.9 GB, 62.5% saved, 33.3% more compute'
    >>> found = segment_model("selective", L=32, k=4, A=912e6, m=40 / 57, f=1 / 13)
    >>> f"{found.peak / 1e9:.1f} GB, {found.saving:.1%} saved, {found.extra_compute:.1%} more compute"
    '16.4 GB, 43.9% saved, 2.6% more compute'
    """
    _check.one_of("mode", mode, RECOMPUTE)
    L = _check.count("L", L)
    k = _check.count("k", k, most=L)
    A = _check.amount("A", A, positive=True)
    m, f = _share("m", m), _share("f", f)
    if mode == "none":
        return Estimate(mode, kept=L * A, replayed=0, plain=L * A, extra_forward=0)
    part = A if mode == "full" else m * A  # of a layer, what is dropped and replayed
    left = part if checkpoint is None else _check.amount("checkpoint", checkpoint)
    segments = -(-L // k)
    return Estimate(
        mode,
        kept=L * (A - part) + segments * left,
        replayed=k * part,
        plain=L * A,
        extra_forward=1 if mode == "full" else f,
    )


def _share(name: str, value: float) -> float:
    if _check.amount(name, value) > 1:
        raise ValueError(f"{name} must be a share from 0 to 1, got {value!r}")
    return value


def chain_of_layers(layer: Layer, *, L: int, recompute: str = "none") -> Chain:
    """Put L equal layers in a row, for replay to count what the formulas estimate.

    Args:
        layer: the description of one.
        L: how many.
        recompute: what each layer does inside: "none", "selective" or "full".

    Returns:
        A chain that needs tapes, as PyTorch does: an output is the next layer's input, a tape holds the rest
        of what a layer keeps. Costs are FLOPs of matrix products.

    Raises:
        ValueError: if L is not a positive whole number, or recompute is another word.

    >>> from remat.gpt import gpt_layer
    >>> from remat.replay import replay
    >>> from remat.schedules import uniform
    >>> layer = gpt_layer(s=2048, b=1, h=4096, a=32)
    >>> line = chain_of_layers(layer, L=32)
    >>> f"{replay(line, uniform(line, 4)).peak / 1e9:.1f} GB"     # the formula above says 11.5 GB
    '4.1 GB'
    """
    L = _check.count("L", L)
    way = option(layer, flops(layer), kept=kept(layer, recompute=recompute), name=recompute)
    return Chain((way.stage(layer[layer.output].bytes),) * L, input=layer[layer.input].bytes, needs="tape")
