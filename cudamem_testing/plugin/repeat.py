"""Runs a test with a baseline several times, to learn the spread of its numbers. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol

from cudamem_testing.plugin import keys
from cudamem_testing.run.repeats import of_repeats

if TYPE_CHECKING:
    from cudamem_testing.model.records import TestRecord
    from cudamem_testing.plugin.hooks import Hooks


class Repeats:
    """Runs every compared test ``times`` times, setup and teardown included, and reports the last run.

    If a run does not pass, it is reported instead and ends the repetitions.
    """

    def __init__(self, hooks: Hooks, times: int) -> None:
        self._session, self._reports = hooks.session, hooks.reports
        self._times = times

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Replace pytest's own protocol; ``None`` for a test without a baseline."""
        marked = item.stash.get(keys.COMPARISON, None)
        if self._session.baselines.comparison(item.nodeid, marked) is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        earlier: list[TestRecord] = []
        for run in range(1, self._times + 1):
            if run > 1:
                _forget_instance(item)
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            records = self._reports.take(item.nodeid)
            passed = all(report.passed for report in reports)
            if run == self._times or not passed:
                self._log(item, reports, [*earlier, *records] if passed else records)
                break
            earlier += records
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _log(self, item: pytest.Item, reports: list[pytest.TestReport], records: list[TestRecord]) -> None:
        """Report one run, with the numbers of all."""
        for report in reports:
            if report.when == "teardown" and records:
                report.cudamem = [of_repeats(records)]  # type: ignore[attr-defined]
            item.ihook.pytest_runtest_logreport(report=report)


def _forget_instance(item: pytest.Item) -> None:
    """Make the next run of a method start with a new instance, as every test does."""
    if isinstance(item, pytest.Function) and item.cls is not None and getattr(item, "_instance", None) is not None:
        del item._instance
        item._obj = None
