"""remat: which activations to keep, which to recompute, which to move to the host.

The line of travel: describe (``layer``, ``gpt``, ``chain``), plan (``schedules``, ``frontier``), judge
(``replay``), run (``pytorch``), draw (``figures``).
"""

__version__ = "0.1.0"
