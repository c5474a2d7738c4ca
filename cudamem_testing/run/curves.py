"""The memory over time of failed and of the largest tests, for a report.

A record is read only if a report is written, and of passed tests only if the peak is among the ``LARGEST`` so far.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeGuard

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.findings import Severity
from cudamem_testing.model.records import Exhibit
from cudamem_testing.safe_access import error_text
from cudamem_testing.show.printable import short_lines
from cudamem_testing.snapshots.curves import curve
from cudamem_testing.trace.curves import curves_of

if TYPE_CHECKING:
    from cudamem_testing.model.curves import Curve
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.windows import Window
    from cudamem_testing.run.running import ActiveTest
    from cudamem_testing.snapshots.replay import Replay
    from cudamem_testing.trace.profile import MemoryProfile
    from cudamem_testing.windows.tracker import Tracker

LARGEST, MOST_LINES = 10, 120
LEAST = 2**16
"""Bytes: tests with smaller peaks are not recorded unless they fail."""


class Curves:
    """Makes them at the end of tests."""

    def __init__(self, tracker: Tracker, replay: Callable[[Device], Replay | None]) -> None:
        """``replay`` gives the record of a device."""
        self._tracker = tracker
        self._replay = replay
        self._largest: list[int] = []

    def add(self, running: ActiveTest, whole: Sequence[Window]) -> None:
        """The curves of the test that ends, one for each device that it used, if it failed or is among the largest."""
        failed = running.failure is not None or any(one.severity is Severity.FAIL for one in running.findings)
        if not (self._is_large(running) or failed):
            return
        with CollectorPaused():
            try:
                running.curves = (*self._made(running, whole), *running.curves)
            except Exception as error:  # a picture must not hide a verdict
                running.notes.append(f"memory over time: {error_text(error)}")

    def _is_large(self, running: ActiveTest) -> bool:
        """Whether its peak is among the largest so far."""
        peak = max((one.peak_growth or 0 for one in running.windows if one.name == "call"), default=0)
        if peak < LEAST:
            return False
        if len(self._largest) < LARGEST:
            heapq.heappush(self._largest, peak)
            return True
        return heapq.heappushpop(self._largest, peak) < peak

    def _made(self, running: ActiveTest, whole: Sequence[Window]) -> list[Curve]:
        found = []
        for window in whole:
            recorder = next((one for one in self._tracker.recorders if one.device == window.device), None)
            if recorder is None or not recorder.tells_blocks or not window.allocations:
                continue
            now = self._tracker.read(recorder)
            replayed = self._replay(window.device)
            if replayed is None:
                continue
            made = curve(replayed, [one for one in running.windows if one.device == window.device], now)
            found += [] if made is None else [made]
        return found

    def profiled(self, running: ActiveTest | None, profiles: Iterable[MemoryProfile]) -> None:
        """The profiles of a test are about to be dropped: for a failed test they show its memory by category."""
        if not _has_failed(running):
            return
        for profile in profiles:
            try:
                running.curves += tuple(curves_of(profile.timeline()))
            except Exception as error:  # also of one that has recorded nothing
                running.notes.append(f"memory by category: {error_text(error)}")
            else:
                self.exhibit(running, "What the peak of the profile was for", profile.peak)

    def exhibit(self, running: ActiveTest | None, title: str, make: Callable[[], object]) -> None:
        """Keep the text of a result that a fixture of a failed test made."""
        if not _has_failed(running):
            return
        try:
            lines = short_lines(str(make())).split("\n")
        except Exception as error:  # such as of a block that was never left
            running.notes.append(f"{title}: {error_text(error)}")
            return
        more = [f"... {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
        running.exhibits.append(Exhibit(title, "\n".join((*lines[:MOST_LINES], *more))))


def _has_failed(running: ActiveTest | None) -> TypeGuard[ActiveTest]:
    """Whether there is a running test that has failed so far, by an error or a finding."""
    return running is not None and (running.failure is not None or bool(running.findings))
