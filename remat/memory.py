"""A whole model on one GPU: the model state, and the activations a pipeline stage holds at its fullest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from remat import _check
from remat.layer import Layer

# Mixed-precision Adam (Rajbhandari et al. 2020, ZeRO, section 3.1), bytes per parameter.
WEIGHT_BYTES = 2  # 16-bit weights
GRADIENT_BYTES = 2  # 16-bit gradients
OPTIMIZER_BYTES = 12  # 32-bit weights, momentum and variance


@dataclass(frozen=True)
class ModelState:
    """The model state on one GPU, in bytes."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Weights, gradients and optimizer state together, bytes."""
        return self.weights + self.gradients + self.optimizer


def model_state(parameters: int, *, t: int = 1, p: int = 1, data: int = 1, zero: int = 0) -> ModelState:
    """Count the model state on one GPU: 16 bytes a parameter, split over the groups that split it.

    Args:
        parameters: of the whole model.
        t: tensor-parallel size; splits everything.
        p: pipeline size; splits everything.
        data: data-parallel size; splits what the ZeRO stage says.
        zero: ZeRO stage; 0 splits nothing over the data-parallel group, 1 the optimizer state, 2 the
            gradients too, 3 the weights too.

    Returns:
        Bytes of weights, gradients and optimizer state.

    Raises:
        ValueError: if a size is not a positive whole number, or zero is not 0 to 3.

    Source: Rajbhandari et al. 2020 (ZeRO), sections 3.1 and 5.

    >>> round(model_state(174_000_000_000, t=8, p=8).total / 1e9, 1)
    43.5
    >>> round(model_state(7_500_000_000, data=64, zero=3).total / 1e9, 1)      # the paper's figure 1
    1.9
    """
    parameters = _check.count("parameters", parameters)
    t, p, data = _check.count("t", t), _check.count("p", p), _check.count("data", data)
    zero = _check.count("zero", zero, least=0, most=3)
    here = parameters / (t * p)
    return ModelState(
        weights=WEIGHT_BYTES * here / (data if zero >= 3 else 1),
        gradients=GRADIENT_BYTES * here / (data if zero >= 2 else 1),
        optimizer=OPTIMIZER_BYTES * here / (data if zero >= 1 else 1),
    )


def micro_batches_in_flight(p: int, *, stage: int = 0) -> int:
    """Count the micro-batches whose activations a pipeline stage holds at once, one-forward-one-backward.

    Args:
        p: pipeline size.
        stage: 0 for the first stage, p − 1 for the last.

    Raises:
        ValueError: if p is not positive or stage is not in 0..p−1.

    Source: Korthikanti et al. 2023, section 4.2.3.

    >>> micro_batches_in_flight(8), micro_batches_in_flight(8, stage=7)
    (8, 1)
    """
    p = _check.count("p", p)
    stage = _check.count("stage", stage, least=0, most=p - 1)
    return p - stage


def stage_activations(
    layer: Layer, *, L: int, p: int = 1, stage: int = 0, kept: Iterable[str] | None = None
) -> float:
    """Count the activations that a pipeline stage holds at its fullest, on one GPU.

    Args:
        layer: the description of one layer (with its tensor and sequence parallelism).
        L: layers of the whole model.
        p: pipeline size; must divide L.
        stage: 0 for the first stage, which is the fullest.
        kept: the tensors that each layer keeps; all that backward needs if left out.

    Returns:
        Bytes: layers of a stage, times micro-batches in flight, times what a layer keeps. The embedding, the
        logits and the transients of the layer at work are not counted.

    Raises:
        ValueError: if a size is not a positive whole number, p does not divide L, or a name is unknown.

    Source: Korthikanti et al. 2023, section 4.2.3.

    >>> from remat.gpt import gpt_layer
    >>> layer = gpt_layer(s=2048, b=1, h=12288, a=96, t=8)
    >>> round(stage_activations(layer, L=96, p=8) / 1e9, 1)
    55.6
    """
    L, p = _check.count("L", L), _check.count("p", p)
    _check.divides("p", p, "L", L)
    per_layer = layer.saved_bytes if kept is None else layer.bytes_of(kept)
    return per_layer * (L // p) * micro_batches_in_flight(p, stage=stage)
