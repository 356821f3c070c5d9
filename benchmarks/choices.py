"""What looking at all choices inside a layer costs: a table in Markdown.

Run from the top of the repository, on a machine that does nothing else (about a minute):

    .venv/bin/python benchmarks/choices.py

What is compared runs in turns in this one process, and medians are shown. Memory is the most that Python
and numpy have allocated at once during one call, as tracemalloc counts it in a run of its own.
"""

import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping
from itertools import product

import numpy as np

from remat.choices import every_choice
from remat.cost import roofline
from remat.gpt import gpt_layer
from remat.hardware import device, link
from remat.layer import Layer
from remat.tables import table

REPEATS = 9


def recursion(layer: Layer, costs: Mapping[str, float], words: tuple[str, ...]) -> list[tuple[float, float]]:
    """Bytes kept and recompute of every choice, one after the other, tensor by tensor."""
    maker = {name: op for op in layer.operations for name in op.outputs}
    free = [tensor.name for tensor in layer.saved if tensor.name != layer.input]
    size = {tensor.name: tensor.bytes for tensor in layer.tensors}
    found = []
    for way in product(words, repeat=len(free)):
        there = {layer.input} | {name for name, word in zip(free, way, strict=True) if word != "recompute"}
        ran: set[str] = set()

        def ask(name: str, there: set[str] = there, ran: set[str] = ran) -> float:
            if name in there or maker[name].name in ran:
                return 0
            op = maker[name]
            ran.add(op.name)
            return costs[op.name] + sum(ask(source) for source in op.inputs)

        kept = size[layer.input] + sum(
            size[name] for name, word in zip(free, way, strict=True) if word == "keep"
        )
        found.append((kept, sum(ask(name) for name in free)))
    return found


def medians(jobs: dict[str, Callable[[], object]], *, repeats: int) -> dict[str, float]:
    """Run the jobs in turns and return the median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def peak_megabytes(job: Callable[[], object]) -> float:
    """Run the job once under tracemalloc."""
    tracemalloc.start()
    job()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def main() -> None:
    layer = gpt_layer(s=2048, b=1, h=12288, a=96, t=8, sequence_parallel=True)
    costs = roofline(layer, device("H100"))
    pcie = link("PCIe 4")
    two, three = ("keep", "recompute"), ("keep", "recompute", "offload")

    plain = recursion(layer, costs, two)
    fast = every_choice(layer, costs)
    assert [kept for kept, _ in plain] == fast.kept.tolist()
    assert np.allclose([cost for _, cost in plain], fast.recompute, rtol=1e-12, atol=0)

    jobs: dict[str, Callable[[], object]] = {
        "2^12, recursion in plain Python": lambda: recursion(layer, costs, two),
        "2^12, `every_choice`": lambda: every_choice(layer, costs),
        "2^12, and its frontier": lambda: every_choice(layer, costs).frontier,
        "3^12, `every_choice`": lambda: every_choice(layer, costs, offload=True),
        "3^12, and its frontier on PCIe 4": lambda: every_choice(layer, costs, offload=True).frontier_with(
            pcie
        ),
    }
    slow: dict[str, Callable[[], object]] = {
        "3^12, recursion in plain Python": lambda: recursion(layer, costs, three)
    }
    seconds = medians(jobs, repeats=REPEATS) | medians(slow, repeats=1)
    memory = {name: peak_megabytes(job) for name, job in jobs.items()}
    rows: list[list[object]] = []
    for name in (*list(jobs)[:3], *slow, *list(jobs)[3:]):
        base = seconds[f"{name[:4]}, recursion in plain Python"]
        size = f"{memory[name]:.1f}" if name in memory else "—"
        rows.append([name, f"{1000 * seconds[name]:.1f}", f"{base / seconds[name]:.0f}", size])
    print(
        f"# Choices inside a GPT layer\n\nPython {platform.python_version()}, numpy {np.__version__}, ",
        end="",
    )
    print(f"{platform.machine()}; medians of {REPEATS}, the recursion over 3^12 once\n")
    print(table(["what", "ms", "times faster than plain Python", "peak, MB"], rows))


if __name__ == "__main__":
    main()
