"""Memory of cards outside torch's allocator: a note at the end of the run, and one for each file that made it grow.

No test is failed for it: the driver and libraries take it, in pieces of their own. It is read at the end of each file.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.sizes import format_size

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.recorders.outside import Outside
    from cudamem_testing.windows.tracker import Tracker

HINT = "plans of cuFFT, handles of libraries, kernels that were loaded, and the CUDA context take it from the driver"


class OutsideCheck:
    """Follows what each card tells."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._last: dict[Device, Outside] = {}

    def begin(self) -> None:
        """Before a test: the first reading of each card on which CUDA has started is what growth counts from."""
        for recorder in self._tracker.recorders:
            if recorder.device not in self._last and (now := recorder.outside()) is not None:
                self._last[recorder.device] = now

    def border(self, place: str) -> list[Finding]:
        """At the end of a file: a note for each card of which more is taken than before."""
        found = []
        for recorder in self._tracker.recorders:
            now, before = recorder.outside(), self._last.get(recorder.device)
            if now is None:
                continue
            self._last[recorder.device] = now
            if before is not None and (more := _more(before, now)) > 0:
                found.append(_finding(place, now, more))
        return found

    def notes(self) -> list[str]:
        """What was read last of each card."""
        return [str(last) for last in self._last.values()]


def _more(before: Outside, now: Outside) -> int:
    """Bytes by which it grew; readings of two kinds are not compared."""
    if before.bytes is None or now.bytes is None or (before.process is None) is not (now.process is None):
        return 0
    return now.bytes - before.bytes


def _finding(place: str, now: Outside, more: int) -> Finding:
    return Finding(
        Kind.OUTSIDE,
        Verdict.UNATTRIBUTED,
        Severity.NOTE,
        f"cudamem: {format_size(more)} more outside torch's allocator since {place} ({now.device})",
        bytes=more,
        device=now.device,
        cause=f"{Kind.OUTSIDE.value} | {Verdict.UNATTRIBUTED.value} | {place}",
        details=(f"   {now}", f"   {HINT}"),
    )
