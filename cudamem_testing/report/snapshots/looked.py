"""A snapshot that was read and replayed: what every view of it is made of. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

from cudamem_testing.model.allocator_settings import AllocatorSettings
from cudamem_testing.model.blocks import LiveSet
from cudamem_testing.model.churn import Churn
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.curves import Curve
from cudamem_testing.model.devices import Device
from cudamem_testing.model.live_tables import BEFORE_RECORD, LiveTable, live_table
from cudamem_testing.model.sizes import format_size
from cudamem_testing.recorders.build import RecorderUnavailable
from cudamem_testing.show.progress import Progress
from cudamem_testing.snapshots import native
from cudamem_testing.snapshots.churn import churn
from cudamem_testing.snapshots.curves import curve
from cudamem_testing.snapshots.flames import Flame, flame_of, volume
from cudamem_testing.snapshots.fragmentation import Fragmentation, fragmentation
from cudamem_testing.snapshots.record import Recording
from cudamem_testing.snapshots.replay import Peak, Replay, replay
from cudamem_testing.snapshots.snapshot_files import read_file
from cudamem_testing.snapshots.whatif.answers import WhatIf, what_if
from cudamem_testing.snapshots.whatif.job import Prepared, prepare
from cudamem_testing.snapshots.whatif.why import Why, failed_request, why

Of = Literal["peak", "end", "volume"]
OF: tuple[Of, ...] = ("peak", "volume", "end")
#: Bytes of a file and numbers of events from which on a piece of work takes seconds.
LARGE_FILE, MANY_EVENTS = 32 * 2**20, 200_000


class Looked:
    """One file's recording, and what follows from it, each made when it is first asked for."""

    def __init__(
        self,
        name: str,
        recording: Recording,
        progress: Progress,
        capacity: int | None = None,
        settings: Sequence[AllocatorSettings] = (),
        request: int | None = None,
        of: Of = "peak",
    ) -> None:
        """``capacity`` is what the process could reserve, in bytes; ``settings`` are asked about beside the usual.

        ``request`` is one that is held against the free ranges, in bytes; ``of`` is what a flame graph is of.
        """
        self.of: Of = of
        self.request = request
        self.name = name
        self.recording = recording
        self.progress = progress
        self._capacity = capacity
        self._settings = settings

    @classmethod
    def read(
        cls,
        path: Path,
        device: Device | None,
        progress: Progress,
        capacity: int | None = None,
        settings: Sequence[AllocatorSettings] = (),
        request: int | None = None,
        of: Of = "peak",
    ) -> Looked:
        """Read a file.

        Raises:
            SnapshotError: it cannot be read, or holds no snapshot of the device.
        """
        try:
            size = path.stat().st_size
        except OSError:  # the reader says why
            size = 0
        native.library(size, lambda line: progress.step(line, long=True))
        progress.step(f"reading {path.name} ({format_size(size)})", long=size >= LARGE_FILE)
        return cls(path.name, read_file(path, device, progress=progress.at), progress, capacity, settings, request, of)

    def _step(self, words: str) -> None:
        self.progress.step(words, long=len(self.recording.events) >= MANY_EVENTS)

    @cached_property
    def replayed(self) -> Replay:
        """The allocated bytes at every moment."""
        self._step(f"replaying {len(self.recording.events):,} events of {self.name}")
        return replay(self.recording)

    @cached_property
    def peak(self) -> Peak | None:
        """The highest moment; ``None`` if no events were recorded."""
        return self.replayed.peak(since=0) if len(self.recording.events) else None

    @cached_property
    def end(self) -> LiveSet:
        """What is live at the end."""
        return self.replayed.live_at()

    @cached_property
    def use(self) -> Fragmentation | None:
        """How the segments are used at the end; ``None`` if the device has none."""
        return fragmentation(self.recording) if self.recording.segments else None

    @cached_property
    def curve(self) -> Curve | None:
        """The memory over time by line; ``None`` if no events were recorded."""
        return curve(self.replayed, (), Counters(), before=f"({BEFORE_RECORD})")

    @cached_property
    def _prepared(self) -> Prepared:
        allocated = self.replayed if len(self.recording.events) else None
        self._step(f"looking for what is in the way in {self.name}")
        return prepare(self.recording, self._capacity, allocated)

    @cached_property
    def why(self) -> Why | None:
        """Why the last request that failed did not fit; ``None`` if none failed."""
        return why(self.recording, self._capacity, self._prepared) if failed_request(self.recording) else None

    @cached_property
    def what_if(self) -> WhatIf | str:
        """What other settings would have changed; or in words why that is unknown."""
        try:
            return what_if(self.recording, self._capacity, self._settings, self._step, self._prepared)
        except (RecorderUnavailable, ValueError) as error:
            return str(error)

    @property
    def notes_of_why(self) -> tuple[str, ...]:
        """What may be missing from the answers."""
        return self.notes if isinstance(self.what_if, str) else (*self.what_if.notes, *self.notes)

    @cached_property
    def churn(self) -> Churn:
        """The allocations by line."""
        return churn(self.replayed)

    def flame(self, of: Of) -> Flame:
        """Bytes by stack: live at the peak, live at the end, or of all allocations.

        Raises:
            ValueError: it needs events, and none were recorded.
        """
        if of == "end":
            return flame_of(self.end, "Live at the end, by stack", BEFORE_RECORD)
        if self.peak is None:
            raise ValueError(f"{self.name} has no events: write --of=end")
        if of == "volume":
            return volume(self.replayed, "All allocations, by stack")
        return flame_of(self.peak.live, "Live at the peak, by stack", BEFORE_RECORD)

    @property
    def peak_table(self) -> LiveTable | None:
        """What was live at the peak, by line."""
        return None if self.peak is None else live_table(self.peak.live, before=BEFORE_RECORD)

    @property
    def end_table(self) -> LiveTable:
        """What is live at the end, by line."""
        return live_table(self.end, "live at the end", before=BEFORE_RECORD)

    @property
    def notes(self) -> tuple[str, ...]:
        """What may be missing; those of the recording itself come first."""
        live = self.end if self.peak is None else self.peak.live
        return tuple(dict.fromkeys((*self.recording.notes, *live.notes)))
