"""Figures that only explorers show: one plan on its frontier, one strategy on one GPU."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from remat.advice import Price
from remat.figures.chains import memory_panel
from remat.figures.style import INK, KEEP, LIMIT, OFFLOAD, RECOMPUTE, WAIT, figure, finish
from remat.frontier import Point
from remat.replay import Replay


def step_on_frontier(counted: Replay, points: Sequence[Point], *, name: str) -> Figure:
    """Draw the memory over one training step beside the exact frontier, with the plan's point on or above it.

    Args:
        counted: what replay counted for the plan.
        points: the frontier of its chain.
        name: of the plan.

    Returns:
        Two panels. The scales depend on the chain alone, so that plans can be compared.
    """
    fig, (left, right) = figure(height=3.5, columns=2, width_ratios=[1.35, 1])
    most = max(points[-1].peak, counted.peak)
    memory_panel(left, counted, top=most)
    finish(left, x="action", y="memory, outputs of one stage", title=f"{name}, step by step")
    peaks, works = [point.peak for point in points], [point.work for point in points]
    right.step(peaks, works, where="post", color=KEEP, label="exact frontier", zorder=3)
    right.plot(
        counted.peak, counted.work, linestyle="none", marker="s", color=LIMIT, markersize=8,
        markeredgecolor="white", label=name, zorder=5, clip_on=False,
    )  # fmt: skip
    right.set_xlim(0, 1.05 * most)
    right.set_ylim(0, 1.5 * max(works))
    right.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    finish(right, x="peak, outputs", y="work, forwards", title="Among all plans", grid="both")
    pairs = [*zip(*left.get_legend_handles_labels(), strict=True)]
    pairs += [*zip(*right.get_legend_handles_labels(), strict=True)]
    handles, labels = zip(*pairs, strict=True)
    fig.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return fig


def strategy_bars(price: Price, *, memory: float, slowest: float, name: str = "") -> Figure:
    """Draw what one strategy needs of one GPU, and the time that it adds.

    Args:
        price: the strategy, priced.
        memory: bytes of the GPU; the budget, which leaves the spare free, is drawn before it.
        slowest: the overhead at the end of the time axis, 1 for twice the time of plain compute.
        name: of the setting, for the title; the strategy's if left out.

    Returns:
        Two bars, one above the other. A bar longer than its axis ends in an arrow.
    """
    fig, (above, below) = figure(height=2.9, rows=2, height_ratios=[1.25, 1])
    top = 1.5 * memory
    above.barh(0, price.state / 1e9, height=0.6, color=WAIT, label="model state")
    rest = max(0.0, min(price.activations, top - price.state))
    above.barh(
        0, rest / 1e9, left=price.state / 1e9, height=0.6, color=KEEP, label="activations, at their peak"
    )
    beyond = price.total > top
    above.text(
        (top if beyond else price.total) / 1e9 + (-1 if beyond else 1), 0,
        f"{price.total / 1e9:,.1f}" + (" →" if beyond else ""), ha="right" if beyond else "left", va="center",
        fontweight="bold", color="white" if beyond else INK if price.fits else LIMIT,
        bbox=None if beyond else {"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )  # fmt: skip
    for at, words, style in ((price.capacity, "budget", "--"), (memory, f"{memory / 1e9:.0f} GB", "-")):
        above.axvline(at / 1e9, color=LIMIT, linewidth=1.4, linestyle=style)
        shift, side = (-1, "right") if style == "--" else (1, "left")
        above.text(at / 1e9 + shift, -0.42, words, color=LIMIT, va="bottom", ha=side, fontsize=9)
    above.set_xlim(0, top / 1e9)
    above.set_ylim(0.4, -0.75)
    verdict = "fits" if price.fits else "does not fit"
    title = f"{name or price.strategy.name}: {verdict}"
    finish(above, x="memory of one GPU, GB", y="", title=title, grid="x")

    color = OFFLOAD if price.strategy.offload else RECOMPUTE
    below.barh(0, 100 * price.overhead, height=0.6, color=color)
    below.text(100 * price.overhead + 1.5, 0, f"{price.overhead:.1%}", va="center", fontweight="bold")
    below.set_xlim(0, 100 * slowest)
    below.set_ylim(0.4, -0.4)
    finish(below, x="time that a layer takes longer than plain compute, %", y="", grid="x")
    above.set_yticks([0], ["memory"])
    below.set_yticks([0], ["time"])
    for axes in (above, below):
        axes.tick_params(axis="y", length=0)
    fig.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return fig
