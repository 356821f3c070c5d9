"""One training step (or one inference) of a layer as a program: what each step reads and writes.

Every value is written once. Weights and their gradients are left out: they live in the model state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from remat.layer import Layer, Operation, Tensor

Role = Literal["result", "copy", "gradient"]
Phase = Literal["forward", "loss", "recompute", "backward", "accumulate"]


@dataclass(frozen=True, slots=True)
class Value:
    """Something that needs memory: a result of forward, a recomputed copy of one, or a gradient.

    Attributes:
        name: unique within the program: "x", its copy "x'", its gradient "∂x".
        tensor: the tensor of the layer that it is, copies, or is the gradient of.
        role: "result", "copy" or "gradient".
        bytes: its size.
    """

    name: str
    tensor: str
    role: Role
    bytes: float


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a program.

    Attributes:
        phase: what is done; "accumulate" adds two parts of one gradient.
        operation: the operation done, done again or differentiated; None for "loss" and "accumulate".
        reads: the values it needs, gradients first.
        writes: the values it makes.
    """

    phase: Phase
    operation: Operation | None
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]

    @property
    def name(self) -> str:
        """What to call it in a table, such as "backward relu1"."""
        return self.phase if self.operation is None else f"{self.phase} {self.operation.name}"


@dataclass(frozen=True)
class Program:
    """Steps in order, and what outlives them.

    Attributes:
        layer: the layer it runs.
        steps: in order.
        handed_on: values that are still wanted after the last step.
    """

    layer: Layer
    steps: tuple[Step, ...]
    handed_on: tuple[Value, ...]

    @property
    def input(self) -> Value:
        """The layer's input, which the caller owns."""
        return result(self.layer[self.layer.input])

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """Every value, the input first, then in the order in which they are written."""
        return (self.input, *(value for step in self.steps for value in step.writes))

    @cached_property
    def kept(self) -> tuple[Value, ...]:
        """The results of forward that are read after it: what is held from forward to backward."""
        late = [step for step in self.steps if step.phase in ("backward", "recompute")]
        read = {value for step in late for value in step.reads}
        return tuple(value for value in self.values if value.role == "result" and value in read)

    @property
    def kept_bytes(self) -> float:
        """Bytes held from forward to backward."""
        return sum(value.bytes for value in self.kept)

    @property
    def recomputed(self) -> tuple[Operation, ...]:
        """The operations done again, in order, one entry each time."""
        return tuple(
            step.operation for step in self.steps if step.phase == "recompute" and step.operation is not None
        )

    @property
    def recomputed_flops(self) -> float:
        """FLOPs of the matrix products (and convolutions) done again."""
        return sum(op.flops for op in self.recomputed)


def result(tensor: Tensor) -> Value:
    """Return the value that forward's first run of a tensor's operation makes."""
    return Value(tensor.name, tensor.name, "result", tensor.bytes)


def _forward(layer: Layer) -> list[Step]:
    def values(names: tuple[str, ...]) -> tuple[Value, ...]:
        return tuple(result(layer[name]) for name in dict.fromkeys(names))

    return [Step("forward", op, values(op.inputs), values(op.outputs)) for op in layer.operations]


def inference(layer: Layer) -> Program:
    """Return the steps of forward alone, in which no result waits for a backward.

    >>> from remat.convnet import mlp_net
    >>> [step.name for step in inference(mlp_net(layers=1, width=8, batch=1)).steps]
    ['forward linear1', 'forward sigmoid1']
    """
    return Program(layer, tuple(_forward(layer)), (result(layer[layer.output]),))


def training(layer: Layer, *, input_gradient: bool = True) -> Program:
    """Return the steps of forward, loss and backward, with nothing recomputed.

    The backward of an operation reads the gradients of its outputs and what ``backward_needs`` says, and
    writes the gradients of its inputs. Where several operations read one tensor, each backward writes a
    part of its gradient and an "accumulate" step follows from the second part on, as in PyTorch's engine.
    What does not depend on the layer's input (a dropout mask) has no gradient. An operation whose inputs
    need none still has its backward, which its weights are waiting for.

    Args:
        layer: the description.
        input_gradient: whether the gradient of the layer's input is wanted. A layer inside a model needs
            it; the first layer, fed with data, does not.

    Raises:
        ValueError: if the layer has tensors whose names collide with those of gradients.

    Source: Chen et al. 2016, section 3 (the gradient graph).

    >>> from remat.convnet import mlp_net
    >>> program = training(mlp_net(layers=1, width=8, batch=1))
    >>> for step in program.steps:
    ...     print(step.name, [value.name for value in step.reads], [value.name for value in step.writes])
    forward linear1 ['x'] ['linear1']
    forward sigmoid1 ['linear1'] ['sigmoid1']
    loss ['sigmoid1'] ['∂sigmoid1']
    backward sigmoid1 ['∂sigmoid1', 'sigmoid1'] ['∂linear1']
    backward linear1 ['∂linear1', 'x'] ['∂x']
    """
    wanted = {layer.input}  # tensors that can have a gradient
    for op in layer.operations:
        if wanted.intersection(op.inputs):
            wanted.update(op.outputs)
    if not input_gradient:
        wanted.discard(layer.input)

    parts = Counter({layer.output: 1})  # how many parts each gradient has; the loss gives the first
    differentiated: list[Operation] = []
    for op in reversed(layer.operations):
        if any(parts[name] for name in op.outputs):
            differentiated.append(op)
            parts.update(wanted.intersection(op.inputs))

    steps = _forward(layer)
    sums: dict[str, Value] = {}  # the gradient of each tensor, as far as it is summed
    seen: Counter[str] = Counter()

    def gradient(name: str, tensor: str) -> Value:
        if name in made:
            raise ValueError(f"tensors must not be named like gradients, got {name!r}")
        return Value(name, tensor, "gradient", layer[tensor].bytes)

    def write(phase: Phase, op: Operation | None, reads: tuple[Value, ...], targets: list[str]) -> None:
        """Add a step that writes a part of the gradient of each target, and the sums that this allows."""
        source = "loss" if op is None else op.name
        partial = [gradient(f"∂{t}" if parts[t] == 1 else f"∂{t} from {source}", t) for t in targets]
        steps.append(Step(phase, op, reads, tuple(partial)))
        for tensor, part in zip(targets, partial, strict=True):
            seen[tensor] += 1
            total = part
            if tensor in sums:
                final = seen[tensor] == parts[tensor]
                total = gradient(f"∂{tensor}" if final else f"∂{tensor} up to {source}", tensor)
                steps.append(Step("accumulate", None, (sums[tensor], part), (total,)))
            sums[tensor] = total

    made = {tensor.name for tensor in layer.tensors}
    write("loss", None, (result(layer[layer.output]),), [layer.output])
    for op in differentiated:
        reads = [sums[name] for name in op.outputs if name in sums]
        reads += [result(layer[name]) for name in dict.fromkeys(op.backward_needs)]
        write("backward", op, tuple(reads), [name for name in dict.fromkeys(op.inputs) if name in wanted])
    handed_on = (sums[layer.input],) if input_gradient and layer.input in sums else ()
    return Program(layer, tuple(steps), handed_on)
