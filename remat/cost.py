"""What each operation of a layer costs: by FLOPs, by roofline, or as measured.

A cost is a mapping from the name of every operation to a number, for one GPU and one forward. What a choice
costs is a sum over it. Collectives between GPUs are no operations of a layer, so they are left out of all
times here and of everything that is built on them.
"""

from __future__ import annotations

from collections.abc import Mapping

from remat import _check
from remat.hardware import Device
from remat.layer import Layer


def flops(layer: Layer, *, elementwise: bool = False) -> dict[str, float]:
    """Count the FLOPs of each operation.

    Args:
        layer: the description.
        elementwise: whether to count elementwise work too; matrix products (and convolutions) alone if not.

    Returns:
        FLOPs by name of operation, in order of execution, on one GPU.

    Source: Korthikanti et al. 2023, appendix A, which counts matrix products alone.

    >>> from remat.gpt import gpt_layer
    >>> costs = flops(gpt_layer(s=2048, b=1, h=12288, a=96))
    >>> costs["query_key"] / forward_cost(costs), costs["softmax"]
    (0.01351..., 0)
    """
    return {op.name: op.flops + (op.element_flops if elementwise else 0) for op in layer.operations}


def roofline(layer: Layer, device: Device, *, residual_traffic: bool = True) -> dict[str, float]:
    """Estimate the seconds of each operation: as long as its FLOPs or its bytes take, whichever is longer.

    The FLOPs are those of matrix products: elementwise work is bound by its bytes on any device of the
    catalog. Nothing is said about latencies, caches or how near to the peaks a kernel comes.

    Args:
        layer: the description.
        device: what it runs on, with its two peaks.
        residual_traffic: whether applying dropout and adding the residual (operations of kind "residual")
            takes time; some counts leave it out.

    Returns:
        Seconds by name of operation, in order of execution, on one GPU; collectives are left out.

    Raises:
        ValueError: if device is not a Device.

    Source: Williams et al. 2009 (the roofline model).

    >>> from remat.gpt import gpt_layer
    >>> from remat.hardware import device
    >>> layer = gpt_layer(s=2048, b=1, h=12288, a=96, t=8, sequence_parallel=True)
    >>> costs = roofline(layer, device("H100"))
    >>> print(f"{1e3 * forward_cost(costs):.2f} ms, of which softmax {1e6 * costs['softmax']:.0f} µs")
    1.19 ms, of which softmax 60 µs
    """
    if not isinstance(device, Device):
        raise ValueError(f"device must be a Device such as remat.hardware.device('H100'), got {device!r}")
    return {
        op.name: 0.0
        if op.kind == "residual" and not residual_traffic
        else max(op.flops / device.flops, op.moved / device.bandwidth)
        for op in layer.operations
    }


def measured(layer: Layer, seconds: Mapping[str, float]) -> dict[str, float]:
    """Take the costs of a layer's operations from a table of measured seconds, and check that it is complete.

    Args:
        layer: the description.
        seconds: seconds by name of operation.

    Returns:
        The same, in order of execution.

    Raises:
        ValueError: if an operation of the layer is missing, a name is not one of its operations, or a number
            is negative or not finite.

    >>> from remat.convnet import mlp_net
    >>> measured(mlp_net(layers=1, width=8, batch=1), {"sigmoid1": 3e-6, "linear1": 9e-6})
    {'linear1': 9e-06, 'sigmoid1': 3e-06}
    """
    return complete("seconds", layer, seconds)


def complete(argument: str, layer: Layer, costs: Mapping[str, float]) -> dict[str, float]:
    """Return costs in order of execution, or refuse them unless they are there for every operation.

    Raises:
        ValueError: naming the argument, if an operation of the layer is missing, a name is not one of its
            operations, or a number is negative or not finite.

    >>> from remat.convnet import mlp_net
    >>> complete("costs", mlp_net(layers=1, width=8, batch=1), {"linear1": 9})
    Traceback (most recent call last):
        ...
    ValueError: costs must name every operation of 'multilayer perceptron', got none for ['sigmoid1']
    """
    if not isinstance(costs, Mapping):
        raise ValueError(f"{argument} must map names of operations to numbers, got {costs!r}")
    names = [op.name for op in layer.operations]
    if missing := [name for name in names if name not in costs]:
        raise ValueError(f"{argument} must name every operation of {layer.name!r}, got none for {missing}")
    for name in costs:
        _check.one_of(argument, name, names)
    return {name: _check.amount(f"{argument}[{name!r}]", costs[name]) for name in names}


def forward_cost(costs: Mapping[str, float]) -> float:
    """Add up what one forward costs; a backward is taken to cost twice that.

    >>> forward_cost({"linear1": 9, "sigmoid1": 3})
    12
    """
    return sum(costs.values())
