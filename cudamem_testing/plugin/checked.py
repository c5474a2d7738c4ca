"""Checked texts: what the checks of expected texts saw goes with the reports of the tests into the report of the run.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from cudamem_testing.model.checked import Checked
from cudamem_testing.model.errors import together
from cudamem_testing.records.expected.errors import TextMismatchError
from cudamem_testing.records.expected.session import Session
from cudamem_testing.report.schema import CHECKED
from cudamem_testing.static import is_a


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

        As JSON, for a text may hold characters that no worker could send.
        """
        report = yield
        checks = [] if call.excinfo is None else [*_failed(call.excinfo.value)]
        if call.when == "teardown":
            checks += self._session.right
        if checks:
            sent = [CHECKED.write(one.below(self._root)) for one in checks]
            report.cudamem_expected = json.dumps(sent)  # type: ignore[attr-defined]
        return report


def _failed(error: BaseException) -> Generator[Checked, None, None]:
    for one in together(error):
        if is_a(one, TextMismatchError) and one.checked is not None:
            yield one.checked
