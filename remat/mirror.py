"""Which results may be dropped, as a property of the graph: the mirror count.

Follows Chen et al. 2016, section 4.2 and algorithm 2. A count m(v) for each operation says how often it may
be done again: 0 keeps its results from forward to backward; 1 drops them and makes one copy for backward.
The framework builds the gradient graph on the copies; nobody writes a training loop by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from remat import _check
from remat.layer import Layer
from remat.steps import Program, Step, Value, result, training

CHEAP = ("batch_norm", "relu", "sigmoid", "tanh", "max_pool")  # section 4.2: drop these, keep convolutions


def drop_kinds(
    layer: Layer, kinds: Iterable[str] | None = None, *, part: str | None = None
) -> dict[str, int]:
    """Count 1 for every operation of some kinds, and for what plain training does not keep anyway.

    The second half matters: a copy is made from what its operation reads. Drop a softmax alone, and the
    scores before it, which plain training throws away, must be kept in its place.

    Args:
        layer: the description.
        kinds: kinds of operations; batch norm, activation and pooling (``CHEAP``) if left out.
        part: only operations that make tensors of this part of the layer; all if left out.

    Returns:
        The mirror count of every operation, by name, for ``mirror``.

    Raises:
        ValueError: if the layer has no operation of a kind, or no tensor of the part.

    Source: Chen et al. 2016, section 4.2; on a GPT layer, Korthikanti et al. 2023, section 5.

    >>> from remat.convnet import conv_net
    >>> drop_kinds(conv_net(blocks=1, channels=8, height=4, width=4, batch=1))
    {'conv1': 0, 'bn1': 1, 'relu1': 1}
    """
    there = list(dict.fromkeys(op.kind for op in layer.operations))
    chosen = [kind for kind in CHEAP if kind in there] if kinds is None else list(kinds)
    for kind in chosen:
        _check.one_of("kinds", kind, there)
    if part is not None:
        _check.one_of("part", part, list(dict.fromkeys(tensor.part for tensor in layer.tensors)))
    saved = {tensor.name for tensor in layer.saved}
    counts = {}
    for op in layer.operations:
        cheap = op.kind in chosen and part in (None, *(layer[name].part for name in op.outputs))
        counts[op.name] = int(cheap or saved.isdisjoint(op.outputs))
    return counts


def mirror(
    layer: Layer, counts: Mapping[str, int], *, keep: Iterable[str] = (), input_gradient: bool = True
) -> Program:
    """Build the training step in which dropped results are recomputed just before they are first needed.

    Level k of the algorithm copies, in forward order, each operation with a count of k or more; a copy
    reads the newest copies of its inputs. Backward reads the newest copy of everything. A copy that
    nothing reads is left out, so an operation is done again at most as often as its count says. Counts
    above 1 give nested segments: see the second example.

    Args:
        layer: the description.
        counts: how often each operation may be done again, by name; 0 for those not named.
        keep: tensors that stay from forward although their operation is done again, for another result of it.
        input_gradient: whether the gradient of the layer's input is wanted.

    Returns:
        The program: ``kept``, ``kept_bytes``, ``recomputed`` and ``recomputed_flops`` say what it costs,
        ``remat.sharing.share`` what memory it needs.

    Raises:
        ValueError: if counts names an operation that the layer does not have, a count is not a whole
            number of 0 or more, or keep names a tensor that the layer does not have.

    A recomputed mask is the same mask: the generator's state is taken to be restored.

    Source: Chen et al. 2016, algorithm 2.

    >>> from remat.convnet import mlp_net
    >>> net = mlp_net(layers=2, width=8, batch=1)
    >>> program = mirror(net, {"linear1": 1, "sigmoid1": 1})
    >>> [step.name for step in program.steps[4:]]
    ['loss', 'backward sigmoid2', 'recompute linear1', 'recompute sigmoid1', 'backward linear2',
     'backward sigmoid1', 'backward linear1']
    >>> [value.name for value in program.kept]
    ['x', 'sigmoid2']
    >>> nested = mirror(net, {"linear1": 2, "sigmoid1": 2, "linear2": 1, "sigmoid2": 1})
    >>> [op.name for op in nested.recomputed]               # the first layer twice, and one input kept
    ['linear1', 'sigmoid1', 'linear2', 'sigmoid2', 'linear1', 'sigmoid1']
    """
    names = [op.name for op in layer.operations]
    for name, count in counts.items():
        _check.one_of("counts", name, names)
        _check.count(f"the count of {name!r}", count, least=0)
    stays = {layer[name].name for name in keep}

    newest = {tensor.name: result(tensor) for tensor in layer.tensors}  # a[v] of the paper
    taken = set(newest)
    maker: dict[Value, Step] = {}
    for level in range(1, max(counts.values(), default=0) + 1):
        for op in layer.operations:
            if level > counts.get(op.name, 0):
                continue
            reads = tuple(newest[name] for name in dict.fromkeys(op.inputs))
            copies = tuple(Value(out + "'" * level, out, "copy", layer[out].bytes) for out in op.outputs)
            if clash := taken.intersection(copy.name for copy in copies):
                raise ValueError(f"tensors must not be named like copies, got {sorted(clash)}")
            step = Step("recompute", op, reads, copies)
            maker.update(dict.fromkeys(copies, step))
            newest.update({copy.tensor: copy for copy in copies if copy.tensor not in stays})

    plain = training(layer, input_gradient=input_gradient)
    steps: list[Step] = []
    there: set[Value] = {plain.input}

    def run(step: Step) -> None:
        """Add a step, and before it the copies that it reads, and those that they read, if not there."""
        pending = [step]
        while pending:
            missing = [maker[v] for v in pending[-1].reads if v not in there]
            if missing:
                pending.append(missing[0])
            else:
                steps.append(pending.pop())
                there.update(steps[-1].writes)

    for step in plain.steps:
        if step.phase == "backward":
            step = replace(
                step, reads=tuple(newest[v.tensor] if v.role == "result" else v for v in step.reads)
            )
        run(step)
    return Program(layer, tuple(steps), plain.handed_on)
