"""On PyTorch: measure what autograd saves and how high memory peaks, and run plans on real modules."""

from remat.pytorch.compare import step_peak, time_ratios
from remat.pytorch.gpt import GPTLayer
from remat.pytorch.gpu import gpu_peaks
from remat.pytorch.host import Offloaded, offload
from remat.pytorch.keep import Keep, keep
from remat.pytorch.peak import live_bytes, peak_bytes
from remat.pytorch.phases import Phase, phases
from remat.pytorch.profile import profile
from remat.pytorch.record import SavedTensor, SavedTensors
from remat.pytorch.run import Run, run
from remat.pytorch.saved import saved_tensors
from remat.pytorch.segments import Checkpointed, checkpoint_segments, checkpointed, mlp
from remat.pytorch.work import Operations, held_bytes, operations

__all__ = [
    "Checkpointed",
    "GPTLayer",
    "Keep",
    "Offloaded",
    "Operations",
    "Phase",
    "Run",
    "SavedTensor",
    "SavedTensors",
    "checkpoint_segments",
    "checkpointed",
    "gpu_peaks",
    "held_bytes",
    "keep",
    "live_bytes",
    "mlp",
    "offload",
    "operations",
    "peak_bytes",
    "phases",
    "profile",
    "run",
    "saved_tensors",
    "step_peak",
    "time_ratios",
]
