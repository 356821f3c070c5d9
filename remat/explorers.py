"""The five explorers of the book, each from a drawing function: settings in, a figure and a sentence out.

Pictures come from ``remat.figures``; what the sentences say comes from descriptions, planners and replay.
Times are estimated by roofline for an H100, tensor and sequence parallel over 8 GPUs, collectives left out.
"""

from __future__ import annotations

from functools import cache

from remat import figures
from remat.advice import STRATEGIES, Price, price
from remat.advice import Setting as Model
from remat.chain import Backward, Chain, Option, chain_of
from remat.choice import kept, option, steady_wait
from remat.choices import Choices, every_choice
from remat.cost import flops, roofline
from remat.explore import Explorer, Slider, explore
from remat.figures.saving import Picture
from remat.frontier import Frontier
from remat.frontier import frontier as exact_frontier
from remat.gpt import ATTENTION_CORE, gpt_layer, shape
from remat.hardware import device
from remat.hardware import link as link_named
from remat.layer import Layer, ledger as ledger_of
from remat.offload import offload_all
from remat.replay import Replay, replay
from remat.schedules import uniform

GPU, T = device("H100"), 8  # what times are estimated for
LAYERS = 8  # of the timeline
# Hidden sizes with the heads of a model that has them: Brown et al. 2020, table 2.1 (6.7B, 175B); Touvron et
# al. 2023, table 2 (65B); the others stand in remat.gpt.SHAPES.
HEADS = {4096: 32, 6144: 64, 8192: 64, 12288: 96, 20480: 128, 25600: 160}
MODELS = {4096: "GPT-3 6.7B", 6144: "22B", 8192: "LLaMA 65B", 12288: "GPT-3", 20480: "MT-NLG", 25600: "1T"}
LINKS = ("PCIe 3", "PCIe 4", "PCIe 5", "NVLink-C2C")

_SEQUENCE = "sequence length, s"
_WIDTH = "hidden size, h"


def _link_slider(*links: str) -> Slider:
    notes = {name: f"{link_named(name).bandwidth / 1e9:g} GB/s" for name in links}
    return Slider("link to the host", links, default="PCIe 5", notes=notes)


# 1 -----------------------------------------------------------------------------------------------------------


def draw_ledger(*, s: int, h: int, a: int) -> tuple[Picture, str]:
    """Draw what one GPT layer keeps under each named choice; sequences of one micro-batch, one GPU.

    >>> print(draw_ledger(s=2048, h=12288, a=96)[1])
    A layer keeps 114 sbh, 2.87 GB, and 70% of that is the attention core. Selective recompute keeps 34 sbh, ...
    """
    layer = gpt_layer(s=s, b=1, h=h, a=a)
    share = sum(entry.share for entry in ledger_of(layer) if entry.part == ATTENTION_CORE)
    every, selective, full = (
        f"{size / layer.unit:.4g} sbh, {size / 1e9:.2f} GB"
        for size in (layer.bytes_of(kept(layer, recompute=word)) for word in ("none", "selective", "full"))
    )
    return figures.ledger_bars(layer), (
        f"A layer keeps {every}, and {share:.0%} of that is the attention core. "
        f"Selective recompute keeps {selective}; full recompute keeps {full}."
    )


def ledger() -> Explorer:
    """Show the ledger of a layer: what it keeps before and after selective recompute, by s, h and a."""
    return explore(
        draw_ledger,
        name="ledger",
        alt="Three stacked bars of what one layer keeps: everything, without the attention core, and its input "
        "alone. Kept tensors are filled, recomputed ones hatched. The sentence below gives the sizes.",
        s=Slider(_SEQUENCE, (1024, 2048, 4096, 8192, 16384), default=2048, unit="tokens"),
        h=Slider(
            _WIDTH, (3072, 6144, 12288, 18432), default=12288,
            notes={3072: "Phi-3 mini", 6144: "22B", 12288: "GPT-3", 18432: "PaLM 540B"},
        ),
        a=Slider(
            "attention heads, a", (32, 48, 64, 96, 128), default=96,
            notes={32: "Phi-3 mini", 48: "PaLM 540B", 64: "22B", 96: "GPT-3"},
        ),
    )  # fmt: skip


# 2 -----------------------------------------------------------------------------------------------------------


@cache
def _even(n: int) -> Frontier:
    return exact_frontier(chain_of([1] * n))


