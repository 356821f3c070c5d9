"""What to do with a model that does not fit: every strategy priced on one GPU, and the one to take.

A strategy is a choice inside each layer and a plan for the chain of layers. Its memory and its time are what
replay counts for that chain; there is no arithmetic of memory here beyond adding the model state.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat import _check
from remat.chain import Chain
from remat.choice import kept, option
from remat.cost import roofline
from remat.gpt import Shape, gpt_layer
from remat.hardware import Device, Link
from remat.layer import Layer
from remat.memory import ModelState, micro_batches_in_flight, model_state
from remat.offload import offload_all
from remat.replay import replay
from remat.schedules import store_all


@dataclass(frozen=True)
class Setting:
    """A model, how it is split over GPUs, and the GPU of one pipeline stage.

    Attributes:
        shape: of the model.
        s: sequence length, tokens.
        device: the GPU.
        link: its link to the host.
        b: micro-batch, sequences.
        t: tensor-parallel size.
        p: pipeline size; divides the layers.
        data: data-parallel size.
        zero: ZeRO stage, 0 to 3.
        stage: pipeline stage, 0 for the first and fullest.
        spare: bytes of the GPU to leave free (temporary buffers, embedding, logits, fragmentation).
    """

    shape: Shape
    s: int
    device: Device
    link: Link
    b: int = 1
    t: int = 1
    p: int = 1
    data: int = 1
    zero: int = 0
    stage: int = 0
    spare: float = 0

    def __post_init__(self) -> None:
        _check.count("p", self.p)
        _check.divides("p", self.p, "L", self.shape.L)
        _check.amount("spare", self.spare)
        micro_batches_in_flight(self.p, stage=self.stage)

    @property
    def state(self) -> ModelState:
        """The model state on this GPU, embeddings left out."""
        parameters = self.shape.L * self.layer(sequence_parallel=False).parameters
        return model_state(parameters, t=self.t, p=self.p, data=self.data, zero=self.zero)

    @property
    def layers(self) -> int:
        """Layers whose activations this stage holds at its fullest, each micro-batch in flight counted."""
        return self.shape.L // self.p * micro_batches_in_flight(self.p, stage=self.stage)

    def layer(self, *, sequence_parallel: bool) -> Layer:
        """Describe one layer of the model in this setting."""
        return gpt_layer(
            s=self.s, b=self.b, h=self.shape.h, a=self.shape.a, t=self.t, sequence_parallel=sequence_parallel
        )


@dataclass(frozen=True)
class Strategy:
    """What each layer keeps, and whether it leaves the GPU.

    Attributes:
        name: how tables call it.
        recompute: "none", "selective", "cheap" (selective, and whatever else is made without a matrix
            product, the residual stream apart) or "full".
        sequence_parallel: whether to split along the sequence what tensor parallelism repeats.
        offload: whether what is kept goes to the host, with two layers' buffers on the GPU.
    """

    name: str
    recompute: str
    sequence_parallel: bool = True
    offload: bool = False


# In the order of advice: first what costs no compute, then cheap recompute, then the link, last everything.
STRATEGIES: tuple[Strategy, ...] = (
    Strategy("keep all, tensor parallel", "none", sequence_parallel=False),
    Strategy("keep all", "none"),
    Strategy("selective", "selective"),
    Strategy("selective and cheap", "cheap"),
    Strategy("selective + offload", "selective", offload=True),
    Strategy("full + offload", "full", offload=True),
    Strategy("full recompute", "full"),
)


@dataclass(frozen=True)
class Price:
    """What a strategy needs and costs in a setting, as replay counts it.

    Attributes:
        strategy: the strategy.
        state: bytes of model state.
        kept: bytes held from forward to backward on the GPU, the buffers of an offload plan included.
        activations: the peak of the chain: what is kept, what is recomputed for a while, gradients.
        host: bytes on the host at its fullest.
        layer_s: seconds of one layer, forward and backward, waits included. Collectives are left out.
        overhead: layer_s over that of the same layer with nothing recomputed and no copies, minus 1.
        capacity: bytes of the GPU less the spare.
    """

    strategy: Strategy
    state: float
    kept: float
    activations: float
    host: float
    layer_s: float
    overhead: float
    capacity: float

    @property
    def total(self) -> float:
        """Bytes on the GPU at the fullest."""
        return self.state + self.activations

    @property
    def short(self) -> float:
        """Bytes missing; 0 if it fits."""
        return max(0, self.total - self.capacity)

    @property
    def fits(self) -> bool:
        """Whether it leaves the spare free."""
        return self.short == 0


def keeps(layer: Layer, strategy: Strategy) -> tuple[str, ...]:
    """Name the tensors that a layer keeps, here or on the host, under a strategy.

    >>> from remat.gpt import gpt_layer
    >>> layer = gpt_layer(s=2048, b=1, h=12288, a=96)
    >>> [layer.bytes_of(keeps(layer, strategy)) / layer.unit for strategy in STRATEGIES[1:4]]
    [114.0, 34.0, 20.0]
    """
    if strategy.recompute != "cheap":
        return kept(layer, recompute=strategy.recompute)
    remade = {
        name for op in layer.operations if op.kind in ("layer_norm", "gelu", "mask") for name in op.outputs
    }
    return tuple(name for name in kept(layer, recompute="selective") if name not in remade)


def price(setting: Setting, strategy: Strategy, *, residual_traffic: bool = False) -> Price:
    """Price a strategy: a chain of as many layers as the stage holds at its fullest, replayed.

    Args:
        setting: the model and the GPU.
        strategy: the strategy.
        residual_traffic: whether the roofline counts the passes of residual additions, see ``cost``.

    Raises:
        ValueError: if the setting's sizes do not divide as ``gpt_layer`` wants.

    Source: Korthikanti et al. 2023, section 4; the two-stream clock is ``replay``'s.

    >>> from remat.gpt import shape
    >>> from remat.hardware import device, link
    >>> setting = Setting(shape("GPT-3 175B"), s=2048, device=device("H100"), link=link("PCIe 5"), t=8, p=8)
    >>> priced = price(setting, STRATEGIES[2])
    >>> f"{priced.kept / 1e9:.1f} GB kept, {priced.overhead:.1%} more time"
    '10.3 GB kept, 5.2% more time'
    """
    layer = setting.layer(sequence_parallel=strategy.sequence_parallel)
    costs = roofline(layer, setting.device, residual_traffic=residual_traffic)
    names = keeps(layer, strategy)
    way = option(layer, costs, kept=names, name=strategy.name)
    line = Chain((way.stage(layer[layer.output].bytes),) * setting.layers, layer[layer.input].bytes, "tape")
    plan = offload_all(line) if strategy.offload else store_all(line)
    counted = replay(line, plan, link=setting.link)
    held = min(2, setting.layers) if strategy.offload else setting.layers
    layer_s = counted.time_s / setting.layers
    return Price(
        strategy=strategy,
        state=setting.state.total,
        kept=held * layer.bytes_of(names),
        activations=counted.peak,
        host=counted.host_peak,
        layer_s=layer_s,
        overhead=max(0.0, layer_s / (3 * way.forward_s) - 1),
        capacity=setting.device.memory - setting.spare,
    )


def prices(setting: Setting, *, residual_traffic: bool = False) -> tuple[Price, ...]:
    """Price every strategy, in the order of advice; arguments and errors as ``price``."""
    return tuple(price(setting, strategy, residual_traffic=residual_traffic) for strategy in STRATEGIES)


def advise(setting: Setting, *, residual_traffic: bool = False) -> Price:
    """Choose the fastest strategy that fits; of equally fast ones the first in the order of advice.

    Args:
        setting: the model and the GPU.
        residual_traffic: as ``price``.

    Raises:
        ValueError: if nothing fits; the message says how much is missing and what would fit.

    >>> from remat.gpt import shape
    >>> from remat.hardware import device, link
    >>> gpt3 = shape("GPT-3 175B")
    >>> h100, pcie = device("H100"), link("PCIe 5")
    >>> advise(Setting(gpt3, s=2048, device=h100, link=pcie, t=8, p=8, spare=10e9)).strategy.name
    'selective'
    >>> advise(Setting(gpt3, s=2048, device=h100, link=pcie, t=8, p=4, spare=10e9))
    Traceback (most recent call last):
        ...
    ValueError: device must hold more: ...
    """
    priced = prices(setting, residual_traffic=residual_traffic)
    fitting = [price for price in priced if price.fits]
    if not fitting:
        least = min(priced, key=lambda price: price.total)
        raise ValueError(
            f"device must hold more: {least.short / 1e9:.1f} GB short even with {least.strategy.name}; "
            f"the least that fits is {(least.total + setting.spare) / 1e9:.1f} GB, "
            f"{setting.spare / 1e9:.1f} of them spare, and {setting.device.name} has "
            f"{setting.device.memory / 1e9:.1f}. Split the model state further: a larger t or p, or a higher "
            "ZeRO stage"
        )
    return min(fitting, key=lambda price: price.layer_s)
