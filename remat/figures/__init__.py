"""Figures: one function each, from numbers to a matplotlib Figure, for notebooks and sliders alike."""

from remat.figures.activations import ledger_bars, memory_bars
from remat.figures.chains import (
    frontier_panels,
    frontiers_compared,
    predicted_and_measured,
    spacing_curves,
    step_memory,
)
from remat.figures.sharing import buffer_lifetimes

__all__ = [
    "buffer_lifetimes",
    "frontier_panels",
    "frontiers_compared",
    "ledger_bars",
    "memory_bars",
    "predicted_and_measured",
    "spacing_curves",
    "step_memory",
]