def draw_spacing(*, n: int, k: int) -> tuple[Picture, str]:
    """Draw the memory over one training step of n equal stages with a checkpoint every k, and its point.

    >>> print(draw_spacing(n=16, k=4)[1])
    A checkpoint every 4 of 16 stages: peak 9, work 12. The best plan with that peak has work 9; ...
    """
    line = _even(n)
    counted = replay(line.chain, uniform(line.chain, k))
    cheapest = line.within(counted.peak)
    leanest = next(point for point in line.points if point.work <= counted.work)
    if (cheapest.peak, cheapest.work) == (counted.peak, counted.work):
        verdict = "No plan has less of one without more of the other: it is on the frontier."
    else:
        verdict = (
            f"The best plan with that peak has work {cheapest.work:g}; "
            f"the best with that work has peak {leanest.peak:g}."
        )
    return (
        figures.step_on_frontier(counted, line.points, name=f"every {k}"),
        f"A checkpoint every {k} of {n} stages: peak {counted.peak:g}, work {counted.work:g}. {verdict}",
    )


def spacing() -> Explorer:
    """Show what a checkpoint every k of n stages needs and costs, and the exact frontier beside it."""
    return explore(
        draw_spacing,
        name="spacing",
        alt="Left, memory over the actions of one training step as stacked areas, with its peak marked. Right, "
        "the exact frontier of work against peak, and the plan as a square. The sentence below gives both.",
        n=Slider(
            "stages, n", (16, 24, 48, 96), default=16, notes={48: "layers of 22B", 96: "layers of GPT-3"}
        ),
        k=Slider(
            "stages per checkpoint, k", (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16), default=4
        ),
    )


# 3 -----------------------------------------------------------------------------------------------------------


def _split_layer(s: int, h: int) -> Layer:
    return gpt_layer(s=s, b=1, h=h, a=HEADS[h], t=T, sequence_parallel=True)


@cache
def _both_costs(s: int, h: int) -> tuple[Choices, Choices]:
    layer = _split_layer(s, h)
    seconds = roofline(layer, GPU, residual_traffic=False)
    return every_choice(layer, flops(layer)), every_choice(layer, seconds)


def draw_choices(*, s: int, h: int) -> tuple[Picture, str]:
    """Draw the frontiers of keep and recompute inside a layer, by FLOPs and by roofline.

    >>> print(draw_choices(s=2048, h=12288)[1])
    Selective recompute keeps 34 of 114 units. It adds 0.45% by FLOPs and 5.2% by estimated time, 11.5 times as ...
    """
    by_flops, by_time = _both_costs(s, h)
    layer, selective = by_time.layer, kept(by_time.layer, recompute="selective")
    cheap, dear = by_flops.of(selective), by_time.of(selective)
    unit = layer.unit / T
    on_it = any(set(point.kept) == set(selective) for point in by_time.frontier)
    return (
        figures.choice_frontiers(by_flops, by_time, unit=unit, unit_name="s·b·h/t", dots=False, top=30),
        f"Selective recompute keeps {dear.kept_bytes / unit:.4g} of {layer.saved_bytes / unit:.4g} units. "
        f"It adds {cheap.share:.2%} by FLOPs and {dear.share:.1%} by estimated time, "
        f"{dear.share / cheap.share:.1f} times as much. By time it is {'on' if on_it else 'not on'} the frontier; "
        f"full recompute adds {by_time.of(kept(layer, recompute='full')).share:.1%}.",
    )


def choices() -> Explorer:
    """Show the exact frontiers of one layer under two costs, FLOPs and roofline, by s and h."""
    return explore(
        draw_choices,
        name="choices",
        alt="Recompute in percent of a step against bytes kept: two falling staircases, one by FLOPs and one by "
        "estimated time, with selective and full recompute marked on each. The sentence below gives their costs.",
        s=Slider(_SEQUENCE, (1024, 2048, 4096, 8192, 16384, 32768), default=2048, unit="tokens"),
        h=Slider(_WIDTH, tuple(HEADS), default=12288, notes=MODELS),
    )


# 4 -----------------------------------------------------------------------------------------------------------


@cache
def _selective(s: int, h: int) -> tuple[Option, Chain]:
    layer = _split_layer(s, h)
    costs = roofline(layer, GPU, residual_traffic=False)
    way = option(layer, costs, kept=kept(layer, recompute="selective"))
    size = layer[layer.input].bytes
    return way, Chain((way.stage(size),) * LAYERS, input=size, needs="tape")


@cache
def _offloaded(s: int, h: int, link: str) -> Replay:
    _, line = _selective(s, h)
    return replay(line, offload_all(line), link=link_named(link))


