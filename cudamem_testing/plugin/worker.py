"""A worker of pytest-xdist: sends to the controller what is not part of a test's report. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cudamem_testing.plugin import keys
from cudamem_testing.report.schema import PROCESS
from cudamem_testing.run.process_summary import process_summary

if TYPE_CHECKING:
    from cudamem_testing.plugin.hooks import Hooks

KEY = "cudamem"  # in the output of a worker


class Worker:
    """Sends the results when the worker ends."""

    def __init__(self, config: pytest.Config, hooks: Hooks) -> None:
        self._config = config
        self._session, self._reports = hooks.session, hooks.reports

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The report delivers the records of the test to the controller."""
        if report.when == "teardown":
            self._reports.take(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Send plain types only: anything else would end the worker."""
        collected = self._config.stash[keys.COLLECTED].serialize()
        output = {**PROCESS.write(process_summary(self._session)), "collected": collected}
        self._config.workeroutput[KEY] = output  # type: ignore[attr-defined]
