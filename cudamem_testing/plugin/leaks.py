"""The leak check at the end of a test: settle, and judge what is left.

Nothing here runs for a test that retains nothing: on the CPU its owner number says so, on CUDA equal counts of bytes
and blocks do. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from cudamem_testing.guards import collect_garbage, thawed
from cudamem_testing.leaks.findings import freed_finding, leak_findings
from cudamem_testing.leaks.rules import Ignored, Rule
from cudamem_testing.leaks.settle import Left, Settlement, Step, settle
from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.records import LedgerEntry
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.windows import Window
from cudamem_testing.objects import find_holders
from cudamem_testing.plugin.evidence import Evidence, moment_of
from cudamem_testing.recorders.base import Owned, Recorder
from cudamem_testing.snapshots.text import live_section
from cudamem_testing.torch_api import capturing
from cudamem_testing.windows.grow import Grown, by_size
from cudamem_testing.windows.owners import Owner, Owners
from cudamem_testing.windows.tracker import Span, Tracker

SEARCH_SECONDS = 5.0
GROWN_SHOWN = 3


@dataclass(slots=True)
class Subject:
    """The test that is judged: its span and owner, what wider fixtures did inside, and what lets go of its frames.

    ``judged`` tells which devices count.
    """

    whole: Span
    owner: Owner
    fixtures: Sequence[Window]
    release_frames: Callable[[], None] | None
    judged: Callable[[Device], bool] = lambda device: True


class LeakCheck:
    """Judges what tests retain."""

    def __init__(
        self,
        tracker: Tracker,
        owners: Owners,
        evidence: Evidence,
        ignore_below: Callable[[Device], int],
        rules: Sequence[Rule] = (),
    ) -> None:
        self._tracker = tracker
        self._owners = owners
        self._evidence = evidence
        self._ignore_below = ignore_below
        self.ignored = Ignored(rules)
        self._known: dict[Device, set[int]] = {}

    def left(self, subject: Subject) -> Left:
        """What the test retains on each device where it is not nothing."""
        exact = self._owners.owned(subject.owner)
        left: dict[Device, Owned] = {}
        for window in self._tracker.peek(subject.whole):
            owned = exact.get(window.device)
            if not subject.judged(window.device) or not self._recorder(window.device).tells_blocks:
                continue
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
            if device not in subject.owner.numbers:
                self._evidence.ledger.enter(device, subject.owner.label, blocks)
            if sum(block.size for block in blocks) >= max(1, self._ignore_below(device)):
                found += self.ignored.keep(self._held(blocks, severity))
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
        if not len(replayed.recording.events):
            known = self._known.get(device, set()) | self._evidence.ledger.entered(device)
            return [block for block in replayed.live_at() if block.address not in known]
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

    def fixture_made(self, label: str, windows: Sequence[Window]) -> None:
        """A wider fixture was set up: enter what it allocated, on devices whose blocks carry no owner."""
        for window in windows:
            recorder = self._recorder(window.device)
            if not window.blocks or recorder.tells_owners:
                continue
            replayed = self._evidence.replay(window.device)
            if replayed is not None:
                start = moment_of(replayed.recording, window.opened, window.closed)
                self._evidence.ledger.enter(window.device, label, replayed.live_at(since=start).fresh().blocks)

    def begin(self) -> None:
        """What is live before the first test is nobody's."""
        for recorder in self._tracker.recorders:
            if recorder.device not in self._known:
                self._known[recorder.device] = self._unentered(recorder)

    def border(self, place: str) -> list[Finding]:
        """At the end of a module: blocks that nobody was blamed for, because every test's counts came out even."""
        found = []
        for recorder in self._tracker.recorders:
            now = self._unentered(recorder)
            new = now - self._known.get(recorder.device, set())
            self._known[recorder.device] = now
            if new:
                found.append(self._hidden(recorder.device, place, new))
        return found

    def ledger(self) -> list[LedgerEntry]:
        """Who left what is live now, largest first."""
        totals: dict[Device, dict[str, Owned]] = self._owners.ledger()
        totals.update(self._evidence.ledger.totals())
        entries = [
            LedgerEntry(str(device), owner, owned.bytes, owned.blocks)
            for device, by_owner in totals.items()
            for owner, owned in by_owner.items()
        ]
        return sorted(entries, key=lambda entry: -entry.bytes)

    def _unentered(self, recorder: Recorder) -> set[int]:
        if recorder.tells_owners:
            return set()
        replayed = self._evidence.replay(recorder.device)
        return set() if replayed is None else self._evidence.ledger.unknown(replayed.recording)

    def _hidden(self, device: Device, place: str, addresses: set[int]) -> Finding:
        replayed = self._evidence.replay(device)
        live = replayed.live_at() if replayed is not None else LiveSet(device)
        blocks = tuple(block for block in live if block.address in addresses)
        self._evidence.ledger.enter(device, f"{place} (which test is not known)", blocks)
        section = live_section(replace(live, blocks=blocks, rounding=0), title="still live")
        size = sum(block.size for block in blocks)
        return Finding(
            Kind.LEAK,
            Verdict.UNATTRIBUTED,
            Severity.WARN,
            f"cudamem: {format_size(size)} of {place} is still live, hidden behind equal counts ({device})",
            bytes=size,
            device=device,
            allocated=blocks[0].stack.line if blocks else None,
            cause=f"leak | {Verdict.UNATTRIBUTED.value} | {place}",
            details=tuple(section.splitlines()),
        )

    def _recorder(self, device: Device) -> Recorder:
        return next(one for one in self._tracker.recorders if one.device == device)

    def grown(self, recorder: Recorder, start: Counters) -> Grown:
        """What a repeated step allocated since ``start`` and did not give back, with its holders."""
        replayed = self._evidence.replay(recorder.device)
        if replayed is None:
            return Grown()
        now = self._tracker.read(recorder)
        fresh = replayed.live_at(since=moment_of(replayed.recording, start, now)).fresh().blocks
        findings = self._held(fresh, Severity.NOTE)
        lines = [line for finding in findings[:GROWN_SHOWN] for line in str(finding).splitlines()]
        return Grown(by_size([block.size for block in fresh]), tuple(lines))

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
