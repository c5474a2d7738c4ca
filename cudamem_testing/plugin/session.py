"""The session: windows around each phase of each test, wider fixtures apart, budgets judged where they belong.

A budget on the call is judged at the end of the call phase, one on what the whole test retains at the end of teardown.
Raising there makes pytest treat it like any failure of the test: xfail, ``--lf``, ``-x`` and JUnit need no help.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from cudamem_testing import torch_api
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.records import Environment, FixtureRecord, TestRecord
from cudamem_testing.plugin import markers
from cudamem_testing.recorders.choose import Recorders
from cudamem_testing.report.schema import record_to_json
from cudamem_testing.windows.judge import Judge
from cudamem_testing.windows.memory import OverBudget
from cudamem_testing.windows.tracker import Span, Tracker

if TYPE_CHECKING:
    from cudamem_testing.model.limits import Budget
    from cudamem_testing.model.windows import Window
    from cudamem_testing.plugin.settings import Settings

OVER_BUDGET = "OVER BUDGET"


class Running:
    """The test that runs now: its open spans and what was found so far."""

    def __init__(self, item: pytest.Item, attempt: int, whole: Span, phase: Span, budgets: Sequence[Budget]) -> None:
        self.item = item
        self.attempt = attempt
        self.whole = whole
        self.phase = phase
        self.budgets = tuple(budgets)
        self.windows: list[Window] = []
        self.findings: list[Finding] = []
        self.used: float | None = None
        self.notes: list[str] = []

    def add(self, windows: Sequence[Window], findings: Sequence[Finding]) -> None:
        """A region inside the test has ended."""
        self.windows += windows
        self.findings += findings

    def record(self, whole: tuple[Window, ...]) -> TestRecord:
        """What the reports know of it; the outcome is known to the collector of reports alone."""
        return TestRecord(
            self.item.nodeid.partition("@")[0] if _grouped(self.item) else self.item.nodeid,
            attempt=self.attempt,
            windows=tuple(self.windows),
            whole=whole,
            findings=tuple(self.findings),
            budget_used=self.used,
            notes=tuple(self.notes),
        )


class Session:
    """The plugin's state in one process that runs tests."""

    def __init__(self, config: pytest.Config, settings: Settings, budgets: dict[str, tuple[Budget, ...]]) -> None:
        self.config = config
        self.settings = settings
        self.tracker = Tracker()
        self.recorders = Recorders(settings.device)
        self.judge = Judge()
        self.fixtures: list[FixtureRecord] = []
        self.running: Running | None = None
        self.budgets = budgets
        self._attempts: dict[str, int] = {}

    @property
    def environment(self) -> Environment:
        """What is measured where."""
        return self.recorders.environment

    def prepare(self) -> None:
        """Put the recorders to work once torch is there; until then there is nothing to measure."""
        if not self.recorders.opened and torch_api.imported():
            self.tracker.attach(self.recorders.open(self._say))

    def _say(self, line: str) -> None:
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and self.running is None:
            reporter.write_line(f"cudamem: {line}")

    def _limits(self, item: pytest.Item) -> tuple[Budget, ...]:
        if not self.settings.enforce:
            return ()
        marked = self.budgets.get(item.nodeid, ())
        return marked if self.settings.budget is None else (*marked, self.settings.budget)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Collection has imported what the tests need: build and start the recorders outside any test."""
        if not self.config.option.collectonly:
            self.prepare()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        self.running = None
        special = markers.speaks_of_memory(item)
        if special or self.settings.on:
            if special:
                import torch  # noqa: F401 - a limit was written down: measure from the start
            self.prepare()
            limits = self._limits(item)
            for recorder in self.tracker.recorders:
                recorder.wake(limited=special or bool(limits))
            attempt = self._attempts[item.nodeid] = self._attempts.get(item.nodeid, 0) + 1
            whole = self.tracker.open("test")
            self.running = Running(item, attempt, whole, self.tracker.open("setup"), limits)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        running = self.running
        if running is None:
            return (yield)
        self._warm_up(running)
        self._enter(running, "call")
        failed = True
        try:
            result = yield
            failed = bool(getattr(item, "_excinfo", None))  # unittest keeps failures here instead of raising
        finally:
            calls = self._enter(running, "teardown")
            found = self.judge.call(running.budgets, calls)
            running.used = self.judge.used(running.budgets, calls)
            running.findings += found
            _add_properties(item, calls)
        if not failed:
            _fail(found)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        running = self.running
        if running is None:
            return (yield)
        if running.phase.name != "teardown":
            self._enter(running, "teardown")
        failed = True
        try:
            result = yield
            failed = False
        finally:
            self._drop_arguments(item)
            running.windows += self.tracker.close(running.phase)
            whole = self.tracker.close(running.whole)
            found = self.judge.whole(running.budgets, whole)
            running.findings += found
            item.stash[RECORD] = running.record(whole if self.tracker.recorders else ())
            self.running = None
        if not failed:
            _fail(found)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and hasattr(call.excinfo.value, "cudamem"):
            report.cudamem_status = OVER_BUDGET  # type: ignore[attr-defined]
        elif call.excinfo is not None and isinstance(call.excinfo.value, OverBudget):
            pass  # its message says it all
        elif report.failed and self.running is not None and self.running.findings and call.when == "call":
            report.sections.append(("cudamem", "\n".join(map(str, self.running.findings))))
        if call.when == "teardown" and RECORD in item.stash:
            report.cudamem = record_to_json(item.stash[RECORD])  # type: ignore[attr-defined]
            del item.stash[RECORD]
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        running = self.running
        if running is None or fixturedef.scope == "function":
            return (yield)
        self.prepare()
        name = fixturedef.argname
        teardown: list[Span] = []
        fixturedef.addfinalizer(lambda: self._fixture_done(teardown, name, fixturedef.scope, running.item.nodeid))
        span = self.tracker.open(f"setup of fixture {name!r}", exclusive=True)
        try:
            return (yield)
        finally:
            windows = self.tracker.close(span)
            self.fixtures.append(FixtureRecord(name, fixturedef.scope, running.item.nodeid, windows))
            fixturedef.addfinalizer(
                lambda: teardown.append(self.tracker.open(f"teardown of fixture {name!r}", exclusive=True))
            )

    def _fixture_done(self, spans: list[Span], name: str, scope: str, nodeid: str) -> None:
        for span in spans:
            self.fixtures.append(FixtureRecord(name, scope, nodeid, self.tracker.close(span)))

    def _enter(self, running: Running, phase: str) -> tuple[Window, ...]:
        windows, running.phase = self.tracker.switch(running.phase, phase)
        running.windows += windows
        return windows

    def _drop_arguments(self, item: pytest.Item) -> None:
        """Let go of fixture values as pytest is about to, those of wider fixtures outside the test's own window."""
        arguments = getattr(item, "funcargs", None)
        info = getattr(item, "_fixtureinfo", None)
        if not arguments or info is None:
            return
        for name in [*arguments]:
            definitions = info.name2fixturedefs.get(name)
            if not definitions or definitions[-1].scope == "function":
                del arguments[name]
        if arguments:
            span = self.tracker.open("values of wider fixtures", exclusive=True)
            arguments.clear()
            self.tracker.close(span)

    def _warm_up(self, running: Running) -> None:
        runs = next((one.warmup for one in running.budgets if one.warmup), 0)
        item = running.item
        if not runs or not isinstance(item, pytest.Function):
            return
        self._enter(running, "warm-up")
        for number in range(1, runs + 1):
            try:
                item.obj(**{name: item.funcargs[name] for name in item._fixtureinfo.argnames})
            except (pytest.skip.Exception, pytest.xfail.Exception):
                raise
            except Exception:
                message = f"warm-up run {number} of {runs} failed: {Verdict.NOT_REPEATABLE.value}"
                running.findings.append(
                    Finding(Kind.OTHER, Verdict.NOT_REPEATABLE, Severity.NOTE, f"cudamem: {message}")
                )
                raise


RECORD = pytest.StashKey[TestRecord]()


def _fail(findings: Sequence[Finding]) -> None:
    failing = [finding for finding in findings if finding.severity is Severity.FAIL]
    if failing:
        failure = pytest.fail.Exception("\n".join(map(str, failing)), pytrace=False)
        failure.cudamem = True  # type: ignore[attr-defined]
        raise failure


def _add_properties(item: pytest.Item, calls: Sequence[Window]) -> None:
    for window in calls:
        for name, value in (("peak", window.peak_growth), ("reserved", window.reserved_growth)):
            if value is not None:
                item.user_properties.append((f"cudamem.{window.device}.{name}", value))


def _grouped(item: pytest.Item) -> bool:
    """Whether xdist's loadgroup has put ``@group`` behind the id."""
    return item.config.getoption("dist", None) == "loadgroup" and item.get_closest_marker("xdist_group") is not None
