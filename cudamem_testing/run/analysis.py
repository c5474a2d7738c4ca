"""Reads the records of a session for the regions of its tests. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cudamem_testing.model.live_tables import live_table
from cudamem_testing.snapshots.evidence import moment_of
from cudamem_testing.snapshots.explanations import lines_at_peak
from cudamem_testing.snapshots.record import Kind
from cudamem_testing.windows.analysis import Analysis
from cudamem_testing.windows.failing import FirstTry
from cudamem_testing.wording.evidence import live

if TYPE_CHECKING:
    from cudamem_testing.model.counters import Counters
    from cudamem_testing.model.failing import Sweep, Trapped
    from cudamem_testing.model.stacks import RawFrame
    from cudamem_testing.recorders.base import Recorder
    from cudamem_testing.snapshots.evidence import Records
    from cudamem_testing.snapshots.replay import Replay
    from cudamem_testing.windows.grow import Explain
    from cudamem_testing.windows.regions import Tell
    from cudamem_testing.windows.tracker import Tracker


def analysis(records: Records, tracker: Tracker, growth: Explain | None = None, tell: Tell | None = None) -> Analysis:
    """What can be read from the records of a tracker; ``tell`` is called with findings."""
    first_try = partial(_first_try, records, tracker)
    return Analysis(growth, partial(lines_at_peak, records), first_try, partial(_sweep, records, tracker, tell))


def _sweep(*given: Any, **options: Any) -> Sweep:
    from cudamem_testing.run.sweep import sweep  # its modules import torch, and few tests need them

    __tracebackhide__ = True
    return sweep(*given, **options)


def _first_try(
    records: Records,
    tracker: Tracker,
    recorder: Recorder,
    start: Counters,
    found: Trapped,
    frames: Sequence[RawFrame],
) -> FirstTry | None:
    """What was allocated before the last failure and is live at the peak after it.

    The peak is that from the first allocation after the failure on: until then what failed is unwound. ``None`` if no
    events are recorded.
    """
    line = records.locator.stack(frames).line
    replayed = records.replay(recorder.device)
    if replayed is None or not len(replayed.recording.events):
        return None
    first = moment_of(replayed.recording, start, tracker.read(recorder))
    failed = _moment_of_request(replayed, first, found.made + 1)
    later = _moment_of_request(replayed, failed, 1)
    if later >= replayed.end:
        return FirstTry(line, 0)
    at_peak = replayed.peak(later + 1, since=first, allocations=start.allocations).live.fresh()
    orders = {block.order for block in replayed.live_at(failed, since=first, allocations=start.allocations).fresh()}
    kept = tuple(block for block in at_peak.blocks if block.order in orders)
    total = sum(block.size for block in kept)
    if not total:
        return FirstTry(line, 0)
    table = live_table(replace(at_peak, blocks=kept), "of the first try", source=records.locator.source).cut()
    return FirstTry(line, total, tuple(live(table)))


def _moment_of_request(replayed: Replay, first: int, number: int) -> int:
    """The moment before the ``number``-th allocation from a moment on, counted from 1; the end if there are fewer."""
    kinds = replayed.recording.events.kinds
    for moment in range(first, len(kinds)):
        if kinds[moment] == Kind.ALLOC:
            number -= 1
            if number == 0:
                return moment
    return len(kinds)
