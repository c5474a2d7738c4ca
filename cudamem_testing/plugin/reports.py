"""Adds our findings to pytest's reports of tests, and attaches the records that the collector needs.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cudamem_testing.model.records import TestRecord
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.items import id_without_group, own_status, place_at_test
from cudamem_testing.run.finished import clear_frames
from cudamem_testing.safe_access import is_a, type_name
from cudamem_testing.show.printable import one_line, printable

if TYPE_CHECKING:
    from cudamem_testing.model.findings import Finding
    from cudamem_testing.run.session import Session


class Reports:
    """The reports of a session's tests.

    ``unreported`` are findings of the ending phase that no failure of ours shows yet, ``after_failure`` those of a test
    that failed in its call.
    """

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._config = config
        self._session = session
        self.unreported: list[Finding] = []
        self.after_failure: list[Finding] = []
        self.record: TestRecord | None = None
        """The record of the test that has ended, until it is attached to the report of its teardown."""
        self._undelivered = config.stash.setdefault(keys.UNDELIVERED, {})
        self._forks = config.getoption("forked", None) is not None  # pytest-forked is installed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        ends = call.when == "teardown"
        if call.excinfo is None and not (ends and (report.failed or self.unreported or self.after_failure)):
            self.unreported = []
        else:
            try:
                self._complete(item, call, report)
            except Exception as error:  # the test failed all the same, for the reason that its report has
                said = one_line(f"{type_name(error)}: {error}")
                report.sections.append(("cudamem", f"what is known of this failure cannot be shown: {said}"))
                self.unreported, self.after_failure = [], []
        if ends and self.record is not None:
            records = self._undelivered.setdefault(item.nodeid, [])
            records.append(self.record)
            forked = self._forks and _is_forked(item)
            report.cudamem = _plain(records) if forked else [*records]  # type: ignore[attr-defined]
            self.record = None
        return report

    def _complete(self, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
        """Add what we found to the report of a failure, and remember the failure."""
        session = self._session
        if call.excinfo is not None:
            from cudamem_testing.plugin.expected_report import show_alone

            show_alone(report, call, item.config)
            skipped = is_a(call.excinfo.value, pytest.skip.Exception)
            self.unreported = [*self.unreported, *session.out_of_memory(call.excinfo.value, skipped=skipped)]
        if report.failed and session.settings.dump is not None:
            self._dump(item, report, session.settings.dump)
        status = None if call.excinfo is None else own_status(call.excinfo.value)
        if status is not None:
            report.cudamem_status = status or None  # type: ignore[attr-defined]
            place_at_test(report, item)
            if self.record is not None or "[" in report.nodeid:
                from cudamem_testing.report.deduplicate import parts_of, places_of
            if self.record is not None:
                report.cudamem_shown = places_of(self.record, self.unreported)  # type: ignore[attr-defined]
            elif "[" in report.nodeid:
                report.cudamem_parts = parts_of(self.unreported)  # type: ignore[attr-defined]
        elif report.failed and self.unreported:
            from cudamem_testing.windows.regions import not_in

            rest = not_in(None if call.excinfo is None else call.excinfo.value, self.unreported)
            if rest:
                report.sections.append(("cudamem", texts_of(rest)))
            self.after_failure = []
        if self.after_failure:  # pytest shows it with the failure of the call, which is already reported
            report.sections.append(("cudamem teardown", texts_of(self.after_failure)))
        self.unreported, self.after_failure = [], []
        if call.excinfo is not None and session.running is not None and status is None:
            skipped = is_a(call.excinfo.value, pytest.skip.Exception)
            session.running.ended(call.excinfo.value, report.when, failed=report.failed, skipped=skipped)
        if call.when == "teardown" and call.excinfo is not None and not self._config.getoption("usepdb", False):
            clear_frames(call.excinfo.value)  # a failure of teardown itself: its report is made only now

    def take(self, nodeid: str) -> list[TestRecord]:
        """The records of a test that no report has delivered yet; they are then not delivered with the next one."""
        return self._undelivered.pop(nodeid, [])

    def _dump(self, item: pytest.Item, report: pytest.TestReport, folder: Path) -> None:
        """Write snapshots of a measured test at its first failure; a later one shows less."""
        said = self._session.dump(folder, id_without_group(item), item.nodeid)
        if said:
            report.sections.append(("cudamem snapshot", printable("\n".join(said))))
        if self._session.running is None and self.record is not None:
            self.record = self.record.but(notes=(*self.record.notes, *said))

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(
        self, report: pytest.TestReport
    ) -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
        """A report for another process or a log has plain types only."""
        data = yield
        if data is not None and "cudamem" in data:
            data["cudamem"] = _plain(data["cudamem"])
        return data


def _is_forked(item: pytest.Item) -> bool:
    """Whether pytest-forked runs the test in a process of its own, and marshals what its reports have."""
    return bool(item.config.getoption("forked", False)) or item.get_closest_marker("forked") is not None


def _plain(records: Iterable[TestRecord | dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of a report as plain types, which those of a forked test are already."""
    from cudamem_testing.report.schema import TEST

    return [TEST.write(record) if isinstance(record, TestRecord) else record for record in records]


def texts_of(findings: Sequence[Finding]) -> str:
    """The text of the findings."""
    from cudamem_testing.wording.findings import texts  # few runs find something

    return texts(findings)
