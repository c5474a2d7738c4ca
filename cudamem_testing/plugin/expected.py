"""Expected text in a run: which test a text belongs to, and what was accepted, written once at the end.

Where a report is written, what the checks saw goes there with the reports of the tests, from workers as well.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from cudamem_testing.model.errors import together
from cudamem_testing.plugin.items import id_without_group
from cudamem_testing.report.schema import checked_to_json
from cudamem_testing.show.expected.checked import Checked
from cudamem_testing.show.expected.errors import TextMismatchError
from cudamem_testing.show.expected.session import Session

XDIST = "texts are not accepted under pytest-xdist: run without -n"


class ExpectedText:
    """Makes a session of expected text the current one while a test runs.

    ``keep`` is whether a report is written.
    """

    def __init__(self, *, accept: bool, distributed: bool, keep: bool = False) -> None:
        self._accept = accept
        self.session = Session(accept, XDIST if distributed else None, keep=keep)
        self._said: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """All phases of a test."""
        try:
            with self.session.activate():
                return (yield)
        finally:
            self.session.end()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Each attempt begins anew."""
        self.session.begin(id_without_group(item), getattr(item, "path", None))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what was accepted; a file that could not be written fails a run that was green."""
        if not self._accept:
            return
        written = self.session.write()
        self._said = str(written).splitlines()
        if written.refused:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was written."""
        if self._said:
            terminalreporter.write_sep("=", "expected text")
            for line in self._said:
                terminalreporter.write_line(line)


class CheckedText:
    """Sends what the checks saw with the reports, for the report of the run; files are relative to ``root``."""

    def __init__(self, session: Session, root: Path) -> None:
        self._session = session
        self._root = root

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send with a failure the check that failed, and at the end those whose text was right.

        As JSON, for a text may hold characters that no worker could send.
        """
        report = yield
        checks = [] if call.excinfo is None else [*_failed(call.excinfo.value)]
        if call.when == "teardown":
            checks += self._session.right
        if checks:
            sent = [checked_to_json(one.below(self._root)) for one in checks]
            report.cudamem_expected = json.dumps(sent)  # type: ignore[attr-defined]
        return report


def _failed(error: BaseException) -> Generator[Checked, None, None]:
    for one in together(error):
        if isinstance(one, TextMismatchError) and one.checked is not None:
            yield one.checked
