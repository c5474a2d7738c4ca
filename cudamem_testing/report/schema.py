"""The JSON report, schema 1: the only builder and reader of JSON. ``docs/report.md`` describes it for users.

The same form carries a test's record from a pytest-xdist worker to the controller, so it holds plain types only.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cudamem_testing.model.baselines import Measured, Place
from cudamem_testing.model.causes import Cause, causes
from cudamem_testing.model.changes import Spread
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Finding, Kind, Severity, Standing, Verdict
from cudamem_testing.model.records import Environment, Extent, FixtureRecord, LedgerEntry, RunRecord, TestRecord
from cudamem_testing.model.windows import Window
from cudamem_testing.report.shape import REPORT
from cudamem_testing.show.expected.callsite import CallSite, Span
from cudamem_testing.show.expected.checked import Checked

SCHEMA = 1
Json = dict[str, Any]
EXTENT_KEYS = ("paths", "left_out", "kinds")
CALL_KEYS = ("function", "first_line", "line", "callee", "argument", "position")
SPAN_KEYS = ("line", "column", "end_line", "end_column")
WINDOW_KEYS = (
    "start",
    "peak",
    "end",
    "requested_start",
    "requested_peak",
    "reserved_start",
    "reserved_peak",
    "retained",
    "allocations",
    "segments",
    "retries",
    "blocks",
    "complete",
)


def run_to_json(run: RunRecord, listed: Callable[[Iterator[Json]], object] = list) -> Json:
    """The whole report.

    ``listed`` makes what stands for each list of records, from an iterator that makes its items one at a time.
    """
    environment = run.environment
    return {
        "schema": SCHEMA,
        "kind": "report",
        "environment": {
            "devices": list(environment.devices),
            "torch": environment.torch,
            "allocator": environment.allocator,
        },
        "tests": listed(map(record_to_json, run.tests)),
        "run": {
            "fixtures": listed(map(fixture_to_json, run.fixtures)),
            "findings": listed(map(finding_to_json, run.findings)),
            "causes": listed(map(cause_to_json, causes(run))),
            "ledger": listed(map(ledger_to_json, run.ledger)),
            "notes": list(run.notes),
            "unenforced": dict(run.unenforced),
            "extent": {key: list(getattr(run.extent, key)) for key in EXTENT_KEYS},
            "failures": list(run.failures),
            "unchecked": dict(run.unchecked),
            "expected": listed(map(checked_to_json, run.checked)),
        },
    }


def run_from_json(data: Mapping[str, Any]) -> RunRecord:
    """The run of a report.

    Raises:
        ValueError: when it is not a report of this schema, or a part is missing or has the wrong type.
    """
    if data.get("schema") != SCHEMA or data.get("kind") != "report":
        raise ValueError(f"not a report of schema {SCHEMA}: schema {data.get('schema')!r}, kind {data.get('kind')!r}")
    REPORT(data, "")
    environment, run = data["environment"], data["run"]
    return RunRecord(
        Environment(tuple(environment["devices"]), environment["torch"], environment["allocator"]),
        tuple(map(record_from_json, data["tests"])),
        tuple(map(fixture_from_json, run["fixtures"])),
        tuple(map(finding_from_json, run["findings"])),
        tuple(run["notes"]),
        dict(run.get("unenforced", {})),
        tuple(map(ledger_from_json, run["ledger"])),
        tuple(map(checked_from_json, run.get("expected", ()))),
        Extent(*(tuple(run.get("extent", {}).get(key, ())) for key in EXTENT_KEYS)),
        tuple(run.get("failures", ())),
        dict(run.get("unchecked", {})),
    )


def record_to_json(test: TestRecord) -> Json:
    """One run of one test."""
    return {
        "nodeid": test.nodeid,
        "outcome": test.outcome,
        "attempt": test.attempt,
        "windows": [window_to_json(window) for window in test.windows],
        "whole": [window_to_json(window) for window in test.whole],
        "findings": [finding_to_json(finding) for finding in test.findings],
        "budget_used": test.budget_used,
        "notes": list(test.notes),
        "measured": [measured_to_json(one) for one in test.measured],
        "unjudged": list(test.unjudged),
    }


def record_from_json(data: Mapping[str, Any]) -> TestRecord:
    """The record that :func:`record_to_json` wrote."""
    return TestRecord(
        nodeid=data["nodeid"],
        outcome=data["outcome"],
        attempt=data.get("attempt", 1),
        windows=tuple(map(window_from_json, data["windows"])),
        whole=tuple(map(window_from_json, data.get("whole", ()))),
        findings=tuple(map(finding_from_json, data["findings"])),
        budget_used=data.get("budget_used"),
        notes=tuple(data.get("notes", ())),
        measured=tuple(map(measured_from_json, data.get("measured", ()))),
        unjudged=tuple(data.get("unjudged", ())),
    )


def measured_to_json(measured: Measured) -> Json:
    """What a baseline is compared with; ``top`` is ``null`` where nobody looked."""
    return {
        "device": str(measured.device),
        "environment": measured.environment,
        "values": {metric: [spread.low, spread.high] for metric, spread in measured.values.items()},
        "top": None if measured.top is None else [[place.name, place.bytes] for place in measured.top],
        "metrics": list(measured.metrics),
        "asked": measured.asked,
    }


def measured_from_json(data: Mapping[str, Any]) -> Measured:
    """What :func:`measured_to_json` wrote."""
    top = data.get("top")
    return Measured(
        Device.parse(data["device"]),
        data["environment"],
        {metric: Spread(*ends) for metric, ends in data["values"].items()},
        None if top is None else tuple(Place(name, size) for name, size in top),
        tuple(data.get("metrics", ())),
        data.get("asked", False),
    )


def fixture_to_json(fixture: FixtureRecord) -> Json:
    """One setup or teardown of a wider fixture."""
    return {
        "name": fixture.name,
        "scope": fixture.scope,
        "first_used_by": fixture.first_used_by,
        "windows": [window_to_json(window) for window in fixture.windows],
    }


def fixture_from_json(data: Mapping[str, Any]) -> FixtureRecord:
    """The record that :func:`fixture_to_json` wrote."""
    windows = tuple(map(window_from_json, data["windows"]))
    return FixtureRecord(data["name"], data["scope"], data["first_used_by"], windows)


def ledger_to_json(entry: LedgerEntry) -> Json:
    """What one owner left."""
    return {"device": entry.device, "owner": entry.owner, "bytes": entry.bytes, "blocks": entry.blocks}


def ledger_from_json(data: Mapping[str, Any]) -> LedgerEntry:
    """The entry that :func:`ledger_to_json` wrote."""
    return LedgerEntry(data["device"], data["owner"], data["bytes"], data["blocks"])


def checked_to_json(checked: Checked) -> Json:
    """One check of an expected text; ``actual`` is ``null`` where the text is right."""
    call, expected = checked.call, checked.expected
    return {
        "test": checked.test,
        "device": checked.device,
        "file": checked.file,
        "digest": checked.digest,
        "call": None
        if call is None
        else {
            **{key: getattr(call, key) for key in CALL_KEYS},
            "span": None if call.span is None else [getattr(call.span, key) for key in SPAN_KEYS],
        },
        "expected": {**expected} if isinstance(expected, Mapping) else expected,
        "actual": checked.actual,
    }


def checked_from_json(data: Mapping[str, Any]) -> Checked:
    """The check that :func:`checked_to_json` wrote."""
    file, call = data["file"], data["call"]
    at = None
    if call is not None:
        span = None if call["span"] is None else Span(*call["span"])
        at = CallSite(file, span=span, **{key: call[key] for key in CALL_KEYS})
    return Checked(data["test"], file, data["digest"], at, data["device"], data["expected"], data["actual"])


def cause_to_json(cause: Cause) -> Json:
    """The findings of one cause taken together; they stand whole at their tests, so nobody reads this back."""
    return {
        "cause": cause.text,
        "device": cause.device,
        "kind": cause.kind.value,
        "verdict": cause.verdict.value,
        "severity": cause.severity.value,
        "standing": None if cause.standing is None else cause.standing.value,
        "bytes": cause.bytes,
        "largest": cause.largest,
        "findings": cause.findings,
        "tests": list(cause.tests),
    }


def window_to_json(window: Window) -> Json:
    """One window on one device; ``null`` is unknown."""
    values: Json = {"name": window.name, "device": str(window.device)}
    values.update((key, getattr(window, key)) for key in WINDOW_KEYS)
    values["notes"] = list(window.notes)
    return values


def window_from_json(data: Mapping[str, Any]) -> Window:
    """The window that :func:`window_to_json` wrote."""
    values = {key: data[key] for key in WINDOW_KEYS if key in data}
    return Window(data["name"], Device.parse(data["device"]), notes=tuple(data.get("notes", ())), **values)


def finding_to_json(finding: Finding) -> Json:
    """One finding."""
    return {
        "kind": finding.kind.value,
        "verdict": finding.verdict.value,
        "severity": finding.severity.value,
        "bytes": finding.bytes,
        "device": None if finding.device is None else str(finding.device),
        "allocated": finding.allocated,
        "holder": finding.holder,
        "cause": finding.cause,
        "message": finding.message,
        "details": list(finding.details),
        "standing": None if finding.standing is None else finding.standing.value,
    }


def finding_from_json(data: Mapping[str, Any]) -> Finding:
    """The finding that :func:`finding_to_json` wrote."""
    return Finding(
        kind=Kind(data["kind"]),
        verdict=Verdict(data["verdict"]),
        severity=Severity(data["severity"]),
        message=data["message"],
        bytes=data.get("bytes"),
        device=None if data.get("device") is None else Device.parse(data["device"]),
        allocated=data.get("allocated"),
        holder=data.get("holder"),
        cause=data.get("cause"),
        details=tuple(data.get("details", ())),
        standing=None if data.get("standing") is None else Standing(data["standing"]),
    )
