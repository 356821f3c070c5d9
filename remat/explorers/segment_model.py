"""What the explorer of chapter 6 draws: the segment model over L, k, A and mode, and replay beside it."""

from __future__ import annotations

from functools import cache

from remat import figures
from remat.choice import RECOMPUTE
from remat.figures.saving import Picture
from remat.gpt import gpt_layer, shape
from remat.layer import Layer
from remat.replay import replay
from remat.schedules import store_all, uniform
from remat.segment_model import chain_of_layers, segment_model, shares

# A in whole MB -> the layer that keeps so much, at s = 2048 and b = 1. Brown et al. 2020, table 2.1, give
# the 6.7B model h = 4096 and 32 heads: the reference configuration of the chapter.
_SIZES = [("GPT-3 6.7B", 4096, 32)] + [(name, shape(name).h, shape(name).a) for name in ("GPT-3 175B",)]
LAYERS = {
    round(layer.saved_bytes / 1e6): (name, layer)
    for name, h, a in _SIZES
    for layer in [gpt_layer(s=2048, b=1, h=h, a=a)]
}


@cache
def _counted(layer_mb: int, L: int, k: int, mode: str) -> float:
    """Count by replay: full recompute with a checkpoint every k, the others with every layer on its own."""
    layer = LAYERS[layer_mb][1]
    line = chain_of_layers(layer, L=L, recompute="selective" if mode == "selective" else "none")
    return replay(line, uniform(line, k) if mode == "full" else store_all(line)).peak


def draw_segment_model(*, L: int, k: int, A: int, mode: str) -> tuple[Picture, str]:
    """Draw none, full and selective for L layers of A megabytes with a checkpoint every k.

    >>> print(draw_segment_model(L=32, k=4, A=956, mode="full")[1])
    Full: the model counts 8 + 4 of 32 layers, 11.5 GB of 30.6, 62.5% saved, for 1 more forward, 33.3% more
    compute. Replay counts 4.1 GB for these layers.
    """
    layer: Layer = LAYERS[A][1]
    found = shares(layer)
    estimates = {
        word: segment_model(word, L=L, k=k, A=found.A, m=found.m, f=found.f)
        for word in ("none", "full", "selective")
    }
    counted = {word: _counted(A, L, k if word == "full" else 1, word) for word in RECOMPUTE}
    chosen = estimates[mode]
    gb = f"{chosen.peak / 1e9:,.1f} GB"
    if mode == "none":
        said = f"None: the model counts {L} layers of {found.A / 1e6:,.0f} MB, {gb}, and nothing runs twice."
    else:
        share = f"{chosen.saving:.1%} saved" if chosen.saving > 0 else f"{-chosen.saving:.1%} more than that"
        layers = f"{-(-L // k)} + {k}" if mode == "full" else f"{chosen.peak / found.A:.1f}"
        again = "1 more forward" if mode == "full" else f"{chosen.extra_forward:.1%} of a forward more"
        said = (
            f"{mode.capitalize()}: the model counts {layers} of {L} layers, {gb} of "
            f"{chosen.plain / 1e9:,.1f}, {share}, for {again}, {chosen.extra_compute:.1%} more compute."
        )
    return (
        figures.segment_bars(list(estimates.values()), counted, chosen=mode),
        f"{said} Replay counts {counted[mode] / 1e9:,.1f} GB for these layers.",
    )
