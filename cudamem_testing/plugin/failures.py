"""Collects what fails a run besides its measured tests: crashes, interrupts, internal errors, files that cannot be
collected.

Without them the report would look like that of a passed run. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Any

import pytest

from cudamem_testing.model.records import RunRecord

PHASES = ("setup", "call", "teardown")
#: Statuses that tests explain; every other one needs a reason.
_EXPLAINED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class RunFailures:
    """Collects them in the process that has every report."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}
        self._down: dict[str, str] = {}

    def crashed(self, report: pytest.TestReport) -> None:
        """A process ended while it ran a test: pytest-xdist and pytest-forked report that outside of the phases."""
        self._down.pop(worker_of(getattr(report, "node", None)), None)
        text = _reason(str(report.longrepr))
        self._add(text if report.nodeid in text else f"{report.nodeid}: {text}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file or a class could not be collected."""
        if report.failed:
            self._add(f"{report.nodeid or '.'} could not be collected: {_reason(str(report.longrepr))}")

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """The run was stopped; ``pytest.exit`` may say that this is no failure."""
        if getattr(excinfo.value, "returncode", None) != pytest.ExitCode.OK:
            self._add(f"interrupted: {_reason(str(excinfo.value)) or excinfo.typename}")

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """An error outside of any test; that of a worker arrives as the text of its traceback."""
        text = str(excinfo.value)
        self._add(f"internal error: {_reason(text) if 'E  ' in text else _reason(excinfo.exconly())}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker of pytest-xdist has ended; if a test ran there, a report of that test follows."""
        if error:
            self._down[worker_of(node)] = str(error)

    def unmeasured(self, nodeid: str, outcome: str) -> None:
        """A test without a record has ended."""
        if outcome in ("failed", "error"):
            self._add(f"{nodeid} {'failed' if outcome == 'failed' else 'had an error'} and was not measured")

    def lines(self, run: RunRecord, status: int) -> tuple[str, ...]:
        """All failures; a generic one if nothing else explains pytest's exit status."""
        found = [*self._lines, *(f"worker {name!r} ended early: {error}" for name, error in self._down.items())]
        failed = status not in _EXPLAINED or (status == pytest.ExitCode.TESTS_FAILED and not run.has_failing_tests)
        if failed and not found:
            found.append(f"pytest ended with status {int(status)}")
        return tuple(found)

    def _add(self, line: str) -> None:
        self._lines[line] = None


def worker_of(node: Any) -> str:
    """The id of a worker of pytest-xdist; empty for this process."""
    return str(getattr(getattr(node, "gateway", None), "id", ""))


def _reason(text: str) -> str:
    """The line of a traceback's text that names the error; the first line of another text."""
    lines = text.strip().splitlines() or [""]
    return next((line[1:].strip() for line in map(str.strip, lines) if line.startswith("E  ")), lines[0].strip())
