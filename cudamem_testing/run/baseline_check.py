"""Compares what a test used with its baseline, or measures it in detail to be recorded.

A capture is taken if a number differs by more than its tolerance, and to record. Library workspaces do not count: they
are removed from the numbers of a test, at the latest when it ends with something left. If not all of its events were
recorded, that is impossible, and its numbers are unknown. Where blocks record owners, memory of others that is freed
during the call, such as garbage of earlier tests, does not count either: the peak is then that of requested bytes,
which this does not lower. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cudamem_testing.guards import thawed
from cudamem_testing.model.baselines import Entry, Measured
from cudamem_testing.model.blocks import LiveSet
from cudamem_testing.model.changes import COUNTS, TRACKED, Change, Comparison, Spread
from cudamem_testing.model.evidence import NoEvidence, Why
from cudamem_testing.model.facts import Changed, NoBaseline
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.nodeids import name_in_module
from cudamem_testing.model.stacks import NO_STACK
from cudamem_testing.objects.search import find_holders
from cudamem_testing.recorders.identity import apart, is_real_card_of
from cudamem_testing.records.baselines import BaselineKey
from cudamem_testing.snapshots.backward import made_with_grad, saved_for_backward
from cudamem_testing.snapshots.evidence import allocations_before, first_moment, moment_of
from cudamem_testing.snapshots.explanations import failed
from cudamem_testing.snapshots.record import Kind as Event
from cudamem_testing.snapshots.replay import moment_between
from cudamem_testing.verdicts.changed import changed_places
from cudamem_testing.verdicts.grown import allocations_by_line, frees_of_others, peak_without, segments_taken, without
from cudamem_testing.verdicts.lines import fingerprints, lines_of, top_of
from cudamem_testing.verdicts.verdict import is_unclaimed
from cudamem_testing.wording.evidence import WORKSPACES

if TYPE_CHECKING:
    from cudamem_testing.model.counters import Counters
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.settings import Settings
    from cudamem_testing.model.windows import Window
    from cudamem_testing.records.baselines import Recorded
    from cudamem_testing.run.evidence import Evidence
    from cudamem_testing.run.running import ActiveTest
    from cudamem_testing.snapshots.record import LiveBlock
    from cudamem_testing.snapshots.replay import Replay
    from cudamem_testing.verdicts.lines import Line
    from cudamem_testing.windows.tracker import Tracker


class Look(NamedTuple):
    """A closer look at one window: the replay, the moment at which it began, and what was live at its peak, by line."""

    replayed: Replay
    start: int
    lines: tuple[Line, ...]


COUNTED = ("requested", "peak", "allocations")  # metrics in which a library's workspace would count
PLACES = ("requested", "peak", "retained")  # metrics whose growth shows in what is live
GROWTH = {"requested": "requested_growth", "peak": "peak_growth", "reserved": "reserved_growth"}


class BaselineCheck:
    """Compares tests that have a baseline, or measures in detail those to be recorded."""

    def __init__(
        self,
        recorded: Callable[[str], Recorded | None],
        environment: Callable[[Device], str | None],
        settings: Settings,
        evidence: Evidence,
        tracker: Tracker,
    ) -> None:
        """``recorded`` returns the baselines beside a test, ``environment`` what a device's numbers depend on."""
        self._beside = recorded
        self._environment = environment
        self._settings = settings
        self._evidence = evidence
        self._tracker = tracker
        self._calls: dict[Device, Window] = {}
        self._numbers: dict[Device, int] = {}  # of the running test's blocks
        self._notes: list[str] = []  # of the running test

    def call(
        self, running: ActiveTest, windows: Sequence[Window], comparison: Comparison | None, *, asked: bool
    ) -> list[Finding]:
        """The call of a test has passed: findings for what it took there.

        ``asked`` is whether a marker asks for it.
        """
        self._calls = {window.device: window for window in windows}
        self._numbers, self._notes = running.owner.numbers, running.notes
        busy = any(window.allocations for window in windows)
        found: list[Finding] = []
        for window in windows:
            environment = self._environment(window.device)
            if environment is None or not window.complete or window.requested_growth is None:
                continue
            measured = Measured(window.device, environment, self._values(window), asked=asked)
            spare = measured.idle and (busy or bool(running.measured))  # one of several devices, and not used
            entry = None if comparison is None else self._entry(running, measured)
            if comparison is not None and not (spare and entry is None):
                allowed = self._allowed(running, measured, comparison)
                measured = measured.compared(allowed.metrics, entry)
                measured, findings = self._compare(running, window, measured, allowed)
                found += findings
            running.measured.append(measured)
        return found

    def whole(self, running: ActiveTest, windows: Sequence[Window], comparison: Comparison | None) -> list[Finding]:
        """The test has ended: what it retains belongs to its numbers."""
        found: list[Finding] = []
        for place, measured in enumerate(running.measured):
            window = next((one for one in windows if one.device == measured.device), None)
            if window is None or window.retained is None:
                continue
            measured = self._settled(window, measured)
            values = {**measured.values, "retained": Spread.of(max(window.retained, self._own(window.device)))}
            measured = running.measured[place] = measured.with_values(_ordered(values))
            if comparison is None or "retained" not in comparison.metrics:
                continue
            entry = self._entry(running, measured)
            if entry is None:
                continue
            allowed = self._allowed(running, measured, comparison)
            changes = _beyond(entry, measured, allowed, ["retained"])
            if changes:
                running.measured[place] = measured.but(top=entry.top if measured.top is None else measured.top)
            if not self._records:
                where = self._elsewhere(running, measured)
                found += [_finding(change, measured, self._kept(window), entry, where) for change in changes]
                found += self._required(measured, entry, ["retained"])
        return found

    @property
    def _records(self) -> bool:
        return "baselines" in self._settings.update

    def _compare(
        self, running: ActiveTest, window: Window, measured: Measured, comparison: Comparison
    ) -> tuple[Measured, list[Finding]]:
        entry = self._entry(running, measured)
        metrics = [metric for metric in comparison.metrics if metric != "retained"]
        reported = measured.asked and entry is None and self._settings.reports  # for the one who accepts the report
        if (self._records and not self._stays(entry, measured, comparison, metrics)) or reported:
            measured, _ = self._look(window, measured)
        if self._records:
            return measured, []
        missing = self._required(measured, entry, comparison.metrics if entry is None else metrics)
        if entry is None or not _beyond(entry, measured, comparison, metrics):
            return measured, missing
        measured, look = self._look(window, measured)
        changes = _beyond(entry, measured, comparison, metrics)
        where = self._elsewhere(running, measured)
        return measured, [*(_finding(change, measured, look, entry, where) for change in changes), *missing]

    def _required(self, measured: Measured, entry: Entry | None, metrics: Sequence[str]) -> list[Finding]:
        """A finding if a baseline is required and lacks some of the ``metrics`` that its device has."""
        if self._settings.baseline != "require" or not (measured.asked or not measured.idle):
            return []
        known = _known(measured, metrics)
        if entry is None:
            return [_missing(measured)] if known else []
        lacking = [metric for metric in known if metric not in entry.values]
        return [_missing(measured, lacking)] if lacking else []

    def _stays(self, entry: Entry | None, measured: Measured, comparison: Comparison, metrics: Sequence[str]) -> bool:
        """Whether an entry stays when it is recorded again: one run within a spread does not replace the spread."""
        if entry is None or self._settings.repeat > 1 or entry.values.keys() != {*_known(measured, comparison.metrics)}:
            return False
        varies = any(spread.low < spread.high for spread in entry.values.values())
        return varies and not _beyond(entry, measured, comparison, metrics)

    def _entry(self, running: ActiveTest, measured: Measured) -> Entry | None:
        found = self._recorded(running, measured)
        return None if found is None else found[1]

    def _recorded(self, running: ActiveTest, measured: Measured) -> tuple[BaselineKey, Entry] | None:
        """The entry that holds for a test, and what it was recorded with."""
        recorded = self._beside(running.nodeid)
        if not recorded:
            return None
        key = recorded.find(BaselineKey(name_in_module(running.nodeid), measured.device, measured.environment))
        return None if key is None else (key, recorded.entries[key])

    def _allowed(self, running: ActiveTest, measured: Measured, comparison: Comparison) -> Comparison:
        """The comparison, of sizes alone and with the margin of simulated cards where the entry is of a real one."""
        found = self._recorded(running, measured)
        if found is None or not is_real_card_of(found[0].environment, measured.environment):
            return comparison
        allowed = comparison.on_simulated_card()
        skipped = [metric for metric in comparison.metrics if metric not in allowed.metrics]
        note = f"baseline on {measured.device}: {', '.join(skipped)} of a real card not compared on a simulated one"
        if skipped and note not in self._notes:
            self._notes.append(note)
        return allowed

    def _elsewhere(self, running: ActiveTest, measured: Measured) -> tuple[str, str]:
        """What differs if the entry was recorded with another number of threads."""
        found = self._recorded(running, measured)
        if found is None or found[0].environment == measured.environment:
            return "", ""
        return apart(found[0].environment, measured.environment)

    def _settled(self, whole: Window, measured: Measured) -> Measured:
        """Its numbers without library workspaces, which a test can have allocated only if it ends with other blocks."""
        then, now = whole.opened, whole.closed
        if measured.top is not None or then is None or now is None:
            return measured
        if (then.allocated, then.blocks) == (now.allocated, now.blocks):
            return measured
        call, sizes = self._calls[measured.device], self._tracker.recorder(measured.device).workspace_sizes()
        if not sizes or (call.requested_growth or 0) < min(sizes):
            return measured
        return self._look(call, measured, now)[0].but(top=None)

    def _own(self, device: Device) -> int:
        """The running test's live blocks, at least."""
        number = self._numbers.get(device)
        return 0 if number is None else self._tracker.recorder(device).owned(number).bytes

    def _look(
        self, window: Window, measured: Measured, now: Counters | None = None
    ) -> tuple[Measured, Look | NoEvidence]:
        """Its numbers without what does not count, and what was live at its peak, or why that is not known.

        ``now`` is what was read last where that was after the window.
        """
        try:
            return self._examine(window, measured, window.closed if now is None else now)
        except Exception as error:  # it must not hide the verdict
            return measured.but(top=()), failed(error)

    def _kept(self, window: Window) -> Look | NoEvidence:
        """What the test allocated and is still live."""
        replayed = self._evidence.replay(window.device)
        if replayed is None or not len(replayed.recording.events):
            return self._evidence.unknown(window.device, "still live")
        start = first_moment(replayed.recording, window)
        live = replayed.live_at(since=start, allocations=allocations_before(window))
        return Look(replayed, start, self._lines(replayed, live.fresh(), start, replayed.end))

    def _lines(self, replayed: Replay, live: LiveSet, start: int, end: int) -> tuple[Line, ...]:
        """A live set by line, with what autograd kept of it."""
        orders = replayed.orders
        saved = {orders[place] for place in saved_for_backward(replayed, start, end)}
        made = made_with_grad(replayed, start, end)
        with_grad = None if made is None else {orders[place] for place in made}
        return lines_of(live, self._evidence.locator.written, saved, with_grad)

    def _examine(self, window: Window, measured: Measured, now: Counters | None) -> tuple[Measured, Look | NoEvidence]:
        replayed = self._evidence.replay(window.device, counter="requested")
        if replayed is None:
            return measured.but(top=()), self._evidence.unknown(window.device)
        events = replayed.recording.events
        start, end = moment_of(replayed.recording, window.opened, now), self._end(replayed, window, now)
        dropped = not start and (replayed.recording.truncated or not len(events))  # the start is not in the record
        workspaces = self._workspaces(replayed, start, end, window.opened if dropped else None)
        if dropped and workspaces:
            return self._unknown(measured)
        if not len(events):
            return measured.but(top=()), self._evidence.unknown(window.device)
        places = {place for place in replayed.lives.live if events.addresses[place] in workspaces}
        size = sum(replayed.sizes[place] for place in places)
        number = None if dropped else self._numbers.get(window.device)
        frees = {} if number is None else frees_of_others(replayed, start, end, number)
        peak, moment = peak_without(replayed, start, end, places, frees)
        live = replayed.live_at(moment, since=start, allocations=allocations_before(window))
        values = dict(measured.values)
        if places:
            values["requested"] = Spread.of(peak)
            values["allocations"] = Spread.of(values["allocations"].low - len(places))
            if "peak" in values:
                values["peak"] = Spread.of(max(0, values["peak"].low - size))
        live = without(live, {replayed.orders[place] for place in places})
        lines = self._lines(replayed, live, start, end)
        known = self._fingerprints(replayed, start, end)
        return measured.but(values=values, top=top_of(lines), lines=known), Look(replayed, start, lines)

    def _fingerprints(self, replayed: Replay, start: int, end: int) -> str:
        """Those of all lines that allocated."""
        events, stacks = replayed.recording.events, replayed.recording.stacks
        numbers = {events.stacks[place] for place in range(start, end) if events.kinds[place] == Event.ALLOC}
        return fingerprints((stacks[number] for number in numbers), self._evidence.locator.written)

    @staticmethod
    def _end(replayed: Replay, window: Window, now: Counters | None) -> int:
        end = moment_between(replayed.recording, window.closed, now)
        return replayed.end if end is None else end

    def _workspaces(self, replayed: Replay, start: int, end: int, then: Counters | None) -> set[int]:
        """Addresses of the workspaces of libraries that were allocated from ``start`` to ``end`` and are kept.

        Where not all events are there, and ``then`` is what was read at the start, those too that may have been.
        """
        live = [block for place, block in replayed.lives.live.items() if start <= place < end]
        if then is not None:
            older = [one.block for one in replayed.lives.before if one.block is not None]
            more = sum(block.requested for block in older) - (then.requested or 0)
            live += [block for block in older if block.requested <= more]
        sizes = self._tracker.recorder(replayed.recording.device).workspace_sizes()
        kept = [block for block in live if block.requested in sizes]
        return self._unclaimed(replayed, kept) if kept else set()

    @staticmethod
    def _unclaimed(replayed: Replay, blocks: Sequence[LiveBlock]) -> set[int]:
        with thawed():
            holders = find_holders([block.address for block in blocks], budget_seconds=10.0)
        stacks = replayed.recording.stacks
        return {
            block.address
            for block in blocks
            if block.address in holders and is_unclaimed(stacks[block.stack], holders[block.address])
        }

    def _unknown(self, measured: Measured) -> tuple[Measured, NoEvidence]:
        """Without the numbers in which a workspace may count: it is then neither recorded nor compared."""
        missing = NoEvidence("live at the peak", Why.WORKSPACES)
        self._notes.append(f"baseline on {measured.device}: {WORKSPACES}")
        values = {name: spread for name, spread in measured.values.items() if name not in COUNTED}
        return measured.but(values=values, metrics=(), top=()), missing

    def _values(self, window: Window) -> dict[str, Spread]:
        known = {metric: getattr(window, GROWTH.get(metric, metric)) for metric in TRACKED if metric != "retained"}
        if window.device in self._numbers:  # blocks record owners there
            known["peak"] = known["requested"]
        return {metric: Spread.of(number) for metric, number in known.items() if number is not None}


