"""Measure on PyTorch: what autograd saves, how high memory peaks, and the models that are measured."""

from remat.pytorch.gpt import GPTLayer
from remat.pytorch.gpu import gpu_peaks
from remat.pytorch.peak import live_bytes, peak_bytes
from remat.pytorch.saved import SavedTensor, SavedTensors, saved_tensors
from remat.pytorch.segments import checkpoint_segments, mlp

__all__ = [
    "GPTLayer",
    "SavedTensor",
    "SavedTensors",
    "checkpoint_segments",
    "gpu_peaks",
    "live_bytes",
    "mlp",
    "peak_bytes",
    "saved_tensors",
]
