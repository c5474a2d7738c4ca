"""Decides which tests of this process are compared with their baseline, or recorded.

A test is compared if it has the marker, or under ``--cudamem`` if a baseline is recorded. Only a test whose own body
passed is compared. Numbers that are neither compared nor reported are not computed. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cudamem_testing.model.nodeids import file_of
from cudamem_testing.recorders.identity import identity
from cudamem_testing.show.places import baseline_file

if TYPE_CHECKING:
    from cudamem_testing.model.changes import Comparison
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.findings import Finding
    from cudamem_testing.model.settings import Settings
    from cudamem_testing.model.windows import Window
    from cudamem_testing.records.baselines import Recorded
    from cudamem_testing.run.baseline_check import BaselineCheck
    from cudamem_testing.run.evidence import Evidence
    from cudamem_testing.run.running import ActiveTest
    from cudamem_testing.windows.tracker import Tracker


class Baselines:
    """Compares tests with their baselines, or measures in detail those to be recorded."""

    def __init__(
        self,
        settings: Settings,
        root: Path,
        evidence: Evidence,
        tracker: Tracker,
        without: AbstractSet[str] = frozenset(),
        *,
        sent: bool,
    ) -> None:
        """``without`` are the files that have none, and ``sent`` is whether another process reads what is measured."""
        self._settings = settings
        kept = "baselines" in settings.update or settings.reports
        self._wanted = sent or kept or settings.baseline == "require"  # the numbers of every test
        self._root = root
        self._evidence = evidence
        self._tracker = tracker
        self._without = without
        self._entries: dict[str, Recorded | None] = {}  # by test file: a path is slow to make, and to compare
        self._environments: dict[Device, str] = {}

    @cached_property
    def _comparing(self) -> BaselineCheck:
        """Made for the first test that is compared; many runs have none."""
        from cudamem_testing.run.baseline_check import BaselineCheck

        return BaselineCheck(self.recorded, self.environment, self._settings, self._evidence, self._tracker)

    def identify(self) -> None:
        """Note what numbers depend on, before a test can change the number of threads; of cards once they are used."""
        for recorder in self._tracker.recorders:
            self.environment(recorder.device)

    def environment(self, device: Device) -> str | None:
        """The environment of a device's numbers; ``None`` if it is unknown, or not known yet."""
        if device not in self._environments:
            found = identity(device)
            if found is None:
                return None
            self._environments[device] = found
        return self._environments[device]

    def comparison(self, nodeid: str, marked: Comparison | None) -> Comparison | None:
        """What is compared of a test, ``None`` for nothing; ``marked`` is what its marker asks for."""
        off = self._settings.baseline == "off" or not self._settings.enforce
        if off or file_of(nodeid) in self._without:
            return None
        if marked is not None or not self._settings.on:
            return marked
        from cudamem_testing.model.changes import Comparison

        return Comparison()

    def recorded(self, nodeid: str) -> Recorded | None:
        """What is recorded of the tests of one file; ``None`` for nothing."""
        module = file_of(nodeid)
        if module not in self._entries:
            path = baseline_file(self._root, nodeid)
            self._entries[module] = _read(path, self._settings.compares_real_cards) if os.path.exists(path) else None
        return self._entries[module]

    def compares(self, nodeid: str, marked: Comparison | None) -> bool:
        """Whether the numbers of a test are compared, recorded or sent."""
        if self._wanted or marked is not None:
            return True
        module = nodeid.partition("::")[0]  # as ``file_of``, which is one call more in every test
        return bool(self._entries[module] if module in self._entries else self.recorded(nodeid))

    def call(self, running: ActiveTest, windows: Sequence[Window]) -> list[Finding]:
        """The call of a test that is compared has passed: findings for what it took there."""
        asked = running.comparison is not None
        return self._comparing.call(running, windows, self._comparison(running), asked=asked)

    def whole(self, running: ActiveTest, windows: Sequence[Window]) -> list[Finding]:
        """The test has ended: what it retains belongs to its numbers."""
        return self._comparing.whole(running, windows, self._comparison(running)) if running.measured else []

    def _comparison(self, running: ActiveTest) -> Comparison | None:
        return self.comparison(running.nodeid, running.comparison)


def _read(path: Path, real_cards: bool) -> Recorded | None:
    from cudamem_testing.records.baselines import readable

    return readable(path, real_cards=real_cards)