def _ordered(values: dict[str, Spread]) -> dict[str, Spread]:
    return {metric: values[metric] for metric in TRACKED if metric in values}


def _known(measured: Measured, metrics: Iterable[str]) -> list[str]:
    """The metrics that the device has; what a test retains is known at its end."""
    return [metric for metric in metrics if metric in measured.values or metric == "retained"]


def _beyond(entry: Entry, measured: Measured, comparison: Comparison, metrics: Iterable[str]) -> list[Change]:
    both = [metric for metric in metrics if metric in entry.values and metric in measured.values]
    changes = [comparison.change(metric, entry.values[metric], measured.values[metric]) for metric in both]
    return [change for change in changes if change.grew or change.shrank]


def _finding(
    change: Change, measured: Measured, look: Look | NoEvidence, entry: Entry, elsewhere: tuple[str, str]
) -> Finding:
    fact = Changed(change) if change.shrank else _grown(change, look, entry)
    if not change.shrank:
        fact = replace(fact, recorded=elsewhere[0], now=elsewhere[1])
    return Finding(
        Kind.BASELINE,
        Verdict.IMPROVED if change.shrank else Verdict.OVER,
        Severity.NOTE if change.shrank else Severity.FAIL,
        fact,
        bytes=None if change.metric in COUNTS else abs(change.growth),
        device=measured.device,
        allocated=str(fact.places[0].line or NO_STACK) if fact.places else None,
        cause=f"baseline {change.metric}",
    )


def _grown(change: Change, look: Look | NoEvidence, entry: Entry) -> Changed:

    if isinstance(look, NoEvidence):
        return Changed(change, missing=look)
    if change.metric in ("reserved", "segments"):
        return Changed(change, taken=segments_taken(look.replayed, look.start))
    if change.metric == "allocations":
        return Changed(change, taken=allocations_by_line(look.replayed, look.start))
    if change.metric in PLACES:
        retained = change.metric == "retained"
        places, more = changed_places(*((), look.lines) if retained else (entry.top, look.lines, entry.lines))
        return Changed(change, tuple(places), more=more)
    return Changed(change)


def _missing(measured: Measured, lacking: Sequence[str] = ()) -> Finding:
    return Finding(
        Kind.BASELINE,
        Verdict.NO_BASELINE,
        Severity.FAIL,
        NoBaseline(measured.environment, tuple(lacking)),
        device=measured.device,
        cause="baseline missing",
    )
