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
from remat.figures.granularity import budget_points, granularity_bars
from remat.figures.layers import choice_frontiers, offload_frontiers
from remat.figures.planning import advice_picture, strategy_panels
from remat.figures.plans import cuts_at_one_peak, profile_bars
from remat.figures.segments import api_picture, replay_snapshots, segment_bars, segment_curves
from remat.figures.sharing import buffer_lifetimes
from remat.figures.streams import efficiency_curves, stream_timelines

__all__ = [
    "advice_picture",
    "api_picture",
    "budget_points",
    "buffer_lifetimes",
    "choice_frontiers",
    "cuts_at_one_peak",
    "efficiency_curves",
    "frontier_panels",
    "frontiers_compared",
    "granularity_bars",
    "ledger_bars",
    "memory_bars",
    "offload_frontiers",
    "predicted_and_measured",
    "profile_bars",
    "replay_snapshots",
    "segment_bars",
    "segment_curves",
    "spacing_curves",
    "step_memory",
    "step_on_frontier",
    "strategy_bars",
    "strategy_panels",
    "stream_timelines",
]
