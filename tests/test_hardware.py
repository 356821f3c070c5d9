import math
from dataclasses import FrozenInstanceError

import pytest

from remat.hardware import DEVICES, LINKS, device, link


def test_the_catalogue_holds_what_the_book_speaks_of() -> None:
    assert {"A100", "H100", "H200", "GH200", "B200", "T4", "laptop CPU"} <= set(DEVICES)
    assert {"PCIe 3", "PCIe 4", "PCIe 5", "PCIe 6", "NVLink-C2C"} <= set(LINKS)


def test_the_figures_that_reference_values_are_computed_with() -> None:
    assert (device("H100").flops, device("H100").bandwidth) == (989e12, 3.35e12)
    assert device("H100").memory == device("A100").memory == 80e9
    assert [link(name).bandwidth for name in ("PCIe 4", "PCIe 5", "NVLink-C2C")] == [25e9, 50e9, 450e9]


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_has_plausible_figures_and_a_source(name: str) -> None:
    found = device(name)
    assert found.name == name
    assert 8e9 <= found.memory <= 1e12
    assert 5e11 <= found.flops <= 1e16
    assert 5e10 <= found.bandwidth <= 2e13
    assert 1 < found.ridge < 1000
    assert len(found.source) > 10


@pytest.mark.parametrize("name", LINKS)
def test_a_link_is_planned_with_at_most_what_its_wire_carries(name: str) -> None:
    found = link(name)
    assert found.name == name
    assert 0.7 * found.line_rate < found.bandwidth <= found.line_rate
    assert len(found.source) > 10


def test_each_generation_of_the_bus_doubles_the_last() -> None:
    generations = [link(f"PCIe {i}") for i in (3, 4, 5, 6)]
    for slow, fast in zip(generations, generations[1:], strict=False):
        assert fast.bandwidth == 2 * slow.bandwidth
        assert math.isclose(fast.line_rate, 2 * slow.line_rate, rel_tol=0.05)


def test_entries_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        device("H100").memory = 0  # type: ignore[misc]


@pytest.mark.parametrize("name", ["H1000", "h100", "", None, 4, ["H100"]])
def test_an_unknown_device_or_link_is_refused_with_the_known_ones(name: object) -> None:
    with pytest.raises(ValueError, match="device must be one of ") as error:
        device(name)  # type: ignore[arg-type]
    assert all(repr(known) in str(error.value) for known in DEVICES) and repr(name) in str(error.value)
    with pytest.raises(ValueError, match="link must be one of ") as error:
        link(name)  # type: ignore[arg-type]
    assert all(repr(known) in str(error.value) for known in LINKS) and repr(name) in str(error.value)
