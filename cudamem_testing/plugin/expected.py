"""Expected text in a run: which test a text belongs to, and what was accepted, written once at the end.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from cudamem_testing.show.expected.session import Session

XDIST = "texts are not accepted under pytest-xdist: run without -n"


class ExpectedText:
    """Makes a session of expected text the current one while a test runs."""

    def __init__(self, *, accept: bool, distributed: bool) -> None:
        self._accept = accept
        self._session = Session(accept, XDIST if distributed else None)
        self._said: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """All phases of a test, each attempt anew."""
        self._session.begin(item.nodeid, getattr(item, "path", None))
        try:
            with self._session.activate():
                return (yield)
        finally:
            self._session.end()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what was accepted; a file that could not be written fails a run that was green."""
        if not self._accept:
            return
        written = self._session.write()
        self._said = str(written).splitlines()
        if written.refused:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was written."""
        if self._said:
            terminalreporter.write_sep("=", "expected text")
            for line in self._said:
                terminalreporter.write_line(line)
