"""Figures: one function each, from numbers to a matplotlib Figure, for notebooks and sliders alike."""

from remat.figures.activations import ledger_bars, memory_bars
from remat.figures.chains import (
    frontier_panels,
    frontiers_compared,
    predicted_and_measured,
    spacing_curves,
    step_memory,
)
from remat.figures.explored import step_on_frontier, strategy_bars
from remat.figures.layers import choice_frontiers, offload_frontiers
from remat.figures.planning import advice_picture, strategy_panels
from remat.figures.segments import replay_snapshots, segment_bars
from remat.figures.sharing import buffer_lifetimes
from remat.figures.streams import efficiency_curves, stream_timelines

__all__ = [
    "advice_picture",
    "buffer_lifetimes",
    "choice_frontiers",
    "efficiency_curves",
    "frontier_panels",
    "frontiers_compared",
    "ledger_bars",
    "memory_bars",
    "offload_frontiers",
    "predicted_and_measured",
    "replay_snapshots",
    "segment_bars",
    "spacing_curves",
    "step_memory",
    "step_on_frontier",
    "strategy_bars",
    "strategy_panels",
    "stream_timelines",
]
