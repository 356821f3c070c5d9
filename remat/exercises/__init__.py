"""Checks of the coding exercises: each says right, wrong and why, or not solved yet.

The answers are computed, by replay wherever a plan is asked for. Inputs are drawn at random where a function
is asked for; a known mistake is named. ``remat.pytorch.exercises`` has those that measure.
"""

from remat.exercises.activations import longest, needs, saved, swiglu
from remat.exercises.chains import best_spacing, every_k, fooled, within
from remat.exercises.layers import again, choose
from remat.exercises.planning import one_buffer, shortest, strategy
from remat.exercises.verdict import Verdict

__all__ = [
    "Verdict",
    "again",
    "best_spacing",
    "choose",
    "every_k",
    "fooled",
    "longest",
    "needs",
    "one_buffer",
    "saved",
    "shortest",
    "strategy",
    "swiglu",
    "within",
]
