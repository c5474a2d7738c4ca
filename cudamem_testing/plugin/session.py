"""The session: windows around each phase of each test, wider fixtures apart, budgets judged where they belong.

A budget on the call is judged at the end of the call phase, one on what the whole test retains at the end of teardown.
Raising there makes pytest treat it like any failure of the test: xfail, ``--lf``, ``-x`` and JUnit need no help.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pytest

from cudamem_testing import torch_api
from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import GROUPED, Finding, Kind, Severity
from cudamem_testing.model.override import NOTHING, cycles_of
from cudamem_testing.model.records import Environment, FixtureRecord
from cudamem_testing.model.settings import Settings
from cudamem_testing.model.windows import SharedWindows
from cudamem_testing.plugin import keys, markers
from cudamem_testing.plugin.finished import clear_all_frames, forget_last
from cudamem_testing.plugin.items import (
    add_properties,
    fixtures_of,
    harness_codes,
    id_without_group,
    is_foreign,
    keepers_of,
    own_arguments_dropped,
)
from cudamem_testing.plugin.reports import Reports, texts_of
from cudamem_testing.plugin.settings import runs_tests
from cudamem_testing.plugin.totals import judge_run, unjudged
from cudamem_testing.plugin.wider import WiderFixtures
from cudamem_testing.recorders.choose import Recorders
from cudamem_testing.run.attribution import Attributions
from cudamem_testing.run.baselines import Baselines
from cudamem_testing.run.evidence import Evidence
from cudamem_testing.run.outside import OutsideCheck
from cudamem_testing.run.running import Asked, Entrusted, Running
from cudamem_testing.show.printable import one_line
from cudamem_testing.static import is_a
from cudamem_testing.verdicts.policy import Policy
from cudamem_testing.windows.judge import Judge, ignored_below
from cudamem_testing.windows.owners import Owner, Owners
from cudamem_testing.windows.tracker import Tracker

if TYPE_CHECKING:
    from cudamem_testing.model.limits import Budget
    from cudamem_testing.model.windows import Window
    from cudamem_testing.plugin.warmup import WarmUps
    from cudamem_testing.run.cycles import CycleCheck
    from cudamem_testing.run.leaks import LeakCheck
    from cudamem_testing.run.pools import PoolCheck
    from cudamem_testing.run.retained import Retained

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
        self.attributions = Attributions(self.tracker, self.owners, self.evidence)
        self.outside = OutsideCheck(self.tracker)
        self.judge = Judge(self.evidence.explainer)
        sent, without = hasattr(config, "workerinput"), config.stash[keys.COLLECTED].outside_root
        self.baselines = Baselines(settings, config.rootpath, self.evidence, self.tracker, without, sent=sent)
        self.policy = _policy(config, settings)
        self.leaks: LeakCheck | None = None  # its modules need torch, and not every run has it
        self.cycles: CycleCheck | None = None
        self.pools: PoolCheck | None = None
        self.retained: Retained | None = None
        self.findings: list[Finding] = []
        self.unchecked: Counter[str] = Counter()
        self.wider = WiderFixtures(self)
        self.running: Running | None = None
        self.item: pytest.Item | None = None
        """The one that runs, while it is measured."""
        self.attempts: dict[str, int] = {}
        self.reports = Reports(self)
        self._leaked: dict[str, list[Entrusted]] = {}
        self._shared = SharedWindows()
        self._unmarked = Asked(self._limits(()))

    @cached_property
    def _warm_ups(self) -> WarmUps:
        from cudamem_testing.plugin.warmup import WarmUps

        return WarmUps(self)

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

    def _left(self, running: Running, item: pytest.Item) -> list[Finding]:
        """What the test retains and what its captures left; that it could not be judged, where a card has failed."""
        failure, release = running.failure, None
        if failure is not None and not self.config.getoption("usepdb", False):
            release = partial(clear_all_frames, failure, item)
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
        from cudamem_testing.run.cycles import CycleCheck
        from cudamem_testing.run.leaks import LeakCheck
        from cudamem_testing.run.pools import PoolCheck
        from cudamem_testing.run.retained import Retained

        self.tracker.attach(self.recorders.open(self._say))
        early = self.config.stash.get(keys.EARLY, None)
        if early is not None and all(recorder.device != Device("cpu") for recorder in self.tracker.recorders):
            early.close()
        self.baselines.identify()
        rules = self.settings.ignore
        self.leaks = LeakCheck(self.tracker, self.evidence, self.attributions, self._ignore_below, rules)
        self.cycles = CycleCheck(
            self.tracker, self.leaks, self._ignore_below, self.evidence, self.recorders.notes, rules
        )
        self.pools = PoolCheck(self.tracker, self.evidence)
        self.retained = Retained(self.settings, self.tracker, self.leaks, self.cycles)

    def _say(self, line: str) -> None:
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and self.running is None:
            reporter.write_line(one_line(f"cudamem: {line}"))

    def _asked(self, item: pytest.Item) -> Asked:
        """What is asked of a test that has markers of ours."""
        stash = item.stash
        limits = self._limits(stash.get(keys.BUDGETS, ()))
        return Asked(limits, stash.get(keys.OVERRIDE, NOTHING), stash.get(keys.COMPARISON, None))

    def _limits(self, marked: tuple[Budget, ...]) -> tuple[Budget, ...]:
        if not self.settings.enforce:
            return ()
        return (*marked, self.settings.budget) if self.settings.on and self.settings.budget else marked

    def pytest_sessionfinish(self) -> None:
        """Judge what all tests together left, and note what the run took outside torch, before either is reported."""
        self.recorders.notes += self.outside.notes()
        if self.settings.on:
            judge_run(self, sum(self.attempts.values()))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Collection has imported what the tests need: build and start the recorders outside any test."""
        if runs_tests(self.config):
            self.prepare()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Wrapper:
        __tracebackhide__ = is_foreign
        self.running = self.reports.record = None
        marked = keys.MARKS in item.stash
        special = markers.speaks_of_memory(item, marked=marked)
        if special or self.settings.on:
            if special:
                import torch  # noqa: F401 - a limit was written down: measure from the start
            if "last_value" in vars(sys):
                forget_last()  # as pytest does a phase later, when it would count as given back by this test
            if not self.recorders.opened:
                self.prepare()
            self.item = item
            asked = self._asked(item) if marked else self._unmarked
            owner = Owner(id_without_group(item) if "@" in item.nodeid else item.nodeid)
            attempt = self.attempts[owner.label] = self.attempts.get(owner.label, 0) + 1
            for recorder in self.tracker.recorders:
                recorder.wake(limited=special or bool(asked.budgets))
            whole, setup = self.tracker.open_nested("test", "setup")
            self.running = Running(
                asked, attempt, whole, setup, owner, partial(keepers_of, item), partial(fixtures_of, item)
            )
            if attempt > 1 and self.settings.repeat == 1:
                self.running.earlier += self._leaked.get(owner.label, ())
            self.running.disown = self.owners.enter(owner)
            self.running.subject.undoing = self.wider.undoing
            self.evidence.running = owner.label
            if self.settings.on:
                self.outside.begin()
                if self.leaks is not None:
                    self.attributions.begin()
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
        plain = not running.budgets and running.comparison is None
        self.enter(running, "call" if plain else self._warm_ups.begin(running, item))
        failed = True
        skipped = False
        found: list[Finding] = []
        try:
            result = yield
            failed = bool(getattr(item, "_excinfo", None))  # unittest keeps failures here instead of raising
        except pytest.skip.Exception:
            skipped = True
            raise
        finally:
            if running.phase.name == "call" or not failed:  # else the warm-up has failed, or skipped the test
                found = self._judge_call(running, item, failed=failed, skipped=skipped)
            self.reports.unsaid = [*running.findings]
        if found and not failed:
            _fail(found)
        return result

    def _judge_call(self, running: Running, item: pytest.Item, *, failed: bool, skipped: bool) -> list[Finding]:
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
            found = self.policy.judged(found)
            if skipped:  # half a test was measured, and it fails nothing
                found = [_no_failure(one) for one in found]
            running.findings += found
        add_properties(item, calls)
        return found

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Wrapper:
        __tracebackhide__ = is_foreign
        running = self.running
        if running is None:
            return (yield)
        if running.phase.name != "teardown":
            self.enter(running, "teardown")
        failed = skipped = False
        try:
            result = yield
        except BaseException as error:
            failed, skipped = True, is_a(error, pytest.skip.Exception)
            raise
        finally:
            if left := own_arguments_dropped(item):
                self._drop_values(left)
            with CollectorPaused():  # what it freed between a read and the verdict on it would count as retained
                running.windows += self.tracker.close(running.phase)
                leaked = self._left(running, item)
                whole = self.tracker.close(running.whole, fresh=not self.settings.on or running.failure is not None)
            limited = running.budgets or running.measured or running.failure is not None
            found = self._judge_whole(running, whole) if limited else []
            if leaked or found:
                found = self.policy.judged([*found, *leaked])
                running.findings += found
            self.reports.unsaid = found
            if running.subject.leaked:
                self._leaked[running.nodeid] = [*running.earlier, *running.subject.leaked]
            if self.recorders.opened and not running.windows:
                running.notes.append(UNMEASURED)
            self.reports.record = running.record(whole if self.tracker.recorders else (), self._shared)
            self.running = self.item = None
            running.disown()
            if not self.settings.on:
                for recorder in self.tracker.recorders:
                    recorder.sleep()
            elif self.leaks is not None and _is_last_of_module(item, nextitem):
                place = running.nodeid.partition("::")[0]
                self.findings += [*self.policy.judged(self.attributions.border(place)), *self.outside.border(place)]
            if found and (skipped or not failed):  # a fixture that skips as it ends hides nothing
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
        self.reports.below = [replace(finding, severity=Severity.WARN) for finding in over]
        return self.reports.below

    def enter(self, running: Running, phase: str) -> tuple[Window, ...]:
        """Begin another phase of the running test; the windows of the one that ends."""
        if not self.recorders.opened:
            self.prepare()  # the phase that ends may have been the first to import torch
        windows = self.tracker.switch(running.phase, phase)
        running.windows += windows
        return windows

    def _drop_values(self, left: dict[str, Any]) -> None:
        """Let go of values of wider fixtures, as pytest is about to, outside the test's own window."""
        span = self.tracker.open("values of wider fixtures", exclusive=True)
        left.clear()
        windows = self.tracker.close(span)
        if self.running is not None:
            self.running.foreign += windows


UNMEASURED = "not measured: see the notes of the run"


def _no_failure(finding: Finding) -> Finding:
    return replace(finding, severity=Severity.WARN) if finding.severity is Severity.FAIL else finding


def _is_last_of_module(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Whether the next test is in another file; those of one file share its path, which is slow to compare."""
    return nextitem is None or (nextitem.path is not item.path and nextitem.path != item.path)


def _policy(config: pytest.Config, settings: Settings) -> Policy:
    sent = getattr(config, "workerinput", {}).get(keys.KNOWN_INPUT)
    try:
        return Policy(settings, config.rootpath, sent if isinstance(sent, bytes) else None)
    except OSError as error:
        raise pytest.UsageError(f"cudamem: known findings cannot be read: {error}") from None
    except ValueError as error:  # KnownError: its module is imported where there is such a file
        raise pytest.UsageError(f"cudamem: {error}") from None


def _fail(findings: Sequence[Finding]) -> None:
    failing = [finding for finding in findings if finding.severity is Severity.FAIL]
    if failing:
        failure = pytest.fail.Exception(texts_of(failing), pytrace=False)
        failure.cudamem = STATUS.get(failing[0].kind, "")  # type: ignore[attr-defined]
        raise failure
