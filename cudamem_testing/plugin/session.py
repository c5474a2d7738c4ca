"""The session: windows around each phase of each test, wider fixtures apart, budgets judged where they belong.

A budget on the call is judged at the end of the call phase, one on what the whole test retains at the end of teardown.
Raising there makes pytest treat it like any failure of the test: xfail, ``--lf``, ``-x`` and JUnit need no help.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cudamem_testing import torch_api
from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.errors import together
from cudamem_testing.model.findings import GROUPED, Finding, Kind, Severity
from cudamem_testing.model.records import Environment, FixtureRecord, TestRecord
from cudamem_testing.model.windows import SharedWindows
from cudamem_testing.plugin import keys, markers
from cudamem_testing.plugin.baselines import Baselines
from cudamem_testing.plugin.books import Books
from cudamem_testing.plugin.brief import places_of
from cudamem_testing.plugin.evidence import Evidence
from cudamem_testing.plugin.finished import forget_last, let_all_go, let_go
from cudamem_testing.plugin.items import (
    add_properties,
    harness_codes,
    id_without_group,
    is_foreign,
    own_arguments_dropped,
    own_status,
    place_at_test,
)
from cudamem_testing.plugin.outside import OutsideCheck
from cudamem_testing.plugin.override import cycles_of
from cudamem_testing.plugin.ratchet import Ratchet
from cudamem_testing.plugin.running import Running
from cudamem_testing.plugin.sent import is_forked, may_fork, plain
from cudamem_testing.plugin.settings import Settings, runs_tests
from cudamem_testing.plugin.totals import judge_run, unjudged
from cudamem_testing.plugin.warmup import WarmUps
from cudamem_testing.plugin.wider import WiderFixtures
from cudamem_testing.recorders.choose import Recorders
from cudamem_testing.show.printable import one_line, printable
from cudamem_testing.static import is_a
from cudamem_testing.windows.judge import Judge, ignored_below
from cudamem_testing.windows.owners import Owner, Owners
from cudamem_testing.windows.tracker import Tracker

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.limits import Budget
    from cudamem_testing.model.windows import Window
    from cudamem_testing.plugin.cycles import CycleCheck
    from cudamem_testing.plugin.leaks import LeakCheck
    from cudamem_testing.plugin.pools import PoolCheck
    from cudamem_testing.plugin.retained import Retained

Wrapper = Generator[None, object, object]
OVER_BUDGET = "OVER BUDGET"
STATUS = {Kind.BUDGET: OVER_BUDGET, Kind.LEAK: "LEAKED", Kind.CYCLE: "CYCLE", Kind.BASELINE: "BASELINE"}


class Session:
    """The plugin's state in one process that runs tests."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.tracker = Tracker()
        self.recorders = Recorders(settings.device, record=settings.stacks, harness=harness_codes())
        self.owners = Owners(self.tracker)
        self.evidence = Evidence(self.tracker, config.rootpath, self.owners.names, recorded=settings.stacks)
        self.books = Books(self.tracker, self.owners, self.evidence)
        self.outside = OutsideCheck(self.tracker)
        self.judge = Judge(self.evidence.explainer)
        sent, without = hasattr(config, "workerinput"), config.stash[keys.COLLECTED].outside_root
        self.baselines = Baselines(settings, config.rootpath, self.evidence, self.tracker, without, sent=sent)
        self.ratchet = Ratchet(config, settings)
        self.leaks: LeakCheck | None = None  # its modules need torch, and not every run has it
        self.cycles: CycleCheck | None = None
        self.pools: PoolCheck | None = None
        self.retained: Retained | None = None
        self.findings: list[Finding] = []
        self.unchecked: Counter[str] = Counter()
        self.wider = WiderFixtures(self)
        self.running: Running | None = None
        self._warm_ups = WarmUps(self)
        self._attempts: dict[str, int] = {}
        self._unsaid: list[Finding] = []
        self._below: list[Finding] = []
        self._undelivered = config.stash.setdefault(keys.UNDELIVERED, {})
        self._shared = SharedWindows()
        self._forks = may_fork(config)

    @property
    def environment(self) -> Environment:
        """What is measured where."""
        return self.recorders.environment

    @property
    def fixtures(self) -> list[FixtureRecord]:
        """Setups and teardowns of wider fixtures."""
        return self.wider.records

    def _ignore_below(self, device: Device) -> int:
        return ignored_below(device) if self.settings.ignore_below is None else self.settings.ignore_below

    def _left(self, running: Running) -> list[Finding]:
        """What the test retains and what its captures left; that it could not be judged, where a card has failed."""
        failure, release = running.failure, None
        if failure is not None and not self.config.getoption("usepdb", False):
            release = partial(let_all_go, failure, running.item)
        try:
            leaked: list[Finding] = []
            if self.retained is not None:  # with it what wider fixtures left that ended during the test
                leaked = self.retained.judge(running, release)
            elif release is not None:
                release()
            return leaked if self.pools is None or not self.settings.on else self.pools.judge(running.nodeid, leaked)
        except Exception as error:  # the test is over all the same, and the next one is measured
            if self.cycles is not None:
                self.cycles.drop()
            running.subject.unjudged |= GROUPED
            return [unjudged(error, Severity.NOTE if failure is not None else Severity.FAIL)]

    def prepare(self) -> None:
        """Put the recorders to work once torch is there; until then there is nothing to measure."""
        if not self.recorders.opened and torch_api.imported():
            with CollectorPaused():  # a collection for what is imported passes over all that torch has made
                self._prepare()

    def _prepare(self) -> None:
        from cudamem_testing.plugin.cycles import CycleCheck
        from cudamem_testing.plugin.leaks import LeakCheck
        from cudamem_testing.plugin.pools import PoolCheck
        from cudamem_testing.plugin.retained import Retained

        self.tracker.attach(self.recorders.open(self._say))
        early = self.config.stash.get(keys.EARLY, None)
        if early is not None and all(recorder.device.kind != "cpu" for recorder in self.tracker.recorders):
            early.close()
        self.baselines.identify()
        rules = self.settings.ignore
        self.leaks = LeakCheck(self.tracker, self.owners, self.evidence, self.books, self._ignore_below, rules)
        self.cycles = CycleCheck(
            self.tracker, self.leaks, self._ignore_below, self.evidence, self.recorders.notes, rules
        )
        self.pools = PoolCheck(self.tracker, self.evidence)
        self.retained = Retained(self.settings, self.tracker, self.leaks, self.cycles)

    def _say(self, line: str) -> None:
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and self.running is None:
            reporter.write_line(one_line(f"cudamem: {line}"))

    def _limits(self, marked: tuple[Budget, ...]) -> tuple[Budget, ...]:
        if not self.settings.enforce:
            return ()
        return (*marked, self.settings.budget) if self.settings.on and self.settings.budget else marked

    def pytest_sessionfinish(self) -> None:
        """Judge what all tests together left, and note what the run took outside torch, before either is reported."""
        self.recorders.notes += self.outside.notes()
        if self.settings.on:
            judge_run(self, sum(self._attempts.values()))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Collection has imported what the tests need: build and start the recorders outside any test."""
        if runs_tests(self.config):
            self.prepare()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Wrapper:
        __tracebackhide__ = is_foreign
        self.running = None
        special = markers.speaks_of_memory(item)
        if special or self.settings.on:
            if special:
                import torch  # noqa: F401 - a limit was written down: measure from the start
            forget_last()  # as pytest does a phase later, when it would count as given back by this test
            if not self.recorders.opened:
                self.prepare()
            limits = self._limits(item.stash.get(keys.BUDGETS, ()) if special else ())
            for recorder in self.tracker.recorders:
                recorder.wake(limited=special or bool(limits))
            owner = Owner(id_without_group(item))
            attempt = self._attempts[owner.label] = self._attempts.get(owner.label, 0) + 1
            whole, setup = self.tracker.open_nested("test", "setup")
            self.running = Running(item, attempt, whole, setup, limits, owner)
            self.running.disown = self.owners.enter(owner)
            self.running.subject.undoing = self.wider.undoing
            self.evidence.running = owner.label
            if self.settings.on:
                self.outside.begin()
                if self.leaks is not None:
                    self.books.begin()
            self.running.cycles = cycles_of(self.running.override, self.settings)
            if self.cycles is not None and self.running.cycles != "off":
                self.cycles.begin(self.running.subject)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Wrapper:
        __tracebackhide__ = is_foreign
        running = self.running
        if running is None:
            return (yield)
        self.enter(running, self._warm_ups.begin(running))
        failed = True
        found: list[Finding] = []
        try:
            result = yield
            failed = bool(getattr(item, "_excinfo", None))  # unittest keeps failures here instead of raising
        finally:
            if running.phase.name == "call" or not failed:  # else the warm-up has failed, or skipped the test
                found = self._judge_call(running, failed=failed)
            self._unsaid = [*running.findings]
        if found and not failed:
            _fail(found)
        return result

    def _judge_call(self, running: Running, *, failed: bool) -> list[Finding]:
        calls = self.enter(running, "teardown")
        found: list[Finding] = []
        if running.budgets:
            found += self.judge.call(running.budgets, calls) if self.recorders.opened else ()
            running.used = self.judge.used(running.budgets, calls)
        passed = not failed and running.failure is None  # there is one if a subtest has failed
        if passed and self.recorders.opened:
            found += self.baselines.call(running, calls)
        if passed and running.findings:  # then the test has handled what its regions found
            running.findings[:] = [replace(finding, severity=Severity.NOTE) for finding in running.findings]
        if found:
            found = self.ratchet.judged(found)
            running.findings += found
        add_properties(running.item, calls)
        return found

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Wrapper:
        __tracebackhide__ = is_foreign
        running = self.running
        if running is None:
            return (yield)
        if running.phase.name != "teardown":
            self.enter(running, "teardown")
        failed = True
        try:
            result = yield
            failed = False
        finally:
            self._drop_arguments(item)
            with CollectorPaused():  # what it freed between a read and the verdict on it would count as retained
                running.windows += self.tracker.close(running.phase)
                leaked = self._left(running)
                whole = self.tracker.close(running.whole, fresh=not self.settings.on or running.failure is not None)
            found = self._judge_whole(running, whole)
            if leaked or found:
                found = self.ratchet.judged([*found, *leaked])
                running.findings += found
            self._unsaid = found
            if self.recorders.opened and not running.windows:
                running.notes.append(UNMEASURED)
            item.stash[RECORD] = running.record(whole if self.tracker.recorders else (), self._shared)
            self.running = None
            running.disown()
            if not self.settings.on:
                for recorder in self.tracker.recorders:
                    recorder.sleep()
            elif self.leaks is not None and _is_last_of_module(item, nextitem):
                place = running.nodeid.partition("::")[0]
                self.findings += [*self.ratchet.judged(self.books.border(place)), *self.outside.border(place)]
        if found and not failed:
            _fail(found)
        return result

    def _judge_whole(self, running: Running, whole: Sequence[Window]) -> list[Finding]:
        """What breaks a limit or a baseline on what is left of the test.

        One that failed in its call is warned, not failed again. Not judged is what a debugger was offered: its frames
        are kept, and what they hold.
        """
        if running.failure is None:
            found = self.judge.whole(running.budgets, whole) if running.budgets else []
            return [*found, *self.baselines.whole(running, whole)] if running.measured else found
        over = self.judge.whole(running.budgets, whole) if running.subject.exact else []
        self._below = [replace(finding, severity=Severity.WARN) for finding in over]
        return self._below

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is None and call.when != "teardown":
            self._unsaid = []
            return report
        if call.excinfo is not None:
            from cudamem_testing.plugin.mismatch import show_alone

            show_alone(report, call)
        error = None if self.running is None or call.excinfo is None else call.excinfo.value
        if self.running is not None and error is not None and any(map(torch_api.is_out_of_memory, together(error))):
            found = self.evidence.out_of_memory()
            self.running.findings += found
            self._unsaid = [*self._unsaid, *found]
        if report.failed and self.settings.dump is not None:
            self._dump(item, report, self.settings.dump)
        status = None if call.excinfo is None else own_status(call.excinfo.value)
        if status is not None:
            report.cudamem_status = status or None  # type: ignore[attr-defined]
            place_at_test(report, item)
            if RECORD in item.stash:
                report.cudamem_shown = places_of(item.stash[RECORD], self._unsaid)  # type: ignore[attr-defined]
        elif report.failed and self._unsaid:
            from cudamem_testing.windows.memory import OverBudget

            raised = None if call.excinfo is None else call.excinfo.value
            told = raised.findings if is_a(raised, OverBudget) else ()
            rest = [finding for finding in self._unsaid if finding not in told]
            if rest:
                report.sections.append(("cudamem", _texts(rest)))
            self._below = []
        if self._below:  # pytest shows it with the failure of the call, which was reported before
            report.sections.append(("cudamem teardown", _texts(self._below)))
        self._unsaid, self._below = [], []
        if call.excinfo is not None and self.running is not None and status is None:
            self.running.failed(call.excinfo.value, report)
        if call.when == "teardown" and call.excinfo is not None and not self.config.getoption("usepdb", False):
            let_go(call.excinfo.value)  # a failure of teardown itself: it could not be let go before its report
        if call.when == "teardown" and RECORD in item.stash:
            records = self._undelivered.setdefault(item.nodeid, [])
            records.append(item.stash[RECORD])
            forked = self._forks and is_forked(item)
            report.cudamem = plain(records) if forked else [*records]  # type: ignore[attr-defined]
            del item.stash[RECORD]
        return report

    def take(self, nodeid: str) -> list[TestRecord]:
        """The records of a test that no report has delivered yet; they are then not delivered with the next one."""
        return self._undelivered.pop(nodeid, [])

    def _dump(self, item: pytest.Item, report: pytest.TestReport, folder: Path) -> None:
        """Write snapshots of a measured test at its first failure: a later one has less to show."""
        attempt = self._attempts.get(id_without_group(item))
        if attempt is None or item.stash.get(DUMPED, None) == attempt:
            return
        item.stash[DUMPED] = attempt
        said = self.evidence.dump(folder, item.nodeid)
        report.sections.append(("cudamem snapshot", printable("\n".join(said))))
        if self.running is not None:
            self.running.notes += said
        elif RECORD in item.stash:
            record = item.stash[RECORD]
            item.stash[RECORD] = record.but(notes=(*record.notes, *said))

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(
        self, report: pytest.TestReport
    ) -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
        """On its way to another process or into a log, a report carries plain types only."""
        data = yield
        if data is not None and "cudamem" in data:
            data["cudamem"] = plain(data["cudamem"])
        return data

    def enter(self, running: Running, phase: str) -> tuple[Window, ...]:
        """Begin another phase of the running test; the windows of the one that ends."""
        if not self.recorders.opened:
            self.prepare()  # the phase that ends may have been the first to import torch
        windows, running.phase = self.tracker.switch(running.phase, phase)
        running.windows += windows
        return windows

    def _drop_arguments(self, item: pytest.Item) -> None:
        """Let go of fixture values as pytest is about to, those of wider fixtures outside the test's own window."""
        left = own_arguments_dropped(item)
        if left:
            span = self.tracker.open("values of wider fixtures", exclusive=True)
            left.clear()
            windows = self.tracker.close(span)
            if self.running is not None:
                self.running.foreign += windows


UNMEASURED = "not measured: see the notes of the run"
RECORD = pytest.StashKey[TestRecord]()
DUMPED = pytest.StashKey[int]()


def _is_last_of_module(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Whether the next test is in another file; those of one file share its path, which is slow to compare."""
    return nextitem is None or (nextitem.path is not item.path and nextitem.path != item.path)


def _texts(findings: Sequence[Finding]) -> str:
    from cudamem_testing.wording import texts  # few runs find something

    return texts(findings)


def _fail(findings: Sequence[Finding]) -> None:
    failing = [finding for finding in findings if finding.severity is Severity.FAIL]
    if failing:
        failure = pytest.fail.Exception(_texts(failing), pytrace=False)
        failure.cudamem = STATUS.get(failing[0].kind, "")  # type: ignore[attr-defined]
        raise failure