def draw_timeline(*, s: int, h: int, link: str) -> tuple[Picture, str]:
    """Draw the two streams of eight layers whose kept tensors all go to the host, after selective recompute.

    >>> print(draw_timeline(s=2048, h=12288, link="PCIe 5")[1])
    On PCIe 5, compute waits 6.0 of 35.1 ms, in forward only. ...
    """
    counted = _offloaded(s, h, link)
    way, line = _selective(s, h)
    loss = next(i for i, event in enumerate(counted.events) if isinstance(event.action, Backward))
    waits = [
        any(event.wait_s for event in part if event.stream == "compute")
        for part in (counted.events[:loss], counted.events[loss:])
    ]
    where = {(True, True): "in both directions", (True, False): "in forward only"}.get(
        (waits[0], waits[1]), "in backward only"
    )
    steady = steady_wait(
        way.saved + line.input, way.forward_s, way.backward_s - 2 * way.forward_s, link=link_named(link)
    )
    if any(waits):
        said = (
            f"On {link}, compute waits {1e3 * counted.stall_s:.1f} of {1e3 * counted.time_s:.1f} ms, {where}. "
            f"In a deep model each layer waits {1e3 * steady:.2f} ms."
        )
    else:
        said = f"On {link}, compute never waits: the step takes {1e3 * counted.time_s:.1f} ms and every copy is hidden."
    said += f" The host holds {counted.host_peak / 1e9:.2f} GB, the GPU at most {counted.peak / 1e9:.2f}."
    slowest = max(_offloaded(s, h, name).time_s for name in LINKS)
    return figures.stream_timelines({link: counted}, end_s=slowest), said


def timeline() -> Explorer:
    """Show when compute waits for copies: eight layers, all that they keep on the host, by s, h and link."""
    return explore(
        draw_timeline,
        name="timeline",
        alt="Two rows on one clock, compute and copies, with the waits of compute hatched; below, the memory of "
        "device and host over time. The sentence below says how long compute waits, and where.",
        s=Slider(_SEQUENCE, (1024, 2048, 4096, 8192, 16384), default=2048, unit="tokens"),
        h=Slider(_WIDTH, tuple(HEADS), default=12288, notes=MODELS),
        link=_link_slider(*LINKS),
    )


# 5 -----------------------------------------------------------------------------------------------------------


@cache
def _priced(s: int, link: str, strategy: str) -> Price:
    gpt3 = shape("GPT-3 175B")
    model = Model(gpt3, s=s, device=GPU, link=link_named(link), t=T, p=8, spare=10e9)
    return price(model, next(known for known in STRATEGIES if known.name == strategy))


def draw_budget(*, s: int, link: str, strategy: str) -> tuple[Picture, str]:
    """Draw GPT-3's first pipeline stage (t = 8, p = 8) against 80 GB with 10 to spare, and the time added.

    >>> print(draw_budget(s=2048, link="PCIe 5", strategy="selective")[1])
    Selective: 43.5 GB of model state and 10.8 GB of activations at their peak, 54.3 GB together. ...
    """
    found = _priced(s, link, strategy)
    fits = "it fits" if found.fits else f"{found.short / 1e9:,.1f} GB too much"
    cost = f"A layer takes {1e3 * found.layer_s:.2f} ms, {found.overhead:.1%} more than plain compute"
    return (
        figures.strategy_bars(found, memory=GPU.memory, slowest=1.5),
        f"{strategy[0].upper()}{strategy[1:]}: {found.state / 1e9:.1f} GB of model state and "
        f"{found.activations / 1e9:,.1f} GB of activations at their peak, {found.total / 1e9:,.1f} GB together. "
        f"Of a budget of {found.capacity / 1e9:.0f} GB, {fits}. {cost}"
        + (f", on {link}." if found.strategy.offload else "; no copy crosses the link."),
    )


def budget() -> Explorer:
    """Show whether GPT-3 fits on 80 GB GPUs under each strategy, and what that costs, by s and link."""
    return explore(
        draw_budget,
        name="budget",
        alt="Two bars: the memory of one GPU, model state and activations, against a budget of 70 of 80 GB, and "
        "the time that a layer takes longer than plain compute. The sentence below gives both.",
        s=Slider(_SEQUENCE, (2048, 4096, 8192, 16384, 32768), default=2048, unit="tokens"),
        link=_link_slider("PCIe 4", "PCIe 5", "NVLink-C2C"),
        strategy=Slider("strategy", tuple(known.name for known in STRATEGIES), default="selective"),
    )
