"""Devices and links: what a GPU can hold, compute and move, each figure with its source.

Peaks are the vendor's figures, dense (no sparsity) and 16-bit unless the entry says otherwise. A link has
two figures: its line rate, and the bandwidth that plans use, which is what copies reach in practice.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat import _check

GB = 10**9
TB = 10**12
TFLOP = 10**12


@dataclass(frozen=True)
class Device:
    """A processor with memory of its own.

    Attributes:
        name: the key in ``DEVICES``.
        memory: capacity, bytes.
        flops: dense peak of matrix products, FLOP/s.
        bandwidth: peak of its memory, bytes/s.
        source: where the figures come from.
    """

    name: str
    memory: int
    flops: float
    bandwidth: float
    source: str

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which compute and memory take the same time (the roofline's corner).

        >>> round(device("H100").ridge)
        295
        """
        return self.flops / self.bandwidth


@dataclass(frozen=True)
class Link:
    """A link between a device and its host, the same in both directions and full duplex.

    Attributes:
        name: the key in ``LINKS``.
        bandwidth: what a plan may count on, bytes/s per direction.
        line_rate: the most the wire carries, bytes/s per direction.
        source: where the figures come from.
    """

    name: str
    bandwidth: float
    line_rate: float
    source: str


def _devices(*devices: Device) -> dict[str, Device]:
    return {device.name: device for device in devices}


DEVICES: dict[str, Device] = _devices(
    Device("T4", 16 * GB, 65 * TFLOP, 320 * GB, "NVIDIA T4 Tensor Core GPU data sheet (2019): FP16"),
    Device("A100", 80 * GB, 312 * TFLOP, 2.039 * TB, "NVIDIA A100 data sheet (2021): 80 GB SXM, BF16"),
    Device(
        "H100", 80 * GB, 989 * TFLOP, 3.35 * TB, "NVIDIA H100 data sheet (2023): SXM5, BF16 without sparsity"
    ),
    Device(
        "H200", 141 * GB, 989 * TFLOP, 4.8 * TB, "NVIDIA H200 data sheet (2023): SXM, BF16 without sparsity"
    ),
    Device(
        "GH200",
        96 * GB,
        990 * TFLOP,
        4.0 * TB,
        "NVIDIA GH200 Grace Hopper data sheet (2023): 96 GB HBM3, FP16 without sparsity",
    ),
    Device(
        "B200",
        180 * GB,
        2250 * TFLOP,
        8.0 * TB,
        "NVIDIA DGX B200 data sheet (2024), one eighth of the system: BF16 without sparsity",
    ),
    Device(
        "laptop CPU",
        32 * GB,
        8 * 3.3e9 * 32,
        2 * 8 * 5.6e9,
        "AMD Ryzen 7 7840U product page (2023): 8 cores at a base clock of 3.3 GHz, 32 single-precision "
        "FLOPs a cycle (two 256-bit fused multiply-adds), two 64-bit channels of DDR5-5600; 32 GB is a "
        "common fitting",
    ),
)

_PCIE = "PCI-SIG base specification, 16 lanes, after line coding; four fifths of it counted on"


def _links(*links: Link) -> dict[str, Link]:
    return {link.name: link for link in links}


LINKS: dict[str, Link] = _links(
    Link("PCIe 3", 12.5 * GB, 16 * 8e9 * 128 / 130 / 8, _PCIE),
    Link("PCIe 4", 25 * GB, 16 * 16e9 * 128 / 130 / 8, _PCIE),
    Link("PCIe 5", 50 * GB, 16 * 32e9 * 128 / 130 / 8, _PCIE),
    Link("PCIe 6", 100 * GB, 16 * 64e9 * 242 / 256 / 8, _PCIE),
    Link(
        "NVLink-C2C",
        450 * GB,
        450 * GB,
        "NVIDIA GH200 Grace Hopper data sheet (2023): 900 GB/s in both directions together",
    ),
)


def device(name: str) -> Device:
    """Look a device up by name.

    Raises:
        ValueError: if the name is unknown; the message lists the known ones.

    >>> device("H100").memory
    80000000000
    """
    return _check.known("device", name, DEVICES)


def link(name: str) -> Link:
    """Look a link up by name.

    Raises:
        ValueError: if the name is unknown; the message lists the known ones.

    >>> link("PCIe 4").bandwidth
    25000000000
    """
    return _check.known("link", name, LINKS)
