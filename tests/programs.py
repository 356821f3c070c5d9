"""What the tests of programs draw and how they run them: small numeric nets, executed in real buffers."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from remat.layer import Layer, Operation, Tensor
from remat.sharing import Assignment
from remat.steps import Program, Step

Array = npt.NDArray[np.float64]
WORD = 8  # bytes of one element

# Those of the kinds below that may write over what they read: a plain list, not the package's.
ELEMENT_BY_ELEMENT = {"sigmoid", "relu", "gelu", "residual", "dropout"}
NEEDS = {  # what each backward reads: inputs by "0" and "1", outputs by "y" and "z"
    "matmul": "0", "softmax": "y", "sigmoid": "y", "relu": "y", "gelu": "0", "residual": "",
    "product": "01", "rotate": "yz", "mask": "", "dropout": "1",
}  # fmt: skip


@dataclass(frozen=True)
class Net:
    """A layer, its weights, and what its input and its masks hold."""

    layer: Layer
    weights: dict[str, Array]
    constants: dict[str, Array]


@st.composite
def nets(draw: st.DrawFn, *, most: int = 9, equal: bool = False) -> Net:
    """A random graph of operations over vectors; all of one length if ``equal``."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lengths = st.just(2) if equal else st.integers(1, 4)
    length = {"x": draw(lengths)}
    masks: set[str] = set()
    operations: list[Operation] = []
    weights, constants = {}, {"x": random.normal(size=length["x"])}
    for i in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from(sorted(NEEDS)))
        source = draw(st.sampled_from([name for name in length if name not in masks]))
        size, inputs, outputs = length[source], (source,), (f"{kind}{i}",)
        like = [other for other in length if length[other] == size and other != source]
        if kind == "matmul":
            size = draw(lengths)
            weights[f"op{i}"] = random.normal(size=(size, length[source])) / 2
        elif kind == "mask":
            inputs, constants[outputs[0]] = (), random.integers(0, 2, size).astype(float)
            masks.add(outputs[0])
        elif kind == "rotate":
            outputs = (f"sine{i}", f"cosine{i}")
        elif kind == "dropout":
            if not (fitting := [name for name in like if name in masks]):
                continue
            inputs = (source, draw(st.sampled_from(fitting)))
        elif kind in ("residual", "product"):
            if not (fitting := [name for name in like if name not in masks]):
                continue
            inputs = (source, draw(st.sampled_from(fitting)))
        named = dict(zip("01", inputs, strict=False)) | dict(zip("yz", outputs, strict=False))
        needs = tuple(named[letter] for letter in NEEDS[kind])
        operations.append(Operation(f"op{i}", kind, inputs, outputs, needs, flops=i + 1))
        length.update(dict.fromkeys(outputs, size))
    tensors = tuple(Tensor(name, WORD * size, "all") for name, size in length.items())
    output = [name for name in length if name not in masks][-1]
    return Net(Layer("random", tensors, tuple(operations), "x", output), weights, constants)


def forward(net: Net, op: Operation, at: Mapping[str, Array]) -> list[Array]:
    """Run one operation on named arrays."""
    a, b = ([at[name] for name in op.inputs] + [np.empty(0)] * 2)[:2]
    if op.kind == "matmul":
        return [(net.weights[op.name] * a).sum(axis=1)]
    if op.kind == "softmax":
        return [np.exp(a) / np.exp(a).sum()]
    if op.kind == "sigmoid":
        return [1 / (1 + np.exp(-a))]
    if op.kind == "relu":
        return [np.maximum(a, 0)]
    if op.kind == "gelu":
        return [np.sin(a)]  # any function whose slope depends on its input will do
    if op.kind == "residual":
        return [a + b]
    if op.kind in ("product", "dropout"):
        return [a * b]
    if op.kind == "rotate":
        return [np.sin(a), np.cos(a)]
    assert op.kind == "mask"
    return [net.constants[op.outputs[0]]]


