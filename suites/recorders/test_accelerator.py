"""Accelerators other than CUDA, on a stand-in that answers ``torch.accelerator``'s statistics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cudamem_testing.model.counters import ZERO, Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.accelerator import AcceleratorRecorder, counters_of
from cudamem_testing.recorders.choose import Recorders, missing
from suites.recorders.stand_in import MIB, StandIn, in_place


@pytest.fixture
def device() -> Iterator[StandIn]:
    with in_place() as made:
        made.take(MIB)
        yield made


def test_counters(device: StandIn) -> None:
    recorder = AcceleratorRecorder(Device("xpu", 0))
    recorder.read_and_reset_peaks()
    device.take(3 * MIB)
    device.take(-3 * MIB)
    size = {"allocated": MIB, "requested": MIB, "active": MIB, "reserved": 4 * MIB}
    peak = {f"{name}_peak": 4 * MIB for name in size}
    wanted = Counters(**size, **peak, allocations=2, segments=2, blocks=1)
    assert recorder.read_and_reset_peaks() == wanted
    assert recorder.read_and_reset_peaks() == wanted._replace(allocated_peak=MIB, requested_peak=MIB, active_peak=MIB)
    recorder.finish()
    assert device.waits == [0]
    recorder.close()


def test_no_reader_loses_a_peak(device: StandIn) -> None:
    """A test sees its own peaks, and its resets hide none from us."""
    recorder, stats = AcceleratorRecorder(Device("xpu", 0)), torch.accelerator.memory_stats
    device.take(7 * MIB)
    device.take(-7 * MIB)
    recorder.read_and_reset_peaks()
    assert stats(0)["allocated_bytes.all.peak"] == 8 * MIB
    device.take(2 * MIB)
    device.take(-2 * MIB)
    torch.accelerator.reset_peak_memory_stats(0)
    assert stats(0)["allocated_bytes.all.peak"] == MIB
    found = recorder.read_and_reset_peaks()
    assert (found.allocated, found.allocated_peak) == (MIB, 3 * MIB)
    recorder.close()


def test_before_it_is_used_nothing_is_asked(device: StandIn) -> None:
    device.started = False
    device.stats.clear()
    recorder = AcceleratorRecorder(Device("xpu", 1))
    assert recorder.read_and_reset_peaks() == ZERO
    recorder.finish()
    assert device.waits == []
    with pytest.raises(RuntimeError, match=r"memory of xpu:1 cannot be limited: torch.accelerator has no limit"):
        recorder.limit(MIB)
    recorder.close()


def test_what_a_device_does_not_count_is_unknown() -> None:
    found = counters_of({"allocated_bytes": {"all": {"current": 3, "peak": 5}}, "num_alloc_retries": 2})
    assert (found.allocated, found.allocated_peak, found.reserved, found.blocks, found.retries) == (3, 5, None, None, 2)
    assert found.notes == (
        "this device does not count requested_bytes, reserved_bytes, active_bytes, allocation, segment",
    )


def test_which_devices_are_chosen(device: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    for selection, names in (("auto", ("xpu:0", "xpu:1")), (Device("xpu", 1), ("xpu:1",)), ("all", None)):
        recorders = Recorders(selection)
        recorders.open()
        assert recorders.environment.devices == (names or ("xpu:0", "xpu:1", "cpu"))
        assert recorders.environment.allocator == "xpu"
        recorders.close()
    assert missing(Device("cuda")) == "cuda is not on this machine (torch finds xpu:0, xpu:1)"

    def unknown() -> bool:
        raise RuntimeError("Allocator for mps is not a DeviceAllocator.")

    monkeypatch.setattr(torch._C, "_accelerator_isAllocatorInitialized", unknown)
    assert missing(Device("xpu")) == "xpu is not on this machine (torch finds no CUDA device)"
