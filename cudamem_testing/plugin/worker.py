"""A worker of pytest-xdist: sends to the controller what is not part of a test's report. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from cudamem_testing.model.records import Environment
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.totals import Totals, totals
from cudamem_testing.report.schema import (
    finding_from_json,
    finding_to_json,
    fixture_from_json,
    fixture_to_json,
    ledger_from_json,
    ledger_to_json,
)

if TYPE_CHECKING:
    from cudamem_testing.plugin.session import Session

KEY = "cudamem"  # in the output of a worker


class Worker:
    """Sends when the worker ends."""

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._config = config
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The report is on its way to the controller, with the records of the test."""
        if report.when == "teardown":
            self._session.take(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Send plain types only: anything else would end the worker."""
        collected = self._config.stash[keys.COLLECTED].sent()
        output = {**_to_plain(totals(self._session)), "collected": collected}
        self._config.workeroutput[KEY] = output  # type: ignore[attr-defined]


def received(data: Mapping[str, Any]) -> Totals:
    """What a worker has sent."""
    devices, torch, allocator = data["environment"]
    return Totals(
        Environment(tuple(devices), torch, allocator),
        [*map(fixture_from_json, data["fixtures"])],
        data["unenforced"],
        [*map(finding_from_json, data["findings"])],
        [*map(ledger_from_json, data["ledger"])],
        data["ignored"],
        data["notes"],
        data["unchecked"],
    )


def _to_plain(known: Totals) -> dict[str, Any]:
    environment = known.environment
    return {
        "environment": [list(environment.devices), environment.torch, environment.allocator],
        "fixtures": [*map(fixture_to_json, known.fixtures)],
        "unenforced": dict(known.unenforced),
        "findings": [*map(finding_to_json, known.findings)],
        "ledger": [*map(ledger_to_json, known.ledger)],
        "ignored": dict(known.ignored),
        "notes": [*known.notes],
        "unchecked": dict(known.unchecked),
    }
