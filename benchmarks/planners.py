"""What the planners cost: tables in Markdown.

Run from the top of the repository, on a machine that does nothing else (about three minutes):

    .venv/bin/python benchmarks/planners.py

Everything that is compared runs in turns in this one process, on one core. Times are medians of its processor
time, which other programs on the machine lengthen less than they do the time on the clock.
"""

import platform
import resource
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from remat.chain import Chain, Needs, chain_of
from remat.cuts import every_cut
from remat.frontier import best, frontier, work_bounds
from remat.replay import replay
from remat.schedules import store_all

MODELS: tuple[Needs, ...] = ("values", "tape")


def medians(jobs: dict[str, Callable[[], object]], *, repeats: int) -> dict[str, float]:
    """Run the jobs in turns and return the median processor seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def table(title: str, header: list[str], rows: list[list[object]]) -> None:
    print(f"\n## {title}\n")
    lines: list[list[object]] = [[*header], ["---"] * len(header), *rows]
    for row in lines:
        print("| " + " | ".join(str(cell) for cell in row) + " |")


def plain_loop(chain: Chain) -> list[tuple[float, float]]:
    """Try every cut of a chain of values, one after the other, in plain Python, and keep the frontier.

    Adds up what replay counts: what is kept before a segment, its outputs, and the gradient. Without scratch
    the fullest moment of a segment is its last replay, a backward, or its first forward.
    """
    n = len(chain)
    out = [chain.input, *(stage.out for stage in chain.stages)]
    cost = [0, *(stage.forward_s for stage in chain.stages)]
    least: dict[float, float] = {}
    for code in range(2 ** (n - 1)):
        start, held = 0, out[0]  # held: inputs of the segments so far
        peak = work = 0.0
        for end in range(1, n + 1):
            if end < n and not code >> (end - 1) & 1:
                continue
            grown = 0.0
            for i in range(start + 1, end + 1):
                grown += out[i]
                peak = max(peak, held + grown + out[i])  # Backward(i)
                passing = out[i - 1] if i > start + 1 else 0
                peak = max(peak, held + passing + out[i])  # the first forward
                if i < end:
                    peak = max(peak, held + grown + 2 * out[end])  # replaying i: output and gradient wait
                    work += cost[i]
            start, held = end, held + out[end]
        if work < least.get(peak, float("inf")):
            least[peak] = work
    points: list[tuple[float, float]] = []
    for peak in sorted(least):
        if not points or least[peak] < points[-1][1]:
            points.append((peak, least[peak]))
    return points


def uneven(n: int, *, needs: Needs) -> Chain:
    """Sizes and costs all different: real numbers from 1 to 10."""
    sizes, costs, saved, scratch = np.random.default_rng(n).uniform(1, 10, (4, n)).tolist()
    return chain_of(
        sizes,
        costs=costs,
        saved=saved if needs == "tape" else 0,
        scratch_backward=[value / 2 for value in scratch],
        needs=needs,
    )


def short_chains() -> None:
    chain = chain_of([1, 4] * 8, costs=[4, 1] * 8)
    expected = plain_loop(chain)
    assert [(point.peak, point.work) for point in every_cut(chain).frontier] == expected
    assert [(point.peak, point.work) for point in frontier(chain).points] == expected
    jobs: dict[str, Callable[[], Any]] = {
        "plain loop over all cuts": lambda: plain_loop(chain),
        "`every_cut`, vectorized": lambda: every_cut(chain).frontier,
        "`frontier`, dynamic programming": lambda: frontier(chain),
    }
    found = medians(jobs, repeats=7)
    plain = found["plain loop over all cuts"]
    table(
        "All 2^15 cuts of 16 layers: the same frontier three ways",
        ["way", "ms", "times faster"],
        [[name, f"{1000 * seconds:.2f}", f"{plain / seconds:.0f}"] for name, seconds in found.items()],
    )


def growth() -> None:
    cases = [(1000, 500), (1000, 1000), (1000, 2000), (2000, 500), (5000, 500)]
    chains = {(n, needs): uneven(n, needs=needs) for n in (1000, 2000, 5000) for needs in MODELS}
    jobs = {
        f"{n} {slots} {needs}": partial(frontier, chains[n, needs], slots=slots)
        for n, slots in cases
        for needs in MODELS
    }
    found = medians({name: job for name, job in jobs.items() if name.startswith("1000 500 ")}, repeats=7)
    found |= medians({name: job for name, job in jobs.items() if name not in found}, repeats=3)
    rows: list[list[object]] = []
    for n, slots in cases:
        times = [found[f"{n} {slots} {needs}"] for needs in MODELS]
        ratios = [t / found[f"1000 500 {needs}"] for t, needs in zip(times, MODELS, strict=True)]
        rows.append([n, slots, *(f"{t:.2f}" for t in times), *(f"{ratio:.1f}" for ratio in ratios)])
    table(
        "`frontier` on unequal layers",
        ["layers", "slots", "values, s", "tape, s", "values, ratio", "tape, ratio"],
        rows,
    )


def memory() -> None:
    rows: list[list[object]] = []
    for needs in MODELS:
        chain = uneven(1000, needs=needs)
        tracemalloc.start()
        frontier(chain)
        rows.append([needs, f"{tracemalloc.get_traced_memory()[1] / 1e6:.0f}"])
        tracemalloc.stop()
    table("Peak memory of `frontier` at 1,000 layers and 500 slots (tracemalloc)", ["needs", "MB"], rows)


def replays() -> None:
    rows: list[list[object]] = []
    for needs in MODELS:
        chain, even = uneven(1000, needs=needs), chain_of([1] * 1000, needs=needs)
        plan = best(chain, replay(chain, store_all(chain)).peak / 2)
        found = medians(
            {"real": partial(replay, chain, plan), "whole": partial(replay, even, plan)}, repeats=15
        )
        rows.append([needs, len(plan), *(f"{1000 * seconds:.0f}" for seconds in found.values())])
    table("`replay` of one plan of 1,000 layers", ["needs", "actions", "real sizes, ms", "whole, ms"], rows)


def bounds() -> None:
    rows: list[list[object]] = []
    for needs in MODELS:
        chain = uneven(1000, needs=needs)
        least = frontier(chain).points[0].peak
        for factor in (1.2, 2, 4):
            row: list[object] = [needs, f"{factor:g}"]
            for slots in (500, 2000):
                low, high = work_bounds(chain, factor * least, slots=slots)
                row += [f"{low:.0f} to {high:.0f}", f"{100 * (high / low - 1):.1f}"]
            rows.append(row)
    table(
        "`work_bounds`: seconds that no plan undercuts, and of the plan found; 1,000 layers",
        ["needs", "budget over least peak", "500 slots", "gap, %", "2,000 slots", "gap, %"],
        rows,
    )


def main() -> None:
    print(f"# Planners\n\nPython {platform.python_version()}, numpy {np.__version__}, {platform.machine()}")
    short_chains()
    growth()
    replays()
    bounds()
    unit = 1 if sys.platform == "darwin" else 1024
    whole = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    memory()
    print(f"\nThe whole process, through all tables above: {whole / 1e6:.0f} MB resident at its peak.")


if __name__ == "__main__":
    main()
