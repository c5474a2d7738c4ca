"""Expected text in a run: which test a text belongs to, and what was accepted, written once at the end.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cudamem_testing.plugin.items import id_without_group
from cudamem_testing.show.places import side_folder
from cudamem_testing.show.printable import printable

if TYPE_CHECKING:
    from cudamem_testing.records.expected.session import Session

XDIST = "texts are not accepted under pytest-xdist: run without -n"


class ExpectedText:
    """Activates a session of expected text for tests whose texts may be kept in files beside them.

    These are the tests of a file that has a folder for texts of calls without an argument, and every test if texts are
    accepted or a report is written (``keep``). Other tests need none: there a text is compared with the one at the
    call.
    """

    def __init__(self, *, accept: bool, distributed: bool, keep: bool = False) -> None:
        self._accept = accept
        self._keep = keep
        self._refusal = XDIST if distributed else None
        self._with_folder: dict[Path, bool] = {}
        self._said: list[str] = []

    @cached_property
    def session(self) -> Session:
        """The session of this run; its modules are imported where one is needed."""
        from cudamem_testing.records.expected.session import Session

        return Session(self._accept, self._refusal, keep=self._keep)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Unregister if no test needs it, because each hook takes time in every test."""
        if not any(map(self._is_needed, session.items)) and not self._accept:
            session.config.pluginmanager.unregister(self)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """All phases of a test."""
        if not self._is_needed(item):
            return (yield)
        try:
            with self.session.activate():
                return (yield)
        finally:
            self.session.end()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Start each attempt from the beginning."""
        if self._is_needed(item):
            self.session.begin(id_without_group(item), item.path)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what was accepted; a file that could not be written fails a run that was green."""
        if not self._accept:
            return
        written = self.session.write()
        self._said = str(written).split("\n")
        if written.refused:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was written."""
        if self._said:
            terminalreporter.write_sep("=", "expected text")
            for line in self._said:
                terminalreporter.write_line(printable(line))

    def _is_needed(self, item: pytest.Item) -> bool:
        if self._accept or self._keep:
            return True
        path = item.path
        if path not in self._with_folder:
            self._with_folder[path] = side_folder(path).is_dir()
        return self._with_folder[path]
