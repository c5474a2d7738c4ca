"""Creates a recording from the capture of a recorder of this process, on any device. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cudamem_testing.model.stacks import Locator
from cudamem_testing.recorders.capture import Capture, CpuCapture
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.read_cpu import read_cpu
from cudamem_testing.snapshots.record import Recording


def recording_of(capture: Capture, locator: Locator, owners: Mapping[int, str] | None = None) -> Recording:
    """The capture as a :class:`Recording`. ``owners`` names the tests behind the CPU recorder's owner numbers."""
    if isinstance(capture, CpuCapture):
        recording = read_cpu(
            capture.blocks,
            capture.events,
            lambda number: locator.stack(capture.frames(number)),
            owners=owners,
            first=capture.first,
            truncated=capture.truncated,
        )
    else:
        recording = read(capture.snapshot, capture.device, locator, capture.max_entries)
    if capture.missing is None:
        return recording
    return replace(recording, stackless=capture.missing, notes=(*recording.notes, capture.missing))
