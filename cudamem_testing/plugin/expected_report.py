"""Checks of expected texts in the reports of tests: what each saw, and the message of one that failed.

A mismatch shows only its message, which says what has changed and where: pytest would print the call before it, with
the whole text of the test. With ``-vv`` the actual text follows. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cudamem_testing.records.expected.errors import TextMismatchError, failed_checks
from cudamem_testing.safe_access import is_a
from cudamem_testing.show.printable import printable

if TYPE_CHECKING:
    from cudamem_testing.records.expected.session import Session


class CheckedText:
    """Sends what the checks saw with the reports, from workers as well; files are relative to ``root``."""

    def __init__(self, session: Session, root: Path) -> None:
        self._session = session
        self._root = root

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send with a failure the check that failed, and at the end those whose text was right.

        As JSON, because a text may have characters that a worker cannot send.
        """
        report = yield
        checks = [] if call.excinfo is None else [*failed_checks(call.excinfo.value)]
        if call.when == "teardown":
            checks += self._session.right
        if checks:
            from cudamem_testing.report.schema import CHECKED

            sent = [CHECKED.write(one.below(self._root)) for one in checks]
            report.cudamem_expected = json.dumps(sent)  # type: ignore[attr-defined]
        return report


WHOLE = 2
"""The verbosity from which whole texts are shown."""


def show_alone(report: pytest.TestReport, call: pytest.CallInfo[None], config: pytest.Config) -> None:
    """Show the message of a mismatch, with ``-vv`` the whole text too; other failures stay as they are."""
    if not report.failed or call.excinfo is None:
        return
    error = call.excinfo.value
    if is_a(error, TextMismatchError):
        shown = report.longrepr = call.excinfo.getrepr(style="value")
        crash = getattr(shown, "reprcrash", None)
        if crash is not None:  # the short summary shows this: the first statement, without the module of the class
            crash.message = str(error)
        if config.get_verbosity() >= WHOLE:
            report.sections.append(("the whole text as it is now", printable(error.actual)))


class Mismatches:
    """Shows messages of mismatches in a run that measures nothing."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Change the report of a failure."""
        report = yield
        show_alone(report, call, item.config)
        return report
