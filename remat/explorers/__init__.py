"""The explorers of the book, one function each; a notebook cell calls it and shows what it returns.

>>> from remat import explorers
>>> explorers.spacing()
Explorer('spacing', n, k)
"""

from __future__ import annotations

from remat.advice import STRATEGIES
from remat.explore import Explorer, Slider, explore
from remat.explorers.draw import (
    HEADS,
    LINKS,
    MODELS,
    draw_budget,
    draw_choices,
    draw_ledger,
    draw_spacing,
    draw_timeline,
)
from remat.explorers.segment_model import LAYERS, draw_segment_model
from remat.hardware import link

__all__ = ["budget", "choices", "ledger", "segments", "spacing", "timeline"]


def _sequence(*values: int) -> Slider:
    return Slider("sequence length, s", values, default=2048, unit="tokens")


def _width(*values: int) -> Slider:
    return Slider("hidden size, h", values, default=12288, notes={h: MODELS[h] for h in values})


def _link(*names: str) -> Slider:
    notes = {name: f"{link(name).bandwidth / 1e9:g} GB/s" for name in names}
    return Slider("link to the host", names, default="PCIe 5", notes=notes)


def ledger() -> Explorer:
    """Show what a layer keeps before and after selective recompute, and the share of attention: s, h and a.

    The hidden sizes and heads are those of known models, free to combine: Phi-3 mini (Abdin et al. 2024) has
    3,072 and 32, PaLM 540B (Chowdhery et al. 2022) 18,432 and 48.
    """
    return explore(
        draw_ledger,
        name="ledger",
        alt="Three stacked bars of what one layer keeps: everything, without the attention core, and its "
        "input alone. Kept tensors are filled, recomputed ones hatched. The sentence below gives the sizes.",
        s=_sequence(1024, 2048, 4096, 8192, 16384),
        h=Slider(
            "hidden size, h",
            (3072, 6144, 12288, 18432),
            default=12288,
            notes={3072: "Phi-3 mini", 6144: "22B", 12288: "GPT-3 175B", 18432: "PaLM 540B"},
        ),
        a=Slider(
            "attention heads, a",
            (32, 48, 64, 96, 128),
            default=96,
            notes={32: "Phi-3 mini", 48: "PaLM 540B", 64: "22B", 96: "GPT-3 175B", 128: "MT-NLG 530B"},
        ),
    )


def spacing() -> Explorer:
    """Show what a checkpoint every k of n stages needs and costs, beside the exact frontier: n and k."""
    return explore(
        draw_spacing,
        name="spacing",
        alt="Left, memory over the actions of one training step as stacked areas, with its peak marked. "
        "Right, the exact frontier of work against peak, and the plan as a square. The sentence below gives "
        "peak and work.",
        n=Slider(
            "stages, n", (16, 24, 48, 96), default=16, notes={48: "layers of 22B", 96: "layers of GPT-3"}
        ),
        k=Slider("stages per checkpoint, k", tuple(range(1, 17)), default=4),
    )


def choices() -> Explorer:
    """Show the exact frontiers of one layer under two costs, FLOPs and estimated time: s and h."""
    return explore(
        draw_choices,
        name="choices",
        alt="Recompute in percent of a step against bytes kept: two falling staircases, one by FLOPs and one "
        "by estimated time, with selective and full recompute marked. The sentence below gives their costs.",
        s=_sequence(1024, 2048, 4096, 8192, 16384, 32768),
        h=_width(*HEADS),
    )


def timeline() -> Explorer:
    """Show when compute waits for copies, eight layers with all that they keep on the host: s, h and link."""
    return explore(
        draw_timeline,
        name="timeline",
        alt="Two rows on one clock, compute and copies, with the waits of compute hatched; below, the memory "
        "of device and host over time. The sentence below says how long compute waits, and where.",
        s=_sequence(1024, 2048, 4096, 8192, 16384),
        h=_width(4096, 6144, 12288, 20480),
        link=_link(*LINKS),
    )


def budget() -> Explorer:
    """Show whether GPT-3 fits on 80 GB GPUs under each strategy, and what it costs: s, link and strategy."""
    return explore(
        draw_budget,
        name="budget",
        alt="Two bars: the memory of one GPU, model state and activations, against a budget of 70 of 80 GB, "
        "and the time that a layer takes longer than plain compute. The sentence below gives both.",
        s=_sequence(2048, 4096, 8192, 16384, 32768),
        link=_link("PCIe 4", "PCIe 5", "NVLink-C2C"),
        strategy=Slider("strategy", tuple(known.name for known in STRATEGIES), default="selective + offload"),
    )


def segments() -> Explorer:
    """Show the segment model beside replay: L, k, A and mode."""
    return explore(
        draw_segment_model,
        name="segments",
        alt="Left, three bars of activations in GB: none, full and selective, what is kept and the segment "
        "being replayed stacked, with a diamond at what replay counts. Right, more compute in percent. The "
        "sentence below gives the numbers of the chosen mode.",
        L=Slider(
            "layers, L",
            (32, 48, 96),
            default=32,
            notes={32: "GPT-3 6.7B", 48: "22B", 96: "GPT-3 175B"},
        ),
        k=Slider("layers per checkpoint, k", (1, 4, 6, 8, 16), default=4),
        A=Slider(
            "one layer, A",
            tuple(LAYERS),
            default=next(iter(LAYERS)),
            unit="MB",
            notes={size: name for size, (name, _) in LAYERS.items()},
        ),
        mode=Slider("mode", ("none", "full", "selective"), default="full"),
    )
