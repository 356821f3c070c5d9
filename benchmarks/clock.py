"""What the clock of two streams costs: a table in Markdown.

Run from the top of the repository, on a machine that does nothing else (about half a minute):

    .venv/bin/python benchmarks/clock.py

Everything that is compared runs in turns in this one process, and medians are shown.
"""

import platform
import statistics
import time
from collections.abc import Callable
from functools import partial

from remat.chain import Chain, Stage
from remat.hardware import link
from remat.offload import offload_all
from remat.replay import replay

LAYERS = (96, 1000)
LINK = link("PCIe 4")


def medians(jobs: dict[str, Callable[[], object]], *, repeats: int) -> dict[str, float]:
    """Run the jobs in turns and return the median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def whole(layers: int) -> Chain:
    """Whole bytes and whole seconds, all layers alike."""
    stage = Stage(out=6_291_456, saved=100_663_296, forward_s=1, backward_s=2)
    return Chain((stage,) * layers, input=6_291_456, needs="tape")


def real(layers: int) -> Chain:
    """Floats with long fractions, no two layers alike: the worst case for exact sums."""
    stages = tuple(
        Stage(
            out=6_291_456 / (1 + 0.001 * i),
            saved=100_663_296 / (1 + 0.003 * i),
            forward_s=0.00118 / (1 + 0.007 * i),
            backward_s=0.00254 / (1 + 0.011 * i),
        )
        for i in range(layers)
    )
    return Chain(stages, input=6_291_456.1, needs="tape")


def main() -> None:
    jobs: dict[str, Callable[[], object]] = {}
    plans = {}
    for layers in LAYERS:
        for kind, describe in (("whole", whole), ("real", real)):
            chain = describe(layers)
            plan = plans[layers] = offload_all(chain)
            jobs[f"replay, {kind} sizes, {layers}"] = partial(replay, chain, plan.actions, link=LINK)
        jobs[f"plan, {layers}"] = partial(offload_all, whole(layers))
    seconds = medians(jobs, repeats=15)

    print(f"Python {platform.python_version()}, {platform.machine()}")
    print(f"\n## replay of offload_all(chain) with two buffers over {LINK.name}\n")
    small, large = LAYERS
    print(f"| | L = {small} | L = {large:,} | times as long |")
    print("| --- | --- | --- | --- |")
    actions = [len(plans[layers]) for layers in LAYERS]
    print(f"| actions | {actions[0]:,} | {actions[1]:,} | {actions[1] / actions[0]:.1f} |")
    for name in ("plan", "replay, whole sizes", "replay, real sizes"):
        few, many = (seconds[f"{name}, {layers}"] for layers in LAYERS)
        print(f"| {name}, ms | {few * 1e3:.2f} | {many * 1e3:.1f} | {many / few:.1f} |")
    for kind in ("whole", "real"):
        few, many = (
            seconds[f"replay, {kind} sizes, {layers}"] / n * 1e6
            for layers, n in zip(LAYERS, actions, strict=True)
        )
        print(f"| replay, {kind} sizes, µs an action | {few:.1f} | {many:.1f} | {many / few:.2f} |")


if __name__ == "__main__":
    main()
