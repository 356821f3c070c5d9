"""What the explorers of chapters 1 to 5 draw: settings in, a figure and a sentence out.

Pictures come from ``remat.figures``; what the sentences say comes from descriptions, planners and replay.
Times are estimated by roofline for an H100, tensor and sequence parallel over 8 GPUs, collectives left out.
"""

from __future__ import annotations

from functools import cache

from remat import figures
from remat.advice import STRATEGIES, Price, price
from remat.advice import Setting as Model
from remat.chain import Backward, Chain, Option, chain_of
from remat.choice import RECOMPUTE, kept, option, steady_wait
from remat.choices import Choices, every_choice
from remat.cost import flops, roofline
from remat.figures.saving import Picture
from remat.frontier import Frontier
from remat.frontier import frontier as exact_frontier
from remat.gpt import ATTENTION_CORE, SHAPES, gpt_layer, shape
from remat.hardware import device
from remat.hardware import link as link_named
from remat.layer import Layer
from remat.layer import ledger as ledger_of
from remat.offload import offload_all
from remat.replay import Replay, replay
from remat.schedules import uniform

GPU, T = device("H100"), 8  # what times are estimated for
LAYERS = 8  # of the timeline
LINKS = ("PCIe 4", "PCIe 5", "PCIe 6", "NVLink-C2C")  # slowest first
# Hidden sizes with the heads of a model that has them. GPT-3 6.7B: Brown et al. 2020, table 2.1.
HEADS = {4096: 32} | {known.h: known.a for known in SHAPES.values()}
MODELS = {4096: "GPT-3 6.7B"} | {known.h: known.name for known in SHAPES.values()}


def draw_ledger(*, s: int, h: int, a: int) -> tuple[Picture, str]:
    """Draw what one GPT layer keeps under each named choice: one sequence, one GPU.

    >>> print(draw_ledger(s=2048, h=12288, a=96)[1])
    A layer keeps 114 sbh, 2.87 GB, and 70% of that is the attention core. Selective recompute keeps 34 sbh,
    0.86 GB; full recompute keeps 2 sbh, 0.05 GB.
    """
    layer = gpt_layer(s=s, b=1, h=h, a=a)
    core = sum(entry.share for entry in ledger_of(layer) if entry.part == ATTENTION_CORE)
    every, selective, full = (
        f"{size / layer.unit:,.4g} sbh, {size / 1e9:.2f} GB"
        for size in (layer.bytes_of(kept(layer, recompute=word)) for word in RECOMPUTE)
    )
    return figures.ledger_bars(layer), (
        f"A layer keeps {every}, and {core:.0%} of that is the attention core. "
        f"Selective recompute keeps {selective}; full recompute keeps {full}."
    )


@cache
def _even(n: int) -> Frontier:
    return exact_frontier(chain_of([1] * n))


