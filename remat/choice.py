"""Keep, recompute or offload, tensor by tensor, inside a layer: one choice, and what it lowers to.

``remat.choices`` looks at all choices at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from remat import _check
from remat.chain import Option
from remat.cost import complete, forward_cost
from remat.gpt import ATTENTION_CORE
from remat.hardware import Link
from remat.layer import Layer
from remat.mirror import mirror
from remat.sharing import lifetimes, live_bytes
from remat.steps import Program

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


def program(layer: Layer, *, kept: Iterable[str], input_gradient: bool = True) -> Program:
    """Write a choice out as a training step: what is not kept is recomputed just before it is first needed.

    Args:
        layer: the description.
        kept: names of the tensors held from forward to backward; the layer's input always is.
        input_gradient: whether the gradient of the layer's input is wanted.

    Returns:
        The steps. ``recomputed`` lists what is done again: each operation at most once, and none that
        backward can do without, which is why full recompute here is less than a whole forward.

    Raises:
        ValueError: if a name is not that of a tensor that backward needs.

    Source: Korthikanti et al. 2023, section 5; as a property of the graph, Chen et al. 2016, section 4.2.

    >>> from remat.gpt import gpt_layer
    >>> layer = gpt_layer(s=8, b=1, h=16, a=2)
    >>> [op.name for op in program(layer, kept=kept(layer, recompute="selective")).recomputed]
    ['query_key', 'softmax', 'draw_attention_mask', 'attention_dropout']
    """
    held = {layer.input, *_saved("kept", layer, kept)}
    counts = {op.name: int(not held.issuperset(op.outputs)) for op in layer.operations}
    return mirror(layer, counts, keep=held, input_gradient=input_gradient)


def option(
    layer: Layer,
    costs: Mapping[str, float],
    *,
    kept: Iterable[str],
    offloaded: Iterable[str] = (),
    name: str = "",
) -> Option:
    """Lower a choice inside a layer to a way to run the layer as a stage of a chain.

    Args:
        layer: the description.
        costs: seconds of every operation.
        kept: names of the tensors that stay on the device.
        offloaded: names of the tensors that wait on the host. They are taken to be back when the backward
            begins, so the copies' buffers are part of its scratch; when they travel is the clock's matter.
        name: what to call it in a table.

    Returns:
        The option. ``saved`` leaves out the layer's input and output, which the chain counts as outputs of
        stages. ``backward_s`` is two forwards and the recompute; collectives are left out.
        ``scratch_backward`` is the most that recompute and backward, in order, have alive at once, beyond
        what the chain counts: recomputed and fetched tensors, and gradients inside the layer.

    Raises:
        ValueError: if a name is not that of a tensor that backward needs, one is both kept and offloaded, or
            the layer's input or output is offloaded (in a chain, offload the output of the stage instead);
            if costs is not complete.

    >>> from remat.cost import roofline
    >>> from remat.gpt import gpt_layer
    >>> from remat.hardware import device
    >>> layer = gpt_layer(s=2048, b=1, h=12288, a=96)
    >>> costs = roofline(layer, device("H100"))
    >>> for word in RECOMPUTE:
    ...     way = option(layer, costs, kept=kept(layer, recompute=word))
    ...     print(f"{word}: {way.saved / layer.unit:g} saved, {way.scratch_backward / layer.unit:g} scratch")
    none: 112 saved, 16 scratch
    selective: 32 saved, 96 scratch
    full: 0 saved, 128 scratch
    """
    stay, away = _saved("kept", layer, kept), _saved("offloaded", layer, offloaded)
    if both := [name for name in stay if name in away]:
        raise ValueError(f"offloaded must not name what is kept, got {both} in both")
    ends = {layer.input, layer.output}
    if chained := [name for name in away if name in ends]:
        raise ValueError(
            f"offloaded must not name the layer's input or output, got {chained}: "
            "in a chain these are outputs of stages, to be offloaded with Offload(Output(i))"
        )
    seconds = complete("costs", layer, costs)
    steps = program(layer, kept=(*stay, *away))
    forward_s = forward_cost(seconds)
    saved = layer.bytes_of(set(stay) - ends)
    counted = saved + layer.bytes_of(ends) + layer[layer.output].bytes  # the last is the gradient received
    return Option(
        saved=saved,
        copied=layer.bytes_of(away),
        forward_s=forward_s,
        backward_s=2 * forward_s + sum(seconds[op.name] for op in steps.recomputed),
        scratch_backward=max(0, _fullest_backward(steps) - counted),
        name=name,
    )


def steady_wait(copied: Any, forward_s: float, recompute_s: Any, *, link: Link) -> Any:
    """Compute how long a layer waits for its copies, in the steady state of many equal layers.

    Two streams work in order, compute and copies, with two layers' worth of buffers: while one layer's
    tensors leave, the next layer's forward runs; while they come back, the recompute and the backward of the
    layer above run. Whatever of a copy is longer than that is waited for. A step of few layers waits less:
    what its last layers keep need not be copied. Collectives are left out.

    Args:
        copied: bytes that a layer sends to the host in forward and gets back in backward; a number, or a
            numpy array for many choices.
        forward_s: seconds of one forward.
        recompute_s: seconds of its recompute, which comes with the backward; likewise.
        link: between device and host, the same in both directions.

    Returns:
        Seconds: with c for one copy, F for forward and R for recompute, max(0, c − F) + max(0, c − 2F − R).

    >>> from remat.hardware import link
    >>> wait = steady_wait(75e6, 0.001, 0.0005, link=link("PCIe 4"))  # c is 3 ms
    >>> f"{1e3 * wait:.1f} ms"
    '2.5 ms'
    """
    copy_s = copied / link.bandwidth
    late_out, late_back = copy_s - forward_s, copy_s - 2 * forward_s - recompute_s
    return (late_out + abs(late_out)) / 2 + (late_back + abs(late_back)) / 2  # positive parts, arrays too


def _fullest_backward(steps: Program) -> float:
    """Most bytes alive in any step after the loss, with the layer's output there all along, as in a chain."""
    layer = steps.layer
    loss = next(index for index, step in enumerate(steps.steps) if step.phase == "loss")
    last = max(lifetimes(steps)[layer.output].last, loss)
    output, live = layer[layer.output].bytes, live_bytes(steps)
    return max(
        (live[i] + (output if i > last else 0) for i in range(loss + 1, len(live))), default=live[loss]
    )


def _saved(argument: str, layer: Layer, names: Iterable[str]) -> tuple[str, ...]:
    """Check that names are those of tensors that a choice is about."""
    known = list(dict.fromkeys((layer.input, *(tensor.name for tensor in layer.saved))))
    if isinstance(names, str):
        raise ValueError(f"{argument} must be names of tensors, got the string {names!r}")
    return tuple(_check.one_of(argument, name, known) for name in names)
