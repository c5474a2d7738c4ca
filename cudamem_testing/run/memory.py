"""Memory outside pytest: windows, budgets and limits, which show what was live when a limit breaks, by line.

.. code-block:: python

    with Memory.on("auto") as memory:
        with memory.budget(peak="512MiB"):
            model.generate(...)

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from cudamem_testing.model.stacks import Locator
from cudamem_testing.run.analysis import analysis
from cudamem_testing.snapshots.capture import recording_of
from cudamem_testing.snapshots.explanations import Explainer, unknown
from cudamem_testing.snapshots.pictures import churn_of_window, draw_window
from cudamem_testing.snapshots.replay import replay
from cudamem_testing.windows import memory
from cudamem_testing.windows.judge import Judge

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.evidence import NoEvidence
    from cudamem_testing.run.running import ActiveTest
    from cudamem_testing.run.session import Session
    from cudamem_testing.snapshots.replay import Replay
    from cudamem_testing.windows.analysis import Analysis
    from cudamem_testing.windows.tracker import Tracker


class Memory(memory.Memory):
    """Windows, budgets and hard limits; :class:`~cudamem_testing.windows.regions.OverBudget` names the lines."""

    records = True

    @classmethod
    def judge_of(cls, tracker: Tracker) -> Judge:
        """A judge whose findings show what was live, by line."""
        records = _Records(tracker)
        return Judge(lambda: Explainer(records), partial(draw_window, records), partial(churn_of_window, records))

    @classmethod
    def analysis_of(cls, tracker: Tracker) -> Analysis:
        """Reads the records of a tracker."""
        return analysis(_Records(tracker), tracker)


def memory_of(
    session: Session, running: ActiveTest, ranks: Callable[[], AbstractContextManager[None]]
) -> memory.Memory:
    """What the running test measures itself with; processes that start inside ``ranks`` may ask to be measured."""
    grown = session.leaks.grown if session.leaks else None
    reads = analysis(session.evidence, session.tracker, grown, running.add)
    place = partial(getattr, running, "place")
    return memory.Memory(
        session.tracker, running.add, session.judge, reads, name="cuda_memory", place=place, ranks=ranks
    )


class _Records:
    """The records of a tracker's devices; files below the current folder count as the project."""

    running: str | None = None
    trends = True
    profiles = ()  # they are only known in tests

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self.locator = Locator(os.getcwd())

    def replay(self, device: Device) -> Replay | None:
        """The record of a device since it was opened."""
        capture = self._tracker.recorder(device).capture()
        return None if capture is None else replay(recording_of(capture, self.locator))

    def unknown(self, device: Device, what: str) -> NoEvidence:
        """The evidence if nothing is recorded."""
        return unknown(self._tracker.recorder(device), what)
