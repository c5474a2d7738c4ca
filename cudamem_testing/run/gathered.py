"""Collects the results of a run from each process that runs its tests. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING

from cudamem_testing.model.findings import GROUPED, Finding, Kind, Severity
from cudamem_testing.model.nodeids import file_of
from cudamem_testing.model.records import (
    ALL,
    Environment,
    FixtureRecord,
    LedgerEntry,
    RunCoverage,
    RunRecord,
    TestRecord,
    Unchecked,
    Unseen,
)
from cudamem_testing.model.sizes import count
from cudamem_testing.show.places import FOLDER
from cudamem_testing.windows.defaults import IGNORED_BELOW

if TYPE_CHECKING:
    from cudamem_testing.model.checked import Checked
    from cudamem_testing.model.settings import Settings
    from cudamem_testing.model.windows import Window
    from cudamem_testing.run.process_summary import ProcessSummary
    from cudamem_testing.verdicts.policy import Policy


class Gathered:
    """The parts of a run's record; ``flags`` are those that running one of its tests once more needs."""

    def __init__(self, settings: Settings, root: Path, flags: tuple[str, ...]) -> None:
        self._settings = settings
        self._root = root
        self._flags = flags
        self.tests: list[TestRecord] = []
        self.notes: list[str] = []
        self.findings: list[Finding] = []
        self.checked: dict[str, list[Checked]] = {}
        self.failures: tuple[str, ...] = ()
        self.extent = RunCoverage()
        self._environments: list[Environment] = []
        self._fixtures: list[FixtureRecord] = []
        self._unenforced: Counter[str] = Counter()
        self._unchecked: Counter[Unchecked] = Counter()
        self._ledger: list[LedgerEntry] = []
        self._ignored: Counter[str] = Counter()
        self._about_cards: list[str] = []
        self._about_rules: list[str] = []
        self._about_records: list[str] = []
        self._unseen = Unseen()

    def left_unchecked(self, what: Unchecked, times: int) -> None:
        """Something that was asked for was not checked."""
        self._unchecked[what] += times

    @property
    def fails(self) -> bool:
        """Whether a finding of the run itself fails it."""
        return any(finding.severity is Severity.FAIL for finding in self.findings)

    @property
    def has_news(self) -> bool:
        """Whether there is something to report even with ``-q``."""
        asked = self._settings.prune or self._settings.update  # then a file was written, or not
        return bool(self.notes or (asked and (self._about_records or self._unseen.causes)))

    def add(self, known: ProcessSummary) -> None:
        """Add what one process knows besides the records of its tests."""
        self._environments.append(known.environment)
        self._fixtures += known.fixtures
        self._unenforced.update(known.unenforced)
        self._unchecked.update(known.unchecked)
        self.findings += known.findings
        self._ledger += known.ledger
        self._ignored.update(known.ignored)
        self.notes += known.notes
        self._about_cards += known.outside

    def run(self) -> RunRecord:
        """The record of the run so far."""
        environments = self._environments or [Environment()]
        devices = dict.fromkeys(device for one in environments for device in one.devices)
        first = environments[0]
        return RunRecord(
            Environment(tuple(devices), first.torch, first.allocator),
            tuple(self.tests),
            tuple(self._fixtures),
            tuple(self.findings),
            tuple(dict.fromkeys((*self.notes, *self._about_cards, *self._about_rules, *self._about_records))),
            dict(sorted(self._unenforced.items())),
            tuple(self._ledger),
            tuple(one for checks in self.checked.values() for one in checks),
            self.extent,
            self.failures,
            dict(self._unchecked),
            self._flags,
            self._unseen,
        )

    def covered(self, paths: tuple[str, ...], left_out: Iterable[str]) -> None:
        """Note how much of the project the run covered."""
        settings = self._settings
        off = {kind for kind, asked in ((Kind.LEAK, settings.leaks), (Kind.CYCLE, settings.cycles)) if asked == "off"}
        looked = GROUPED - off if settings.on and settings.stacks else ()
        least = settings.ignore_below
        ignored = {} if not looked else IGNORED_BELOW if least is None else {ALL: least}
        self.extent = RunCoverage(paths, tuple(sorted(left_out)), tuple(sorted(kind.value for kind in looked)), ignored)

    def note_rules(self, *, whole: bool) -> None:
        """Note what each rule of the ini file ignored; after a ``whole`` run also that one ignored nothing."""
        measured = bool(self._environments and self._environments[0].devices) and bool(self.tests)
        for rule in self._settings.ignore:
            number = self._ignored[str(rule)]
            if number:
                self._about_rules.append(f"ignored {count(number, 'finding')} by rule '{rule}' ({rule.reason})")
            elif whole and measured and not self.extent.left_out:
                self._about_rules.append(
                    f"rule '{rule}' ({rule.reason}) ignored nothing: it can be removed from cudamem_ignore"
                )

    def note_unused(self) -> None:
        """Note that no test allocated on the cards that were measured: its tensors are on the CPU, which was not."""
        windows = [window for test in self.tests for window in test.whole]
        devices = unused([*windows, *(window for fixture in self._fixtures for window in fixture.windows)])
        if devices:
            from cudamem_testing.wording.runs import nothing_allocated

            self.notes.append(nothing_allocated(devices))

    def record(self, seen: Collection[str], outside: AbstractSet[str], policy: Policy | None) -> bool:
        """Write baselines and known findings if that was asked for; returns whether it failed.

        ``seen`` are ids of tests and files, ``outside`` files that are not below rootdir. ``policy`` judged the run.
        """
        settings, said = self._settings, []
        if settings.update or self._has_records(seen) or any(test.measured for test in self.tests):
            from cudamem_testing.records import baselines_of_run

            said.append(baselines_of_run.finish(settings, self._root, self.tests, seen, self.extent.covers(), outside))
        if settings.on and policy is not None and (policy.lines or "known" in settings.update):
            from cudamem_testing.records import known_of_run

            known = known_of_run.finish(settings, policy.file, policy.name, policy.lines, self.run(), self._root)
            said.append(known)
            self._unseen = known.unseen
        elif settings.on and settings.known is not None and not settings.known.exists():
            self.notes.append(f"--cudamem-known: there is no {settings.known}; --cudamem-update=known writes it")
        self._about_records = [line for one in said for line in one.lines]
        for one in said:
            self._unchecked.update(one.unchecked)
        problems = [problem for one in said for problem in one.problems]
        self.notes += problems
        return bool(problems)

    def _has_records(self, nodeids: Iterable[str]) -> bool:
        """Whether there is a folder of recorded things beside one of the files of some ids."""
        folders = {*map(os.path.dirname, {*map(file_of, nodeids)})}
        return any((self._root / folder / FOLDER).is_dir() for folder in folders)


def unused(windows: Iterable[Window]) -> list[str]:
    """The devices of a run's windows if all are cards on which nothing was allocated; pinned memory does not count."""
    real = [window for window in windows if not window.device.pseudo]
    nothing = all(window.start == window.allocations == 0 for window in real)
    devices = sorted({str(window.device) for window in real})
    return devices if nothing and "cpu" not in devices else []
