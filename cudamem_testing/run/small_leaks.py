"""Judges small leaks of many tests together at the end of the run.

A test that leaves less than ``--cudamem-ignore-below`` is not judged. If one holder keeps such remainders of many
tests, together they are a leak. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cudamem_testing.guards import collect_garbage
from cudamem_testing.objects.places import KnownPlaces
from cudamem_testing.run.holders import BlockHolders
from cudamem_testing.verdicts.leaks import small_leaks

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.findings import Finding, Severity
    from cudamem_testing.model.rules import Ignored
    from cudamem_testing.run.attribution import Attribution, Attributions
    from cudamem_testing.run.running import LeakSubject


class SmallLeaks:
    """Remembers what was not judged, and of which tests."""

    def __init__(self, attributions: Attributions, ignore_below: Callable[[Device], int]) -> None:
        self._attributions = attributions
        self._ignore_below = ignore_below
        self.any = False
        """Whether a test left something that was not judged."""

    def add(self, subject: LeakSubject, device: Device) -> None:
        """Note that what a subject left on a device was not judged."""
        self.any = True
        self._attributions.of(device).set_aside(subject)

    def judge(self, severity: Severity, ignored: Ignored) -> list[Finding]:
        """A finding for each holder whose remainders are still live and reach the size that is judged."""
        enough = [way for way in self._attributions.all if self._is_enough(way)]
        return [finding for way in enough for finding in ignored.keep(self._judged(way, severity))]

    def _is_enough(self, way: Attribution) -> bool:
        return way.bytes_set_aside >= self._ignore_below(way.recorder.device) > 0

    def _judged(self, way: Attribution, severity: Severity) -> list[Finding]:
        device = way.recorder.device
        collect_garbage()
        blocks = way.blocks_set_aside()
        if not self._is_enough(way):
            return []
        holders = BlockHolders(KnownPlaces()).of(device, blocks)
        return small_leaks(blocks, holders, self._ignore_below(device), severity)