def backward(net: Net, op: Operation, at: Mapping[str, Array], gradient: Mapping[str, Array]) -> list[Array]:
    """Return the gradients of an operation's inputs; ``at`` holds only what its backward may read."""
    dy = gradient.get(op.outputs[0], np.zeros(1))
    if op.kind == "matmul":
        return [(net.weights[op.name].T * dy).sum(axis=1)]
    if op.kind == "gelu":
        return [dy * np.cos(at[op.inputs[0]])]
    if op.kind == "residual":
        return [dy, dy]
    if op.kind == "product":
        return [dy * at[op.inputs[1]], dy * at[op.inputs[0]]]
    if op.kind == "dropout":
        return [dy * at[op.inputs[1]]]
    y = at[op.outputs[0]]
    if op.kind == "softmax":
        return [y * (dy - (y * dy).sum())]
    if op.kind == "sigmoid":
        return [dy * y * (1 - y)]
    if op.kind == "relu":
        return [dy * (y > 0)]
    assert op.kind == "rotate"
    return [dy * at[op.outputs[1]] - gradient.get(op.outputs[1], np.zeros(1)) * y]


def loss(net: Net) -> float:
    """Half the squared length of the output, by plain evaluation: no program, no buffers."""
    at = {"x": net.constants["x"]}
    for op in net.layer.operations:
        at.update(zip(op.outputs, forward(net, op, at), strict=True))
    return float((at[net.layer.output] ** 2).sum() / 2)


def execute(net: Net, program: Program, assignment: Assignment) -> dict[str, Array]:
    """Run a program inside the buffers of an assignment; return the gradients of the weights and of x.

    Memory starts as NaN. A step that does not work element by element has the place of its results wiped
    before it reads, so any overlap shows.
    """
    memory = [np.full(int(size) // WORD, np.nan) for size in assignment.sizes]
    place = {v.name: memory[assignment.buffer[v.name]][: int(v.bytes) // WORD] for v in program.values}
    place["x"][:] = net.constants["x"]
    found: dict[str, Array] = {}
    for step in program.steps:
        if step.phase != "accumulate" and (
            step.operation is None or step.operation.kind not in ELEMENT_BY_ELEMENT
        ):
            for value in step.writes:
                place[value.name][:] = np.nan
        results = _run(net, step, {value.name: place[value.name].copy() for value in step.reads}, found)
        for value, result in zip(step.writes, results, strict=True):
            place[value.name][:] = result
    found.update((value.tensor, place[value.name].copy()) for value in program.handed_on)
    return found


def _run(net: Net, step: Step, read: Mapping[str, Array], found: dict[str, Array]) -> list[Array]:
    at = {v.tensor: read[v.name] for v in step.reads if v.role != "gradient"}
    gradient = {v.tensor: read[v.name] for v in step.reads if v.role == "gradient"}
    if step.phase == "loss":
        return [at[net.layer.output]]
    if step.phase == "accumulate":
        first, second = step.reads
        return [read[first.name] + read[second.name]]
    op = step.operation
    assert op is not None
    if step.phase != "backward":
        return forward(net, op, at)
    if op.kind == "matmul":
        found[op.name] = np.outer(gradient[op.outputs[0]], at[op.inputs[0]])
    wanted = {value.tensor for value in step.writes}
    results = backward(net, op, at, gradient)
    return [result for name, result in zip(op.inputs, results, strict=False) if name in wanted]


def alive(program: Program) -> list[set[str]]:
    """Say which values are alive at each step, by the definition: there already, and still to be read."""
    steps, result = program.steps, []
    for now in range(len(steps)):
        there = {program.input.name} | {v.name for step in steps[: now + 1] for v in step.writes}
        later = {v.name for step in steps[now:] for v in step.reads}
        later |= {v.name for v in (*steps[now].writes, *program.handed_on, program.input)}
        result.append(there & later)
    return result
