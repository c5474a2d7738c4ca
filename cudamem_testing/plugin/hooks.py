"""Hooks around each phase of each test. The session measures and judges (run/session.py).

A finding that fails a test is raised at the end of its phase, so pytest treats it like any failure of the test: xfail,
``--lf``, ``-x`` and JUnit work as usual. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pytest

from cudamem_testing import torch_api
from cudamem_testing.guards.imports import own_imports
from cudamem_testing.model.findings import Finding, Kind, Severity
from cudamem_testing.model.nodeids import file_of
from cudamem_testing.model.override import NOTHING
from cudamem_testing.plugin import keys, markers
from cudamem_testing.plugin.higher_scoped_fixtures import HigherScopedFixtures
from cudamem_testing.plugin.items import (
    add_properties,
    clear_all_frames,
    fixtures_of,
    id_without_group,
    is_foreign,
    keepers_of,
    own_arguments_dropped,
)
from cudamem_testing.plugin.reports import Reports, texts_of
from cudamem_testing.plugin.settings import runs_tests
from cudamem_testing.ranks.watch import Ranks
from cudamem_testing.run.finished import forget_last
from cudamem_testing.safe_access import is_a

if TYPE_CHECKING:
    from cudamem_testing.plugin.warmup import WarmUps
    from cudamem_testing.run.running import Asked
    from cudamem_testing.run.session import Session

Wrapper = Generator[None, object, object]
OVER_BUDGET = "OVER BUDGET"
STATUS = {Kind.BUDGET: OVER_BUDGET, Kind.LEAK: "LEAKED", Kind.CYCLE: "CYCLE", Kind.BASELINE: "BASELINE"}


class Hooks:
    """Those of a session, with the reports and the wider fixtures of its tests."""

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._config = config
        self.session = session
        self.reports = Reports(config, session)
        self.wider = HigherScopedFixtures(session)
        self.ranks: Ranks | None = None

    @cached_property
    def _warm_ups(self) -> WarmUps:
        from cudamem_testing.plugin.warmup import WarmUps

        return WarmUps(self._config, self.session)

    def _asked(self, item: pytest.Item) -> Asked:
        """What is asked of a test that has markers of ours."""
        stash = item.stash
        override, comparison = stash.get(keys.OVERRIDE, NOTHING), stash.get(keys.COMPARISON, None)
        return self.session.asked(stash.get(keys.BUDGETS, ()), override, comparison)

    def pytest_sessionfinish(self) -> None:
        """Judge what all tests together left, before it is reported."""
        self.session.finish(runs_tests=runs_tests(self._config))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Build and start the recorders outside any test: collection has imported what the tests need.

        Raises:
            pytest.UsageError: if that fails, which is no fault of a test.
        """
        if runs_tests(self._config):
            try:
                with own_imports():
                    self.session.prepare()
            except Exception as error:
                from cudamem_testing.wording.runs import unmeasurable

                raise pytest.UsageError(f"cudamem: {unmeasurable(error)}") from error
            if torch_api.imported():
                self.watch_ranks()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Wrapper:
        __tracebackhide__ = is_foreign
        session = self.session
        session.running = self.reports.record = None
        marked = keys.MARKS in item.stash
        special = markers.speaks_of_memory(item, marked=marked)
        if special or session.settings.on:
            if special:
                torch_api.load()  # a limit is set: measure from the start
            if "last_value" in vars(sys):
                forget_last()  # pytest does so one phase later, when it would count as freed by this test
            self.wider.item = item
            session.begin(
                id_without_group(item) if "@" in item.nodeid else item.nodeid,
                self._asked(item) if marked else None,
                limited=special,
                keepers=partial(keepers_of, item),
                fixtures=partial(fixtures_of, item),
                undoing=self.wider.undoing,
            )
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Wrapper:
        __tracebackhide__ = is_foreign
        session, running = self.session, self.session.running
        if running is None:
            return (yield)
        plain = not running.budgets and running.comparison is None
        session.enter(running, "call" if plain else self._warm_ups.begin(running, item))
        failed, skipped = True, False
        found: list[Finding] = []
        try:
            result = yield
            kept = getattr(item, "_excinfo", None) or ()  # unittest keeps failures here instead of raising, and skips
            failed = bool(kept)
            skipped = failed and all(is_a(one.value, pytest.skip.Exception) for one in kept)
        except pytest.skip.Exception:
            skipped = True
            raise
        finally:
            if running.phases.name == "call" or not failed:  # else the warm-up has failed, or skipped the test
                found = session.judge_call(running, failed=failed, skipped=skipped)
                if self.ranks is not None and self.ranks.busy:
                    found += self.ranks.judge(last=False)
                if keys.PROMISE in item.stash and not (failed or skipped):
                    found = [*found, *session.judge_growth(running, item.stash[keys.PROMISE])]
                add_properties(item, running.phases.growths())
            self.reports.unreported = [*running.findings]
        if found and not failed:
            _fail(found)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Wrapper:
        __tracebackhide__ = is_foreign
        session, running = self.session, self.session.running
        if running is None:
            return (yield)
        if running.phases.name != "teardown":
            session.enter(running, "teardown")
        failed = skipped = False
        try:
            result = yield
        except BaseException as error:
            failed, skipped = True, is_a(error, pytest.skip.Exception)
            raise
        finally:
            if left := own_arguments_dropped(item):
                session.drop(left)
            release = None
            if running.failure is not None and not self._config.getoption("usepdb", False):
                release = partial(clear_all_frames, running.failure, item)
            of_ranks = self.ranks.judge(last=True) if self.ranks is not None and self.ranks.busy else ()
            ended = session.end(running, release)
            if of_ranks:
                ended.found.extend(of_ranks)
            self.reports.unreported, self.reports.after_failure, self.reports.record = (
                ended.found,
                ended.after_failure,
                ended.record,
            )
            self.wider.item = None
            if nextitem is None or (nextitem.path is not item.path and nextitem.path != item.path):  # of its file
                session.border(file_of(running.nodeid))
            if ended.found and (skipped or not failed):  # a skip in the teardown of a fixture hides nothing
                _fail(ended.found)
        return result

    def watch_ranks(self) -> Ranks:
        """Have processes measured that tests start from here on."""
        if self.ranks is None:
            self.ranks = Ranks(self.session)
            self.ranks.watch()
            self._config.add_cleanup(self.ranks.close)
        return self.ranks


def _fail(findings: Sequence[Finding]) -> None:
    failing = [finding for finding in findings if finding.severity is Severity.FAIL]
    if failing:
        failure = pytest.fail.Exception(texts_of(failing), pytrace=False)
        failure.cudamem = STATUS.get(failing[0].kind, "")  # type: ignore[attr-defined]
        raise failure
