"""The JSON report, schema 1: its layout. ``docs/report.md`` describes it for users.

The form of a value follows from its type (:mod:`codec`). The same form carries a test's record from a
pytest-xdist worker to the controller, so it holds plain types only. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from cudamem_testing.model import facts
from cudamem_testing.model.baselines import Measured, PeakLine
from cudamem_testing.model.callsite import CallSite, SourceSpan
from cudamem_testing.model.causes import Cause, causes
from cudamem_testing.model.changes import TRACKED, Spread
from cudamem_testing.model.checked import Checked
from cudamem_testing.model.curves import Curve
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Finding
from cudamem_testing.model.records import (
    Environment,
    Exhibit,
    FixtureRecord,
    LedgerEntry,
    RunCoverage,
    RunRecord,
    TestRecord,
    Unchecked,
    Unseen,
)
from cudamem_testing.model.stacks import Stack
from cudamem_testing.model.windows import Window
from cudamem_testing.report.codec import (
    FLAG,
    TEXT,
    WHOLE,
    Codec,
    Json,
    listed,
    mapped,
    one_of,
    optional,
    parsed,
    plain,
    record,
    row,
    word_of,
)
from cudamem_testing.report.curves import StackNumbers, read_curve, read_stacks, write_curve
from cudamem_testing.run.process_summary import ProcessSummary
from cudamem_testing.wording.findings import details, title

SCHEMA = 1
#: The keys of a finding before its text.
_COLUMNS = ("kind", "verdict", "severity", "bytes", "device", "allocated", "holder", "cause")
#: What hints mean that modules import for type checkers alone.
NAMES = {
    **{
        cls.__name__: cls
        for cls in (Checked, Curve, Environment, Exhibit, Finding, FixtureRecord, LedgerEntry, Measured, Unchecked)
    },
    "Fact": facts.Fact,
    "Note": facts.Note,
}


def _finding() -> Codec:
    """A finding with its text for people; one whose facts this version does not know is read as its text."""
    fields = record(Finding, names=NAMES)
    known = {word_of(cls) for cls in get_args(facts.Fact)}
    reported = record(facts.Reported)

    def write(finding: Finding) -> Json:
        data = fields.write(finding)
        texts = {"message": title(finding), "details": [*details(finding)]}
        fact = {"fact": data.pop("fact")}
        return {**{key: data.pop(key) for key in _COLUMNS}, **texts, **data, **fact}

    def read(data: Any, place: str) -> Any:
        fact = data.get("fact") if isinstance(data, dict) else None
        kind = fact.get("type", "") if isinstance(fact, dict) else None
        if isinstance(data, dict) and (fact is None or (isinstance(kind, str) and kind not in known)):
            texts = reported.write(reported.read(data, place))
            data = {**data, "fact": {"type": word_of(facts.Reported), **texts}, "remarks": []}
        return fields.read(data, place)

    return Codec(write, read)


def _spreads() -> Codec:
    """Numbers by metric, each ``[lowest, highest]``."""
    ends = row("[lowest, highest]", WHOLE, WHOLE, kind=lambda pair: Spread(*pair))

    def read(value: Any, place: str) -> Any:
        found = ends.read(value, place)
        if found.low > found.high:
            raise ValueError(f"{place} is not [lowest, highest]")
        return found

    return mapped(Codec(lambda spread: [spread.low, spread.high], read), one_of(*TRACKED))


def _call() -> Codec:
    """The call of a check of an expected text; its file is that of the check."""
    span = row("[line, column, last line, last column]", *[WHOLE] * 4, kind=lambda ends: SourceSpan(*ends))
    span = Codec(lambda one: [one.line, one.column, one.end_line, one.end_column], span.read)
    fields = record(CallSite, skip=("file",), make=partial(CallSite, ""), span=optional(span))

    def read(value: Any, place: str) -> Any:
        found = fields.read(value, place)
        if found.position is not None and found.position < 0:
            raise ValueError(f"{place}.position is {found.position}, less than 0")
        return found

    return Codec(fields.write, read)


def _checked() -> Codec:
    texts = mapped(TEXT)

    def read_texts(value: Any, place: str) -> Any:
        plain(str, dict, type(None)).read(value, place)
        return texts.read(value, place) if isinstance(value, dict) else value

    expected = Codec(lambda value: {**value} if isinstance(value, Mapping) else value, read_texts)
    fields = record(Checked, required=("expected", "actual"), call=optional(_call()), expected=expected)

    def read(value: Any, place: str) -> Any:
        found = fields.read(value, place)
        return found if found.call is None else replace(found, call=replace(found.call, file=found.file))

    return Codec(fields.write, read)


def _unchecked() -> Codec:
    """Numbers of checks, each under ``what: why``."""
    counts = mapped(WHOLE)

    def read(value: Any, place: str) -> Any:
        return {
            Unchecked(*key.split(": ", 1)) if ": " in key else Unchecked("check", key): number
            for key, number in counts.read(value, place).items()
        }

    return Codec(lambda value: {str(one): number for one, number in value.items()}, read)


def _place() -> Codec:
    """``[name, bytes]``, and behind them what reports of earlier versions did not have."""
    short = row("[name, bytes]", TEXT, WHOLE)
    words = "[name, bytes, text, blocks, saved, nth, recorded]"
    long = row(words, TEXT, WHOLE, TEXT, WHOLE, WHOLE, WHOLE, optional(FLAG))

    def read(value: Any, place: str) -> Any:
        wide = isinstance(value, list) and len(value) > 2
        return PeakLine(*(long if wide else short).read(value, place))

    def write(place: PeakLine) -> list[Any]:
        whole = [place.name, place.bytes, place.text, place.blocks, place.saved, place.nth, place.recorded]
        return whole if place != PeakLine(place.name, place.bytes) else whole[:2]

    return Codec(write, read)


_DEVICE = parsed(Device.parse)
_PLACE = _place()
WINDOW = record(Window)
FINDING = _finding()
MEASURED = record(
    Measured,
    required=("values",),
    values=_spreads(),
    recorded=_spreads(),
    top=optional(listed(_PLACE)),
    metrics=listed(one_of(*TRACKED)),
)
_TEST = record(
    TestRecord,
    skip=("curves", "exhibits"),
    names=NAMES,
    required=("outcome", "windows", "findings"),
    windows=listed(WINDOW),
    whole=listed(WINDOW),
    findings=listed(FINDING),
    measured=listed(MEASURED),
)
FIXTURE = record(FixtureRecord, required=("windows",), windows=listed(WINDOW))
LEDGER = record(LedgerEntry, device=Codec(str, lambda value, place: str(_DEVICE.read(value, place))))
CHECKED = _checked()
ENVIRONMENT = record(Environment, required=Environment._fields)
EXTENT = record(RunCoverage)
COUNTS = mapped(WHOLE)
UNCHECKED = _unchecked()
UNSEEN = record(Unseen)
#: What a worker sends besides the records of its tests.
PROCESS = record(
    ProcessSummary,
    names=NAMES,
    fixtures=listed(FIXTURE, list),
    findings=listed(FINDING, list),
    ledger=listed(LEDGER, list),
    unchecked=UNCHECKED,
)
CAUSE = record(Cause, skip=("example",), keys={"text": "cause"})
RUN = record(
    RunRecord,
    skip=("environment", "tests"),
    names=NAMES,
    keys={"checked": "expected"},
    required=("fixtures", "findings", "ledger", "notes"),
    fixtures=listed(FIXTURE),
    findings=listed(FINDING),
    ledger=listed(LEDGER),
    checked=listed(CHECKED),
    unchecked=UNCHECKED,
)
_EXHIBITS = listed(record(Exhibit))


def _test_alone() -> Codec:
    """A test with stacks of its own, as a worker sends it."""

    def write(test: TestRecord) -> Json:
        stacks = StackNumbers()
        data = write_test(test, stacks)
        return {**data, "frames": [*stacks.frames()], "stacks": [*stacks.stacks()]} if test.curves else data

    def read(data: Any, place: str) -> Any:
        return read_test(data, place, read_stacks(data) if isinstance(data, dict) else ())

    return Codec(write, read)


def write_test(test: TestRecord, stacks: StackNumbers) -> Json:
    """One test of a report, whose ``stacks`` are written beside its tests."""
    data: Json = _TEST.write(test)
    if test.curves:
        data["curves"] = [write_curve(curve, stacks) for curve in test.curves]
    if test.exhibits:
        data["exhibits"] = _EXHIBITS.write(test.exhibits)
    return data


def read_test(data: Any, place: str, stacks: Sequence[Stack]) -> TestRecord:
    """One test of a report with these stacks.

    Raises:
        ValueError: where a part is missing or of another type.
    """
    test: TestRecord = _TEST.read(data, place)
    curves = data.get("curves", [])
    if not isinstance(curves, list):
        raise ValueError(f"{place}.curves is no list")
    read = [read_curve(one, f"{place}.curves[{number}]", stacks) for number, one in enumerate(curves)]
    shown = _EXHIBITS.read(data.get("exhibits", []), f"{place}.exhibits")
    return test.but(curves=tuple(read), exhibits=shown) if read or shown else test


TEST = _test_alone()


def run_to_json(run: RunRecord, listing: Callable[[Iterator[Any]], object] = list) -> Json:
    """The whole report.

    ``listing`` makes the value for each list of records, from an iterator that makes its items one at a time.
    """
    stacks = StackNumbers()
    return {
        "schema": SCHEMA,
        "kind": "report",
        "environment": ENVIRONMENT.write(run.environment),
        "tests": listing(write_test(test, stacks) for test in run.tests),
        "frames": listing(stacks.frames()),
        "stacks": listing(stacks.stacks()),
        "run": {
            "fixtures": listing(map(FIXTURE.write, run.fixtures)),
            "findings": listing(map(FINDING.write, run.findings)),
            "causes": listing(map(CAUSE.write, causes(run))),
            "ledger": listing(map(LEDGER.write, run.ledger)),
            "notes": list(run.notes),
            "unenforced": COUNTS.write(run.unenforced),
            "extent": EXTENT.write(run.extent),
            "failures": list(run.failures),
            "unchecked": UNCHECKED.write(run.unchecked),
            "expected": listing(map(CHECKED.write, run.checked)),
            "flags": list(run.flags),
            "unseen": UNSEEN.write(run.unseen),
        },
    }


def run_from_json(data: Mapping[str, Any]) -> RunRecord:
    """The run of a report.

    Raises:
        ValueError: when it is not a report of this schema, or a part is missing or has the wrong type.
    """
    if data.get("schema") != SCHEMA or data.get("kind") != "report":
        raise ValueError(f"not a report of schema {SCHEMA}: schema {data.get('schema')!r}, kind {data.get('kind')!r}")
    for key in ("environment", "tests", "run"):
        if key not in data:
            raise ValueError(f"{key} is missing")
    environment = ENVIRONMENT.read(data["environment"], "environment")
    stacks = read_stacks(data)
    if not isinstance(data["tests"], list):
        listed(_TEST).read(data["tests"], "tests")
    tests = tuple(read_test(one, f"tests[{number}]", stacks) for number, one in enumerate(data["tests"]))
    run = RUN.read(data["run"], "run")
    return run._replace(environment=environment, tests=tests)  # type: ignore[no-any-return]
