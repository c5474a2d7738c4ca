"""Evidence: the lines below a finding that say what the memory was made of.

A capture is taken only if a limit broke, memory ran out or a failed test is to be dumped. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cudamem_testing.model.stacks import Locator
from cudamem_testing.run.ledger import Ledger
from cudamem_testing.safe_access import error_text

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.churn import Churn
    from cudamem_testing.model.counters import Counters
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.evidence import NoEvidence
    from cudamem_testing.model.findings import Finding
    from cudamem_testing.model.windows import Window
    from cudamem_testing.recorders.capture import Capture
    from cudamem_testing.run.curves import Curves
    from cudamem_testing.snapshots.explanations import Explainer
    from cudamem_testing.snapshots.lifetimes import Counter
    from cudamem_testing.snapshots.record import Recording
    from cudamem_testing.snapshots.replay import Replay
    from cudamem_testing.trace.profile import MemoryProfile
    from cudamem_testing.windows.tracker import Tracker


class Evidence:
    """Makes evidence from a session's recorders. An error here must not hide a verdict: it becomes a line."""

    def __init__(
        self,
        tracker: Tracker,
        root: Path,
        owners: Mapping[int, str],
        *,
        recorded: bool,
        reports: bool = False,
        trends: bool = False,
    ) -> None:
        """``recorded`` is whether there are stacks and events, ``reports`` whether a report is written to a file.

        ``trends`` is whether a broken limit shows the memory over its window as a line of bars.
        """
        self._tracker = tracker
        self._recorded = recorded
        self._reports = reports
        self.trends = trends
        self._root = root
        self._owners = owners
        self.ledger = Ledger()
        self.running: str | None = None
        self.profiles: list[MemoryProfile] = []
        """The profiles that the running test made."""

    @cached_property
    def locator(self) -> Locator:
        """Finds the lines of the project."""
        return Locator(str(self._root))

    @cached_property
    def curves(self) -> Curves | None:
        """Makes the curves of tests; ``None`` without a report."""
        if not self._reports:
            return None
        from cudamem_testing.run.curves import Curves

        return Curves(self._tracker, self.replay)

    def explainer(self) -> Explainer:
        """Explains limits that broke at one moment."""
        from cudamem_testing.snapshots.explanations import Explainer

        return Explainer(self)

    def draw(self, windows: Sequence[Window], now: Counters, path: str | Path) -> Path:
        """Draw the memory of a window over time; see :func:`.snapshots.pictures.draw_window`."""
        from cudamem_testing.snapshots.pictures import draw_window

        return draw_window(self, windows, now, path)

    def churn(self, windows: Sequence[Window], now: Counters) -> Churn:
        """The allocations of a window by line; see :func:`.snapshots.pictures.churn_of_window`."""
        from cudamem_testing.snapshots.pictures import churn_of_window

        return churn_of_window(self, windows, now)

    def replay(
        self, device: Device, counter: Counter = "allocated", *, owners: Mapping[int, str] | None = None
    ) -> Replay | None:
        """The record of a device from now back to the start of the test; ``None`` where none is kept.

        ``owners`` are the names of owners of blocks, by default those of tests.
        """
        capture = self._tracker.recorder(device).capture()
        return None if capture is None else self._replayed(self.recording(capture, owners), counter)

    def live_of(self, device: Device, number: int, label: str) -> list[Block]:
        """The live blocks of an owner, on a device whose blocks record one; its cost does not depend on other
        blocks.
        """
        capture = self._tracker.recorder(device).capture_of(number)
        return [] if capture is None else [*self._replayed(self.recording(capture, {number: label})).live_at()]

    @staticmethod
    def _replayed(recording: Recording, counter: Counter = "allocated") -> Replay:
        from cudamem_testing.snapshots.replay import replay  # each import costs every run, and few need this one

        return replay(recording, counter)

    def unknown(self, device: Device, what: str = "live at the peak") -> NoEvidence:
        """The evidence for a device whose record has no events."""
        from cudamem_testing.snapshots.explanations import unknown

        return unknown(self._tracker.recorder(device), what)

    def recording(self, capture: Capture, owners: Mapping[int, str] | None = None) -> Recording:
        """A capture with the project's lines and the names of the tests that own its blocks."""
        from cudamem_testing.snapshots.capture import recording_of

        return self.ledger.named(recording_of(capture, self.locator, self._owners if owners is None else owners))

    def out_of_memory(self) -> list[Finding]:
        """A finding for each device on which the running test met an out-of-memory error."""
        from cudamem_testing.run.out_of_memory import findings

        return findings(self, self._tracker.recorders, recorded=self._recorded)

    def dump(self, folder: Path, nodeid: str) -> list[str]:
        """Write a snapshot of each device for a failed test; what was written or not, for people."""
        from cudamem_testing.records.expected.side import dump_stem
        from cudamem_testing.snapshots import export

        said = []
        for recorder in self._tracker.recorders:
            path = folder / f"{dump_stem(nodeid)}.{str(recorder.device).replace(':', '')}.pickle"
            try:
                capture = recorder.capture()
                if capture is not None:
                    folder.mkdir(parents=True, exist_ok=True)
                    export.write(path, self.recording(capture))
                    said.append(str(path))
            except Exception as error:
                said.append(f"{path} was not written: {error_text(error)}")
        return said or ["no snapshot: single blocks are not recorded here"]
