"""Small leaks: what tests left that is too small to be judged for one test, judged together at the end of the run.

A test that leaves less than ``--cudamem-ignore-below`` is not judged. Where one holder got such rests from many tests,
they add up to a leak all the same. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.findings import Finding, Severity
    from cudamem_testing.model.rules import Ignored
    from cudamem_testing.recorders.base import Recorder
    from cudamem_testing.run.belongings import Belongings
    from cudamem_testing.run.evidence import Evidence
    from cudamem_testing.run.running import Subject
    from cudamem_testing.windows.tracker import Tracker


class SmallLeaks:
    """Remembers whose rests were not judged. Where blocks carry no owner, the ledger has those of a test by address."""

    def __init__(
        self, tracker: Tracker, evidence: Evidence, belongings: Belongings, ignore_below: Callable[[Device], int]
    ) -> None:
        self._tracker = tracker
        self._evidence = evidence
        self._belongings = belongings
        self._ignore_below = ignore_below
        self._labels: dict[Device, dict[int, str]] = {}
        self._without_number: dict[Device, set[str]] = {}

    @property
    def any(self) -> bool:
        """Whether a test left something that was not judged."""
        return bool(self._labels or self._without_number)

    def add(self, subject: Subject, device: Device) -> None:
        """What a subject left on a device was not judged."""
        owner = subject.owner
        number = owner.numbers.get(device)
        if number is not None:
            self._labels.setdefault(device, {})[number] = owner.label
        else:
            recorder = next(one for one in self._tracker.recorders if one.device == device)
            self._evidence.ledger.enter(device, owner.label, self._belongings.blocks(recorder, subject))
            self._without_number.setdefault(device, set()).add(owner.label)

    def judge(self, severity: Severity, ignored: Ignored) -> list[Finding]:
        """A finding for each holder that has as much as is judged, of rests that are still live."""
        found: list[Finding] = []
        for recorder in self._tracker.recorders:
            if self._is_enough(recorder):
                found += ignored.keep(self._judged(recorder, severity))
        return found

    def _is_enough(self, recorder: Recorder) -> bool:
        device = recorder.device
        if device in self._without_number:
            size = sum(block.size for block in self._blocks(device))
        else:
            size = sum(recorder.owned(number).bytes for number in self._labels.get(device, ()))
        return size >= self._ignore_below(device) > 0

    def _judged(self, recorder: Recorder, severity: Severity) -> list[Finding]:
        from cudamem_testing.guards import collect_garbage
        from cudamem_testing.objects import KnownPlaces
        from cudamem_testing.run.holders import BlockHolders
        from cudamem_testing.verdicts.leaks import small_leaks

        device = recorder.device
        collect_garbage()
        blocks = self._blocks(device)
        if not self._is_enough(recorder):
            return []
        holders = BlockHolders(KnownPlaces()).of(device, blocks)
        return small_leaks(blocks, holders, self._ignore_below(device), severity)

    def _blocks(self, device: Device) -> list[Block]:
        owners = self._without_number.get(device)
        replayed = self._evidence.replay(device, owners=self._labels.get(device))
        if replayed is None:
            return []
        live = replayed.live_at()
        return [block for block in live if (block.owner in owners if owners else block.owner is not None)]
