"""Recorders for a test that is not measured. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cudamem_testing.recorders.choose import Recorders
from cudamem_testing.windows.tracker import Tracker

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device


@contextmanager
def recording(device: str | Device) -> Iterator[Tracker]:
    """Record a selection of devices in a block, so that profiles in it show the same as in a measured test."""
    recorders = Recorders(device, record=True)
    try:
        opened = recorders.open()
        for recorder in opened:
            recorder.wake(limited=False)
        yield Tracker(opened)
    finally:
        recorders.close()
