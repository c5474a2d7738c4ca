"""The test that runs now. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from cudamem_testing.model.findings import Finding
from cudamem_testing.model.records import TestRecord
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.override import NOTHING
from cudamem_testing.windows.owners import Owner
from cudamem_testing.windows.tracker import Span

if TYPE_CHECKING:
    from cudamem_testing.model.baselines import Measured
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.limits import Budget
    from cudamem_testing.model.windows import Window


@dataclass(slots=True)
class Subject:
    """What is judged for leaks and cycles: a test's span and owner, and what wider fixtures did inside.

    ``release_frames`` lets go of the frames of a test that failed. ``judged`` tells which devices count.
    """

    whole: Span
    owner: Owner
    fixtures: Sequence[Window]
    release_frames: Callable[[], None] | None
    judged: Callable[[Device], bool] = lambda device: True


class Running:
    """Its open spans and what was found so far."""

    def __init__(
        self, item: pytest.Item, attempt: int, whole: Span, phase: Span, budgets: Sequence[Budget], owner: Owner
    ) -> None:
        self.item = item
        self.nodeid = owner.label
        self.attempt = attempt
        self.whole = whole
        self.phase = phase
        self.budgets = tuple(budgets)
        self.windows: list[Window] = []
        self.findings: list[Finding] = []
        self.measured: list[Measured] = []
        self.used: float | None = None
        self.notes: list[str] = []
        self.warmed_up = 0
        self.warming_up = False
        self.failure: BaseException | None = None
        self.owner = owner
        self.foreign: list[Window] = []
        self.override = item.stash.get(keys.OVERRIDE, NOTHING)
        self.subject = Subject(whole, owner, self.foreign, None, self.override.covers)
        self.disown: Callable[[], None] = lambda: None

    def add(self, windows: Sequence[Window], findings: Sequence[Finding]) -> bool:
        """A region inside the test has ended; whether its budget is enforced. Warm-up runs do not count."""
        if not self.warming_up:
            self.windows += windows
            self.findings += findings
        return not self.warming_up

    def record(self, whole: tuple[Window, ...]) -> TestRecord:
        """What the reports know of it; the outcome is known to the collector of reports alone."""
        return TestRecord(
            self.nodeid,
            attempt=self.attempt,
            windows=tuple(self.windows),
            whole=whole,
            findings=tuple(self.findings),
            budget_used=self.used,
            notes=tuple(self.notes),
            measured=tuple(self.measured),
        )
