"""Takes snapshots inside a program, and compares two of them.

.. code-block:: python

    before = snapshots.take()
    model.step()
    print(snapshots.compare(before, snapshots.take()))

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cudamem_testing.model.blocks import LiveSet
from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import Locator
from cudamem_testing.recorders.base import untold
from cudamem_testing.recorders.capture import Capture
from cudamem_testing.safe_access import type_name
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.snapshots import diff, export
from cudamem_testing.snapshots.capture import recording_of
from cudamem_testing.snapshots.record import Recording, SnapshotError
from cudamem_testing.snapshots.replay import Peak, replay
from cudamem_testing.snapshots.snapshot_files import read_file
from cudamem_testing.windows.tracker import Tracker

__tracebackhide__ = hide_wrong_arguments


class Snapshots:
    """Takes snapshots of the devices that a tracker measures. ``device`` defaults to the first measured one."""

    def __init__(self, tracker: Tracker, root: Path, owners: Mapping[int, str] | None = None) -> None:
        self._tracker = tracker
        self._locator = Locator(str(root))
        self._owners = owners

    def take(self, device: object = None) -> Recording:
        """The recorder's current state: live blocks with stacks, and the events since the test began.

        Raises:
            SnapshotError: if the device is not measured, or its blocks are unknown.
        """
        return recording_of(self._capture(device), self._locator, self._owners)

    def _capture(self, device: object) -> Capture:
        wanted = None if device is None else Device.parse(device)
        recorders = [one for one in self._tracker.recorders if wanted is None or wanted.covers(one.device)]
        if not recorders:
            measured = ", ".join(str(one.device) for one in self._tracker.recorders) or "nothing"
            raise SnapshotError(f"{device or 'a device'} is not measured (measured: {measured})")
        capture = recorders[0].capture()
        if capture is None:
            raise SnapshotError(untold(recorders[0]))
        return capture

    def live(self, device: object = None) -> LiveSet:
        """What is live now, with stacks."""
        return replay(self.take(device)).live_at()

    def peak(self, device: object = None) -> Peak:
        """The highest moment since the test began, and what was live then.

        Raises:
            SnapshotError: as :meth:`take`, and if no events were recorded (``--cudamem-stacks=off``).
        """
        capture = self._capture(device)
        recording = recording_of(capture, self._locator, self._owners)
        if capture.missing is not None and not len(recording.events):
            raise SnapshotError(f"the peak is unknown: {capture.missing}")
        return replay(recording).peak()

    def flamegraph(self, path: str | Path, device: object = None) -> Path:
        """Draw what was live at the highest moment since the test began, by stack, into a PNG or SVG file.

        Raises:
            SnapshotError: as :meth:`peak`.
            ModuleNotFoundError: matplotlib is not installed (extra ``plot``).
            ValueError: for another ending.
        """
        return self.peak(device).live.flamegraph(path)

    def compare(self, before: Recording, after: Recording) -> diff.Difference:
        """What is new, gone and grown by line between two snapshots of one device.

        Raises:
            TypeError: for anything else.
        """
        for one in (before, after):
            if not isinstance(one, Recording):
                raise TypeError(
                    f"compare() takes two snapshots, as take() and read() return them, not {type_name(one)}"
                )
        return diff.compare(before, after)

    def read(self, path: str | Path, device: object = None) -> Recording:
        """One device's recording from a file that this package or torch wrote; nothing in it is executed.

        Raises:
            SnapshotError: if the file cannot be read or holds no snapshot of the device.
        """
        return read_file(path, None if device is None else Device.parse(device), self._locator)

    def write(self, path: str | Path, device: object = None) -> None:
        """Write a snapshot that pytorch.org/memory_viz loads."""
        export.write(path, self.take(device))
