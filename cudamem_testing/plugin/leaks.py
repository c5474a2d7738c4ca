"""The leak check at the end of a test: settle, and judge what is left.

Nothing here runs for a test that retains nothing: on the CPU its owner number says so, on CUDA equal counts of bytes
and blocks do. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cudamem_testing.guards import collect_garbage, thawed
from cudamem_testing.leaks.findings import freed_finding, leak_findings
from cudamem_testing.leaks.settle import Left, Settlement, Step, settle
from cudamem_testing.model.blocks import Block
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Finding, Severity, Verdict
from cudamem_testing.model.windows import Window
from cudamem_testing.objects import find_holders
from cudamem_testing.plugin.evidence import Evidence, moment_of
from cudamem_testing.recorders.base import Owned
from cudamem_testing.torch_api import capturing
from cudamem_testing.windows.owners import Owner, Owners
from cudamem_testing.windows.tracker import Span, Tracker

SEARCH_SECONDS = 5.0


@dataclass(slots=True)
class Subject:
    """The test that is judged: its span and owner, what wider fixtures did inside, and what lets go of its frames."""

    whole: Span
    owner: Owner
    fixtures: Sequence[Window]
    release_frames: Callable[[], None] | None


class LeakCheck:
    """Judges what tests retain."""

    def __init__(
        self, tracker: Tracker, owners: Owners, evidence: Evidence, ignore_below: Callable[[Device], int]
    ) -> None:
        self._tracker = tracker
        self._owners = owners
        self._evidence = evidence
        self._ignore_below = ignore_below

    def left(self, subject: Subject) -> Left:
        """What the test retains on each device where it is not nothing."""
        exact = self._owners.owned(subject.owner)
        left: dict[Device, Owned] = {}
        for window in self._tracker.peek(subject.whole):
            owned = exact.get(window.device)
            if owned is None:
                owned = Owned(window.retained or 0, window.blocks or 0)
            if owned.blocks or (owned.bytes and window.device not in exact):
                left[window.device] = owned
        return left

    def judge(self, subject: Subject, severity: Severity) -> list[Finding]:
        """Settle, and a finding for each cause of what is left."""
        if not any(abs(owned.bytes) >= self._ignore_below(device) for device, owned in self.left(subject).items()):
            return []
        looked: dict[Verdict, dict[Device, list[Block]]] = {}

        def look(step: Step) -> None:
            if step.verdict is not None:
                looked[step.verdict] = {device: self._blocks(device, subject) for device in self.left(subject)}

        settlement = settle(self._steps(subject), lambda: self.left(subject), look)
        remaining = {device: self._blocks(device, subject) for device in settlement.left}
        found = self._freed(settlement, looked, remaining)
        for device, blocks in remaining.items():
            if sum(block.size for block in blocks) >= max(1, self._ignore_below(device)):
                found += self._held(blocks, severity)
        return found

    def _steps(self, subject: Subject) -> list[Step]:
        recorders = self._tracker.recorders
        steps = [
            Step("waiting for the device", lambda: _each(recorder.finish for recorder in recorders)),
            Step("garbage collection", lambda: None if capturing() else collect_garbage(), Verdict.CYCLE),
            Step("library workspaces", lambda: _each(recorder.release for recorder in recorders), Verdict.WORKSPACE),
        ]
        if subject.release_frames is not None:
            steps.insert(0, Step("frames of the failed test", subject.release_frames, Verdict.TRACEBACK))
        return steps

    def _blocks(self, device: Device, subject: Subject) -> list[Block]:
        """The test's own live blocks: allocated since its setup began, outside the wider fixtures."""
        replayed = self._evidence.replay(device)
        if replayed is None:
            return []
        if device in subject.owner.numbers:
            return [block for block in replayed.live_at() if block.owner == subject.owner.label]
        now = next(window for window in self._tracker.peek(subject.whole) if window.device == device)
        start = moment_of(replayed.recording, now.opened, now.closed)
        first = replayed.recording.first
        foreign = [
            range(
                first + moment_of(replayed.recording, window.opened, now.closed),
                first + moment_of(replayed.recording, window.closed, now.closed),
            )
            for window in subject.fixtures
            if window.device == device
        ]
        return [
            block for block in replayed.live_at(since=start).fresh() if not any(block.order in span for span in foreign)
        ]

    def _held(self, blocks: Sequence[Block], severity: Severity) -> list[Finding]:
        addresses = [block.address for block in blocks if block.address is not None]
        with thawed():
            holders = find_holders(addresses, budget_seconds=SEARCH_SECONDS)
        return leak_findings(blocks, holders, severity)

    def _freed(
        self,
        settlement: Settlement,
        looked: dict[Verdict, dict[Device, list[Block]]],
        remaining: dict[Device, list[Block]],
    ) -> list[Finding]:
        found = []
        after = {device: {block.order for block in blocks} for device, blocks in remaining.items()}
        for freed in settlement.freed:
            if freed.verdict is None or freed.owned.bytes < self._ignore_below(freed.device):
                continue
            before = looked.get(freed.verdict, {}).get(freed.device, [])
            gone = [block for block in before if block.order not in after.get(freed.device, set())]
            found.append(
                freed_finding(freed.verdict, freed.device, freed.owned.bytes, freed.owned.blocks, freed.step, gone)
            )
        return found


def _each(actions: Iterable[Callable[[], None]]) -> None:
    for action in actions:
        action()