def draw_spacing(*, n: int, k: int) -> tuple[Picture, str]:
    """Draw the memory over one training step of n equal stages, a checkpoint every k, and its point.

    >>> print(draw_spacing(n=16, k=4)[1])
    A checkpoint every 4 of 16 stages: peak 9, work 12. The best plan with that peak has work 9; the best with
    that work has peak 8.
    """
    line = _even(n)
    counted = replay(line.chain, uniform(line.chain, k))
    cheapest = line.within(counted.peak)
    leanest = next(point for point in line.points if point.work <= counted.work)
    if cheapest.work < counted.work or leanest.peak < counted.peak:
        verdict = (
            f"The best plan with that peak has work {cheapest.work:g}; "
            f"the best with that work has peak {leanest.peak:g}."
        )
    else:
        verdict = "It lies on the frontier: less of one would take more of the other."
    return (
        figures.step_on_frontier(counted, line.points, name=f"every {k}"),
        f"A checkpoint every {k} of {n} stages: peak {counted.peak:g}, work {counted.work:g}. {verdict}",
    )


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
    Selective recompute keeps 34 of 114 units. It adds 0.45% by FLOPs and 5.2% by estimated time, 11.5 times
    as much. By time it is on the frontier; full recompute adds 24.5%.
    """
    by_flops, by_time = _both_costs(s, h)
    layer, selective = by_time.layer, kept(by_time.layer, recompute="selective")
    cheap, dear = by_flops.of(selective), by_time.of(selective)
    full = by_time.of(kept(layer, recompute="full"))
    unit = layer.unit / T
    place = "on" if any(set(point.kept) == set(selective) for point in by_time.frontier) else "above"
    return (
        figures.choice_frontiers(by_flops, by_time, unit=unit, unit_name="s·b·h/t", dots=False, top=35),
        f"Selective recompute keeps {dear.kept_bytes / unit:.4g} of {layer.saved_bytes / unit:,.4g} units. "
        f"It adds {cheap.share:.2%} by FLOPs and {dear.share:.1%} by estimated time, "
        f"{dear.share / cheap.share:.1f} times as much. "
        f"By time it is {place} the frontier; full recompute adds {full.share:.1%}.",
    )


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
    On PCIe 5, compute waits 5.6 of 35.4 ms, in forward only; in a deep model 0.96 ms a layer. The host holds
    0.64 GB, the GPU at most 0.53 GB.
    """
    counted, (way, line) = _offloaded(s, h, link), _selective(s, h)
    compute = [event for event in counted.events if event.stream == "compute"]
    loss = next(i for i, event in enumerate(compute) if isinstance(event.action, Backward))
    places = [("forward", compute[:loss]), ("backward", compute[loss:])]
    waits = [place for place, events in places if any(event.wait_s for event in events)]
    if waits:
        recompute_s = way.backward_s - 2 * way.forward_s
        steady = steady_wait(way.saved + line.input, way.forward_s, recompute_s, link=link_named(link))
        said = (
            f"compute waits {1e3 * counted.stall_s:.1f} of {1e3 * counted.time_s:,.1f} ms, in "
            f"{' and '.join(waits) if waits[1:] else f'{waits[0]} only'}; "
            f"in a deep model {1e3 * steady:.2f} ms a layer."
        )
    else:
        said = f"every copy hides behind compute, and the step takes {1e3 * counted.time_s:,.1f} ms."
    return (
        figures.stream_timelines({link: counted}, end_s=_offloaded(s, h, LINKS[0]).time_s),
        f"On {link}, {said} The host holds {counted.host_peak / 1e9:.2f} GB, "
        f"the GPU at most {counted.peak / 1e9:.2f} GB.",
    )


@cache
def _priced(s: int, link: str, strategy: str) -> Price:
    gpt3 = shape("GPT-3 175B")
    model = Model(gpt3, s=s, device=GPU, link=link_named(link), t=T, p=8, spare=10e9)
    return price(model, next(known for known in STRATEGIES if known.name == strategy))


def draw_budget(*, s: int, link: str, strategy: str) -> tuple[Picture, str]:
    """Draw GPT-3's first pipeline stage of 8 against 80 GB with 10 GB to spare, and the time added.

    >>> print(draw_budget(s=2048, link="PCIe 5", strategy="selective")[1])
    Selective: 43.5 GB of model state and 10.6 GB of activations at their peak, 54.1 GB together. Of a budget
    of 70 GB: it fits. A layer takes 3.72 ms, 5.2% more than plain compute; nothing crosses PCIe 5.
    """
    found = _priced(s, link, strategy)
    fits = "it fits" if found.fits else f"{found.short / 1e9:,.1f} GB too much"
    return (
        figures.strategy_bars(found, memory=GPU.memory, slowest=1.5, name=f"{strategy}, {link}"),
        f"{strategy[0].upper()}{strategy[1:]}: {found.state / 1e9:.1f} GB of model state and "
        f"{found.activations / 1e9:,.1f} GB of activations at their peak, {found.total / 1e9:,.1f} GB "
        f"together. Of a budget of {found.capacity / 1e9:.0f} GB: {fits}. "
        f"A layer takes {1e3 * found.layer_s:.2f} ms, {found.overhead:.1%} more than plain compute"
        + (f", copies on {link} included." if found.strategy.offload else f"; nothing crosses {link}."),
    )
