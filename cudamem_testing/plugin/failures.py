"""Notices what fails a run besides its measured tests: crashes, interrupts, internal errors, failed collections.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Any

import pytest

from cudamem_testing.run.failures import FailureLines

PHASES = ("setup", "call", "teardown")


class RunFailures:
    """Notices them in the process that has every report."""

    def __init__(self) -> None:
        self.lines = FailureLines()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file or a class could not be collected."""
        if report.failed:
            self.lines.not_collected(report.nodeid, str(report.longrepr))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """The run was stopped; ``pytest.exit`` may say that this is no failure."""
        if getattr(excinfo.value, "returncode", None) != pytest.ExitCode.OK:
            self.lines.interrupted(str(excinfo.value), excinfo.typename)

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """An error outside of any test."""
        self.lines.internal_error(str(excinfo.value), excinfo.exconly())

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker of pytest-xdist has ended."""
        if error:
            self.lines.ended_early(worker_of(node), str(error))


def worker_of(node: Any) -> str:
    """The id of a worker of pytest-xdist; empty for this process."""
    return str(getattr(getattr(node, "gateway", None), "id", ""))
