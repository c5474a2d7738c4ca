"""Evidence of a broken limit: what was live at the peak of a window, or what it left, by line.

A capture is taken only when a limit broke. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from cudamem_testing.model.evidence import Evidence, NoEvidence, Shown, Trend, Why
from cudamem_testing.model.live_tables import LiveTable, Source, live_table
from cudamem_testing.recorders.base import Recorder, untold
from cudamem_testing.safe_access import error_text
from cudamem_testing.snapshots.churn import churn
from cudamem_testing.snapshots.evidence import Explains, Records, allocations_before, first_moment
from cudamem_testing.snapshots.fragmentation import fragmentation

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.limits import Breach
    from cudamem_testing.model.windows import Window
    from cudamem_testing.snapshots.replay import Replay

BEFORE = "this test, before the window"
#: Fewer events make no line of bars; and the most bars of one, which fits into 80 columns with its label.
FEW, STRETCHES = 8, 36
DROPPED = "this test, or live before it: its first events were dropped"


def unknown(recorder: Recorder, what: str) -> NoEvidence:
    """The evidence if a recorder has no moments."""
    if recorder.tells_blocks:
        return NoEvidence(what, Why.NO_EVENTS)
    return NoEvidence(what, Why.NO_BLOCKS, untold(recorder))


class Explainer:
    """Explains the limits that broke at one moment; each device is captured at most once."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._replays: dict[Device, Replay | None] = {}

    def __call__(self, breach: Breach) -> tuple[Evidence, ...]:
        """The evidence for one broken limit."""
        try:
            return self._explain(breach)
        except Exception as error:
            return (failed(error),)

    def _explain(self, breach: Breach) -> tuple[Evidence, ...]:
        window, metric = breach.window, breach.limit.metric
        if metric == "retries" or breach.limit.side == "at least":
            return ()
        if window.device not in self._replays:
            self._replays[window.device] = self._records.replay(window.device)
        replayed = self._replays[window.device]
        if replayed is None or not len(replayed.recording.events):
            title = {"retained": "still live", "allocations": "allocations, by line"}.get(metric, "live at the peak")
            return (self._records.unknown(window.device, title),)
        start = first_moment(replayed.recording, window)
        if metric == "allocations":
            return (allocations(replayed, start),)
        source = self._records.locator.source
        if metric == "retained":
            return (new_since(replayed, window, start, source),)
        found: list[Evidence] = [*trends(replayed, start)] if metric == "peak" and self._records.trends else []
        found += [at_peak(replayed, window, start, self._records.running, source)]
        if metric in ("reserved", "fragmentation"):
            use = fragmentation(replayed.recording)
            found += [use.main, *use.private]
        return (*found, *purposes(self._records.profiles, window))


def allocations(replayed: Replay, start: int) -> Evidence:
    """The allocations since a moment, by line."""
    return Shown(churn(replayed, start).allocated())


def at_peak(replayed: Replay, window: Window, start: int, running: str | None, source: Source) -> LiveTable:
    """What was live at the window's peak."""
    moved = window.opened is None or window.opened.allocated != window.start  # by a fixture: levels are not comparable
    measured = None if moved else window.peak
    peak = replayed.peak(start, measured=measured, allocations=allocations_before(window))
    dropped = not start and bool(replayed.recording.truncated)
    live = replace(peak.live, blocks=tuple(_labelled(block, running, dropped) for block in peak.live))
    return live_table(live, start=window.start, source=source).cut()


def _labelled(block: Block, running: str | None, dropped: bool) -> Block:
    """Label blocks that the test itself allocated before the window.

    If events were ``dropped`` since the window began, a block without a number may be the test's too.
    """
    if block.preexisting and block.owner is None and block.order is None and dropped:
        return replace(block, owner=DROPPED)
    return replace(block, owner=BEFORE) if block.preexisting and block.owner == running is not None else block


def lines_at_peak(records: Records, window: Window) -> dict[str, int]:
    """Bytes that were live at the window's peak and allocated in it, by line of the project; empty where not known."""
    replayed = records.replay(window.device)
    if replayed is None or not len(replayed.recording.events):
        return {}
    start = first_moment(replayed.recording, window)
    live = replayed.peak(start, measured=window.peak, allocations=allocations_before(window)).live.fresh()
    return {group.key: group.size for group in live.group_by(lambda block: block.stack.line)}


def trends(replayed: Replay, start: int) -> Iterator[Trend]:
    """The memory from a moment to the end of a record, where enough happened for a line of bars."""
    totals = replayed.totals[start:]
    events = len(totals) - 1
    if events >= FEW:
        number = min(STRETCHES, len(totals))
        ends = [len(totals) * place // number for place in range(number + 1)]
        yield Trend(tuple(max(totals[first:last]) for first, last in pairwise(ends)), events)


def new_since(replayed: Replay, window: Window, start: int, source: Source) -> LiveTable:
    """What was allocated in the window and is still live."""
    live = replayed.live_at(since=start, allocations=allocations_before(window))
    return replace(live_table(live.fresh(), "still live", source=source).cut(), notes=())


def purposes(profiles: Iterable[Explains], window: Window) -> Iterator[Evidence]:
    """What the window's peak was for, if one of some profiles was recorded around it."""
    try:
        lines = next(filter(None, (profile.explain(window) for profile in profiles)), ())
    except Exception as error:
        yield failed(error)
    else:
        if lines:
            yield Shown(lines)


def failed(error: Exception) -> NoEvidence:
    """The evidence if reading it failed."""
    return NoEvidence("evidence", Why.ERROR, error_text(error))
