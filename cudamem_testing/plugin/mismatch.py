"""A text that is not the expected one: its message alone, which says what has changed and where.

pytest would print the call in front of it, with the whole text that stands in the test, and the test's arguments. With
``-vv`` the whole text as it is now stands below. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from cudamem_testing.records.expected.errors import TextMismatchError
from cudamem_testing.show.printable import printable
from cudamem_testing.static import is_a

WHOLE = 2
"""The verbosity from which on texts are shown whole."""


def show_alone(report: pytest.TestReport, call: pytest.CallInfo[None], config: pytest.Config) -> None:
    """Show the message of a mismatch, with ``-vv`` the whole text too; other failures stay as they are."""
    if not report.failed or call.excinfo is None:
        return
    error = call.excinfo.value
    if is_a(error, TextMismatchError):
        shown = report.longrepr = call.excinfo.getrepr(style="value")
        crash = getattr(shown, "reprcrash", None)
        if crash is not None:  # what the short summary shows: the first statement, not where the class lives
            crash.message = str(error)
        if config.get_verbosity() >= WHOLE:
            report.sections.append(("the whole text as it is now", printable(error.actual)))


class Mismatches:
    """Does so in a run that measures nothing."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Change the report of a failure."""
        report = yield
        show_alone(report, call, item.config)
        return report
