"""Figures: one function each, from numbers to a matplotlib Figure; notebooks and sliders call the same one."""

from remat.figures.activations import ledger_bars, memory_bars
from remat.figures.chains import (
    frontier_panels,
    frontiers_compared,
    predicted_and_measured,
    spacing_curves,
    step_memory,
)

__all__ = [
    "frontier_panels",
    "frontiers_compared",
    "ledger_bars",
    "memory_bars",
    "predicted_and_measured",
    "spacing_curves",
    "step_memory",
]
