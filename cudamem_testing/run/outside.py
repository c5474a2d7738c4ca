"""Notes the memory of cards outside torch's allocator: at the end of the run, and for each file that made it grow.

It fails no test, because the driver and libraries allocate it, in their own sizes. It is read at the end of each file.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.outside import OutsideUse
    from cudamem_testing.recorders.base import Recorder
    from cudamem_testing.windows.tracker import Tracker


class OutsideCheck:
    """Follows the readings of each card.

    Where other workers may use the ``shared`` cards, numbers of whole cards say nothing about this process.
    """

    def __init__(self, tracker: Tracker, *, shared: bool = False) -> None:
        self._tracker = tracker
        self._shared = shared
        self._last: dict[Device, OutsideUse] = {}
        self._recorders: Sequence[Recorder] = ()
        self._unread: Sequence[Recorder] = ()  # those of cards without a reading

    def begin(self) -> None:
        """Before a test: growth counts from the first reading of each card on which CUDA has started."""
        if self._recorders is not self._tracker.recorders:
            self._recorders = self._tracker.recorders
            self._unread = [one for one in self._recorders if one.device.is_card]
        if not self._unread:  # in each test after the first on a card
            return
        for recorder in self._unread:
            if recorder.device not in self._last and (now := recorder.outside()) is not None:
                self._last[recorder.device] = now
        self._unread = [one for one in self._unread if one.device not in self._last]

    def border(self, place: str) -> list[Finding]:
        """At the end of a file: a note for each card on which more is used than before."""
        found = []
        for recorder in self._tracker.recorders:
            now, before = recorder.outside(), self._last.get(recorder.device)
            if now is None:
                continue
            self._last[recorder.device] = now
            if self._shared and now.process is None:
                continue
            if before is not None and (more := _more(before, now)) > 0:
                found.append(_finding(place, now, more))
        return found

    def notes(self) -> list[str]:
        """The last reading of each card."""
        if not self._last:
            return []
        from cudamem_testing.wording.outside import outside

        return [outside(last) for last in self._last.values()]


def _more(before: OutsideUse, now: OutsideUse) -> int:
    """Its growth in bytes; readings of two kinds are not compared."""
    if before.bytes is None or now.bytes is None or (before.process is None) is not (now.process is None):
        return 0
    return now.bytes - before.bytes


def _finding(place: str, now: OutsideUse, more: int) -> Finding:
    from cudamem_testing.model.outside import OutsideGrew

    return Finding(
        Kind.OUTSIDE,
        Verdict.UNATTRIBUTED,
        Severity.NOTE,
        OutsideGrew(place, now),
        bytes=more,
        device=now.device,
        cause=f"{Kind.OUTSIDE.value} | {Verdict.UNATTRIBUTED.value} | {place}",
    )
