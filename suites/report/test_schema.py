"""The JSON report: the exact document, a round trip of anything, one clear error for what is no report."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.baselines import Measured, PeakLine
from cudamem_testing.model.callsite import CallSite, SourceSpan
from cudamem_testing.model.changes import Spread
from cudamem_testing.model.checked import Checked
from cudamem_testing.model.curves import Band, Curve, Part, Stretch
from cudamem_testing.model.devices import Device
from cudamem_testing.model.evidence import Trend
from cudamem_testing.model.facts import Fact, Note, Outgrew, Reported
from cudamem_testing.model.findings import Finding, Kind, Severity, Standing, Verdict
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
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.model.windows import Window
from cudamem_testing.report.codec import word_of
from cudamem_testing.report.schema import FINDING, FIXTURE, TEST, run_from_json, run_to_json
from cudamem_testing.wording.findings import details, title

CARD = Device("cuda", 0)
STACK = Stack((Frame("torch/nn.py", 7, "linear", "library"), Frame("a.py", 1, "f")))
RUN = RunRecord(
    Environment(("cuda:0 (NVIDIA H100)",), "2.11.0", "native"),
    (
        TestRecord(
            "test_a.py::test_b[x]",
            "failed",
            2,
            (Window("call", CARD, 1, 5, 2, 1, 4, 0, 8, 1, 3, 2, 0, 1, False, ("late",)),),
            (Window("test", CARD),),
            (
                Finding(
                    Kind.BUDGET,
                    Verdict.OVER,
                    Severity.FAIL,
                    Reported("cudamem: too much", ("start 1 B",)),
                    4,
                    CARD,
                    "a.py:1 in f",
                    "module a > x",
                    "budget peak at most",
                ),
            ),
            1.5,
            ("a note",),
            (
                Measured(
                    CARD,
                    "NVIDIA H100 (9.0), torch 2.11, native",
                    {"requested": Spread(3, 4), "retries": Spread(0, 0)},
                    (PeakLine("a.py::f", 3),),
                    ("requested",),
                    True,
                    recorded={"requested": Spread(2, 3)},
                ),
                Measured(Device("cpu"), "x86_64, 1 thread, torch 2.11"),
            ),
            ("cycle",),
            (
                Curve(
                    CARD,
                    "line",
                    (0, 1, 3),
                    (0, 5, 9),
                    (
                        Band("a.py:1 in f", "project", ((1, 4), (2, 0))),
                        Band("(live before the test)", "before", ((0, 1),)),
                    ),
                    (Stretch("call", 0, 2),),
                    1,
                    (Part(3, 2, STACK), Part(1, 1, None, "(live before the test)", "before")),
                    3,
                    ("late",),
                ),
            ),
            (Exhibit("Operators", "a\nb"),),
        ),
    ),
    (FixtureRecord("model", "session", "test_a.py::test_b[x]", (Window("setup of fixture 'model'", CARD),)),),
    (
        Finding(Kind.OTHER, Verdict.NOT_REPEATABLE, Severity.WARN, Reported("of the run")),
        Finding(
            Kind.LEAK,
            Verdict.REACHABLE,
            Severity.FAIL,
            Reported("cudamem: more"),
            512,
            CARD,
            cause="leak | reachable | a.py::f",
            standing=Standing.LARGER,
        ),
    ),
    ("written",),
    {"cuda:1 is not measured here": 2},
    (LedgerEntry("cuda:0", "test_a.py::test_b[x]", 512, 1),),
    (
        Checked(
            "test_a.py::test_b[x]",
            "test_a.py",
            "f00d",
            CallSite("test_a.py", "test_b", 2, 4, SourceSpan(4, 4, 6, 7), "assert_text", "expected", 0),
            "cuda",
            {"cpu": "a"},
            "b\nc",
        ),
        Checked("test_a.py::test_b[x]", "__cudamem__/test_a/test_b[x].txt", None, None, None, None, "b"),
        Checked(
            "test_a.py::test_c",
            "test_a.py",
            None,
            CallSite("test_a.py", "<module>", 1, 9, None, "assert_text", "expected", None),
            None,
        ),
    ),
    RunCoverage((".",), ("test_a.py::test_d",), ("cycle", "leak"), {"cpu": 9}),
    ("interrupted: KeyboardInterrupt",),
    {Unchecked("baseline", "recorded with torch 2.11, this run has torch 2.13"): 3},
    ("--cudamem",),
    Unseen("--cudamem-prune", ("leak | old (cpu)",)),
)
UNKNOWN = {
    "start": None,
    "peak": None,
    "end": None,
    "requested_start": None,
    "requested_peak": None,
    "reserved_start": None,
    "reserved_peak": None,
    "retained": None,
    "allocations": None,
    "segments": None,
    "retries": None,
    "blocks": None,
    "complete": True,
    "notes": [],
}
DOCUMENT = {
    "schema": 1,
    "kind": "report",
    "environment": {"devices": ["cuda:0 (NVIDIA H100)"], "torch": "2.11.0", "allocator": "native"},
    "tests": [
        {
            "nodeid": "test_a.py::test_b[x]",
            "outcome": "failed",
            "attempt": 2,
            "windows": [
                {
                    "name": "call",
                    "device": "cuda:0",
                    "start": 1,
                    "peak": 5,
                    "end": 2,
                    "requested_start": 1,
                    "requested_peak": 4,
                    "reserved_start": 0,
                    "reserved_peak": 8,
                    "retained": 1,
                    "allocations": 3,
                    "segments": 2,
                    "retries": 0,
                    "blocks": 1,
                    "complete": False,
                    "notes": ["late"],
                }
            ],
            "whole": [{"name": "test", "device": "cuda:0", **UNKNOWN}],
            "findings": [
                {
                    "kind": "budget",
                    "verdict": "over budget",
                    "severity": "fail",
                    "bytes": 4,
                    "device": "cuda:0",
                    "allocated": "a.py:1 in f",
                    "holder": "module a > x",
                    "cause": "budget peak at most",
                    "message": "cudamem: too much",
                    "details": ["start 1 B"],
                    "standing": None,
                    "owner": None,
                    "remarks": [],
                    "fact": {"type": "reported", "message": "cudamem: too much", "details": ["start 1 B"]},
                }
            ],
            "budget_used": 1.5,
            "notes": ["a note"],
            "measured": [
                {
                    "device": "cuda:0",
                    "environment": "NVIDIA H100 (9.0), torch 2.11, native",
                    "values": {"requested": [3, 4], "retries": [0, 0]},
                    "top": [["a.py::f", 3]],
                    "metrics": ["requested"],
                    "asked": True,
                    "lines": "",
                    "recorded": {"requested": [2, 3]},
                },
                {
                    "device": "cpu",
                    "environment": "x86_64, 1 thread, torch 2.11",
                    "values": {},
                    "top": None,
                    "metrics": [],
                    "asked": False,
                    "lines": "",
                    "recorded": {},
                },
            ],
            "unjudged": ["cycle"],
            "curves": [
                {
                    "device": "cuda:0",
                    "by": "line",
                    "moments": [0, 1, 3],
                    "times": [0, 5, 9],
                    "bands": [
                        {"label": "a.py:1 in f", "origin": "project", "steps": [1, 4, 2, 0]},
                        {"label": "(live before the test)", "origin": "before", "steps": [0, 1]},
                    ],
                    "stretches": [["call", 0, 2]],
                    "peak": 1,
                    "events": 3,
                    "notes": ["late"],
                    "live": [[3, 2, 0, "project"], [1, 1, "(live before the test)", "before"]],
                }
            ],
            "exhibits": [{"title": "Operators", "text": "a\nb"}],
        }
    ],
    "frames": [["torch/nn.py", 7, "linear", "library"], ["a.py", 1, "f", "project"]],
    "stacks": [[0, 1]],
    "run": {
        "fixtures": [
            {
                "name": "model",
                "scope": "session",
                "first_used_by": "test_a.py::test_b[x]",
                "windows": [{"name": "setup of fixture 'model'", "device": "cuda:0", **UNKNOWN}],
            }
        ],
        "findings": [
            {
                "kind": "other",
                "verdict": "body is not repeatable",
                "severity": "warn",
                "bytes": None,
                "device": None,
                "allocated": None,
                "holder": None,
                "cause": None,
                "message": "of the run",
                "details": [],
                "standing": None,
                "owner": None,
                "remarks": [],
                "fact": {"type": "reported", "message": "of the run", "details": []},
            },
            {
                "kind": "leak",
                "verdict": "reachable",
                "severity": "fail",
                "bytes": 512,
                "device": "cuda:0",
                "allocated": None,
                "holder": None,
                "cause": "leak | reachable | a.py::f",
                "message": "cudamem: more",
                "details": [],
                "standing": "larger than known",
                "owner": None,
                "remarks": [],
                "fact": {"type": "reported", "message": "cudamem: more", "details": []},
            },
        ],
        "causes": [
            {
                "cause": "leak | reachable | a.py::f",
                "device": "cuda",
                "kind": "leak",
                "verdict": "reachable",
                "severity": "fail",
                "standing": "larger than known",
                "bytes": 512,
                "largest": 512,
                "findings": 1,
                "tests": [],
            }
        ],
        "ledger": [{"device": "cuda:0", "owner": "test_a.py::test_b[x]", "bytes": 512, "blocks": 1}],
        "notes": ["written"],
        "unenforced": {"cuda:1 is not measured here": 2},
        "extent": {
            "paths": ["."],
            "left_out": ["test_a.py::test_d"],
            "kinds": ["cycle", "leak"],
            "ignored": {"cpu": 9},
        },
        "failures": ["interrupted: KeyboardInterrupt"],
        "unchecked": {"baseline: recorded with torch 2.11, this run has torch 2.13": 3},
        "expected": [
            {
                "test": "test_a.py::test_b[x]",
                "file": "test_a.py",
                "digest": "f00d",
                "call": {
                    "function": "test_b",
                    "first_line": 2,
                    "line": 4,
                    "span": [4, 4, 6, 7],
                    "callee": "assert_text",
                    "argument": "expected",
                    "position": 0,
                },
                "device": "cuda",
                "expected": {"cpu": "a"},
                "actual": "b\nc",
            },
            {
                "test": "test_a.py::test_b[x]",
                "file": "__cudamem__/test_a/test_b[x].txt",
                "digest": None,
                "call": None,
                "device": None,
                "expected": None,
                "actual": "b",
            },
            {
                "test": "test_a.py::test_c",
                "file": "test_a.py",
                "digest": None,
                "call": {
                    "function": "<module>",
                    "first_line": 1,
                    "line": 9,
                    "span": None,
                    "callee": "assert_text",
                    "argument": "expected",
                    "position": None,
                },
                "device": None,
                "expected": None,
                "actual": None,
            },
        ],
        "flags": ["--cudamem"],
        "unseen": {"flag": "--cudamem-prune", "causes": ["leak | old (cpu)"]},
    },
}


def test_the_document() -> None:
    assert run_to_json(RUN) == DOCUMENT
    assert json.dumps(run_to_json(RUN)) == json.dumps(DOCUMENT)  # in this order too


def test_the_document_is_read_back() -> None:
    assert run_from_json(DOCUMENT) == RUN


def test_the_smallest_report() -> None:
    found = run_to_json(RunRecord())
    assert found == {
        "schema": 1,
        "kind": "report",
        "environment": {"devices": [], "torch": None, "allocator": None},
        "tests": [],
        "frames": [],
        "stacks": [],
        "run": {
            "fixtures": [],
            "findings": [],
            "causes": [],
            "ledger": [],
            "notes": [],
            "unenforced": {},
            "extent": {"paths": [], "left_out": [], "kinds": [], "ignored": {}},
            "failures": [],
            "unchecked": {},
            "expected": [],
            "flags": [],
            "unseen": {"flag": "", "causes": []},
        },
    }
    assert run_from_json(found) == RunRecord()


def test_only_documented_keys_are_needed_and_others_allowed() -> None:
    window = {"name": "call", "device": "cuda:0", "start": 0, "peak": 1, "end": 0, "colour": "red"}
    finding = {"kind": "leak", "verdict": "over budget", "severity": "note", "message": "m", "age": 3}
    found = run_from_json(
        {
            "schema": 1,
            "kind": "report",
            "environment": {"devices": [], "torch": None, "allocator": None, "host": "h"},
            "tests": [{"nodeid": "a", "outcome": "passed", "windows": [window], "findings": [finding], "more": 1}],
            "run": {
                "fixtures": [],
                "findings": [],
                "ledger": [{"device": "cpu", "owner": "a", "bytes": 4, "blocks": 1, "x": 1}],
                "notes": [],
                "extra": {},
            },
            "later": [],
        }
    )
    assert found.tests == (
        TestRecord(
            "a",
            "passed",
            windows=(Window("call", CARD, 0, 1, 0),),
            findings=(Finding(Kind.LEAK, Verdict.OVER, Severity.NOTE, Reported("m")),),
        ),
    )


# -- anything ---------------------------------------------------------------------------------------------

NUMBER = st.one_of(st.none(), st.integers(-(2**60), 2**60))
TEXT = st.text(max_size=8)
TEXTS = st.lists(TEXT, max_size=2).map(tuple)
DEVICES = st.sampled_from([CARD, Device("cuda", 12), Device("cuda"), Device("cpu"), Device("host")])
WINDOWS = st.builds(Window, TEXT, DEVICES, *[NUMBER] * 12, st.booleans(), TEXTS)
SMALL = {str: TEXT, int: st.integers(-(2**60), 2**60), float: st.floats(0, 1e9), Device: DEVICES, Window: WINDOWS}
for kind, values in SMALL.items():
    st.register_type_strategy(kind, values)
LEVELS = st.lists(st.integers(0, 2**60), min_size=1, max_size=3).map(tuple)
st.register_type_strategy(Trend, st.builds(Trend, LEVELS, st.integers(0, 99)))


@st.composite
def outgrew(draw: st.DrawFn) -> Outgrew:
    """Bytes at each of some rising sizes."""
    sizes = sorted(draw(st.sets(st.integers(1, 2**20), min_size=2, max_size=4)))
    bytes_ = st.lists(st.integers(0, 2**60), min_size=len(sizes), max_size=len(sizes)).map(tuple)
    lines = draw(st.lists(st.tuples(TEXT, bytes_), max_size=2, unique_by=lambda line: line[0]))
    return Outgrew(draw(TEXT), draw(TEXT), tuple(sizes), draw(bytes_), tuple(lines))


st.register_type_strategy(Outgrew, outgrew())
FACTS = st.one_of(*map(st.from_type, get_args(Fact)))
FINDINGS = st.builds(
    Finding,
    st.sampled_from(Kind),
    st.sampled_from(Verdict),
    st.sampled_from(Severity),
    FACTS,
    NUMBER,
    st.one_of(st.none(), DEVICES),
    *[st.one_of(st.none(), TEXT)] * 3,
    st.one_of(st.none(), st.sampled_from(Standing)),
    st.one_of(st.none(), TEXT),
    st.lists(st.from_type(Note), max_size=2).map(tuple),
)


def few(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=1).map(tuple)


TESTS = st.builds(
    TestRecord,
    TEXT,
    TEXT,
    st.integers(1, 9),
    few(WINDOWS),
    few(WINDOWS),
    few(FINDINGS),
    st.one_of(st.none(), st.floats(0, 1e9)),
    TEXTS,
)
LINE = st.integers(0, 9)
PLACES = st.tuples(LINE, LINE, st.one_of(st.none(), st.builds(SourceSpan, LINE, LINE, LINE, LINE)))
CHECKS = st.builds(
    lambda file, place, texts, *rest: Checked(
        rest[0], file, rest[1], place and CallSite(file, "f", *place, "assert_text", "expected", 0), rest[2], *texts
    ),
    TEXT,
    st.one_of(st.none(), PLACES),
    st.tuples(st.one_of(st.none(), TEXT, st.dictionaries(TEXT, TEXT, max_size=1)), st.one_of(st.none(), TEXT)),
    TEXT,
    *[st.one_of(st.none(), TEXT)] * 2,
)
FIXTURES = st.builds(FixtureRecord, TEXT, TEXT, TEXT, few(WINDOWS))
RUNS = st.builds(
    RunRecord,
    st.builds(Environment, TEXTS, st.one_of(st.none(), TEXT), st.one_of(st.none(), TEXT)),
    few(TESTS),
    few(FIXTURES),
    few(FINDINGS),
    TEXTS,
    st.dictionaries(TEXT, st.integers(0, 9), max_size=2),
    few(st.builds(LedgerEntry, DEVICES.map(str), TEXT, st.integers(0, 2**60), st.integers(0, 99))),
    few(CHECKS),
    st.builds(RunCoverage, TEXTS, TEXTS, TEXTS),
)


@given(RUNS)
def test_round_trip(run: RunRecord) -> None:
    assert run_from_json(json.loads(json.dumps(run_to_json(run)))) == run


@given(TESTS, FIXTURES)
def test_what_a_worker_sends_is_plain_and_complete(test: TestRecord, fixture: FixtureRecord) -> None:
    sent = json.loads(json.dumps(TEST.write(test), allow_nan=False))
    assert sent == TEST.write(test)  # lists and plain types only: nothing changed on the way
    assert TEST.read(sent, "") == test
    assert FIXTURE.read(json.loads(json.dumps(FIXTURE.write(fixture))), "") == fixture


# -- what is no report ------------------------------------------------------------------------------------


def broken(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The document with another value in one place; without the key where the value is ``KeyError``."""
    document = copy.deepcopy(DOCUMENT)
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), 2, "not a report of schema 1: schema 2, kind 'report'"),
        (("kind",), "snapshot", "not a report of schema 1: schema 1, kind 'snapshot'"),
        (("schema",), KeyError, "not a report of schema 1: schema None, kind 'report'"),
        (("tests",), KeyError, "tests is missing"),
        (("tests",), {}, "tests is an object, not a list"),
        (("environment",), [], "environment is a list, not an object"),
        (("environment", "devices"), [1], "environment.devices[0] is a whole number, not text"),
        (("environment", "torch"), True, "environment.torch is true or false, not text or null"),
        (("run",), None, "run is null, not an object"),
        (("run", "notes"), "x", "run.notes is text, not a list"),
        (("run", "unenforced"), {"a": "b"}, "run.unenforced.a is text, not a whole number"),
        (("run", "ledger", 0, "bytes"), None, "run.ledger[0].bytes is null, not a whole number"),
        (("run", "fixtures", 0, "scope"), KeyError, "run.fixtures[0].scope is missing"),
        (("tests", 0), "x", "tests[0] is text, not an object"),
        (("tests", 0, "curves"), {}, "tests[0].curves is no list"),
        (("tests", 0, "curves", 0, "by"), "x", "tests[0].curves[0].by is 'x', not one of line, category"),
        (("tests", 0, "curves", 0, "times"), [0], "tests[0].curves[0].times has 1 entries for 3 points"),
        (("tests", 0, "curves", 0, "peak"), 3, "tests[0].curves[0]: there is no point 3, there are 3"),
        (
            ("tests", 0, "curves", 0, "stretches", 0),
            ["call", -1, 2],
            "tests[0].curves[0]: there is no point -1, there are 3",
        ),
        (("tests", 0, "curves", 0, "bands", 0, "steps"), [1], "tests[0].curves[0].bands[0].steps is no list of pairs"),
        (
            ("tests", 0, "curves", 0, "bands", 0, "steps"),
            [1, 4, 1, 5],
            "tests[0].curves[0].bands: the points of 'a.py:1 in f' are not in order",
        ),
        (("tests", 0, "curves", 0, "live", 0, 2), 1, "tests[0].curves[0].live[0]: there is no stack 1, there are 1"),
        (
            ("tests", 0, "curves", 0, "live", 0),
            [1, 2],
            "tests[0].curves[0].live[0] is not [bytes, blocks, stack, origin]",
        ),
        (("tests", 0, "exhibits", 0, "text"), 1, "tests[0].exhibits[0].text is a whole number, not text"),
        (("stacks", 0), [2], "stacks[0]: there is no frame 2, there are 2"),
        (("frames", 0, 3), "mine", "frames[0][3] is 'mine', not one of project, library, generated"),
        (("tests", 0, "nodeid"), KeyError, "tests[0].nodeid is missing"),
        (("tests", 0, "budget_used"), "1", "tests[0].budget_used is text, not a whole number or a fraction or null"),
        (
            ("tests", 0, "windows", 0, "start"),
            1.5,
            "tests[0].windows[0].start is a fraction, not a whole number or null",
        ),
        (
            ("tests", 0, "windows", 0, "peak"),
            True,
            "tests[0].windows[0].peak is true or false, not a whole number or null",
        ),
        (
            ("tests", 0, "windows", 0, "complete"),
            1,
            "tests[0].windows[0].complete is a whole number, not true or false",
        ),
        (
            ("tests", 0, "windows", 0, "device"),
            "tpu:0",
            "tests[0].windows[0].device: device 'tpu:0' is not known: write cpu, cuda, cuda:N or host",
        ),
        (
            ("tests", 0, "measured", 0, "values"),
            {"speed": [1, 2]},
            (
                "tests[0].measured[0].values key is 'speed', not one of requested, peak, reserved, retained, "
                "allocations, segments, retries"
            ),
        ),
        (
            ("tests", 0, "measured", 0, "values", "requested"),
            [2, 1],
            "tests[0].measured[0].values.requested is not [lowest, highest]",
        ),
        (("tests", 0, "measured", 0, "top", 0), ["a"], "tests[0].measured[0].top[0] is not [name, bytes]"),
        (("tests", 0, "measured", 0, "asked"), 1, "tests[0].measured[0].asked is a whole number, not true or false"),
        (("tests", 0, "whole", 0, "name"), None, "tests[0].whole[0].name is null, not text"),
        (("run", "expected", 0, "actual"), KeyError, "run.expected[0].actual is missing"),
        (("run", "expected", 0, "expected"), {"cpu": 1}, "run.expected[0].expected.cpu is a whole number, not text"),
        (("run", "expected", 0, "call"), "x", "run.expected[0].call is text, not an object"),
        (("run", "expected", 0, "call", "position"), -1, "run.expected[0].call.position is -1, less than 0"),
        (
            ("run", "expected", 0, "call", "span"),
            [1, 2, 3],
            "run.expected[0].call.span is not [line, column, last line, last column]",
        ),
        (("tests", 0, "findings", 0, "kind"), "lek", "tests[0].findings[0].kind: 'lek' is not a valid Kind"),
        (("tests", 0, "findings", 0, "severity"), [], "tests[0].findings[0].severity is a list, not text"),
        (("tests", 0, "findings", 0, "bytes"), 2**63, "tests[0].findings[0].bytes is a number of more than 64 bits"),
        (("tests", 0, "windows", 0, "peak"), -(10**400), "tests[0].windows[0].peak is a number of more than 64 bits"),
        (("tests", 0, "findings", 0, "bytes"), "4", "tests[0].findings[0].bytes is text, not a whole number or null"),
    ],
)
def test_a_broken_document_has_one_clear_error(path: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        run_from_json(broken(path, value))
    assert str(caught.value) == message


def places(part: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = part.keys() if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
    return [place for key in keys for place in ((*path, key), *places(part[key], (*path, key)))]


ANYTHING = st.one_of(
    st.sampled_from([KeyError, None, True, -1, 2**70, 1.5, float("nan"), "", "cuda:0", [], [None], [[]], {}]),
    st.dictionaries(TEXT, st.none(), max_size=1),
)


@given(st.sampled_from(places(DOCUMENT)), ANYTHING)
def test_nothing_but_a_value_error_comes_of_a_broken_document(path: tuple[Any, ...], value: Any) -> None:
    try:
        run = run_from_json(broken(path, value))
    except ValueError:
        return
    assert all(map(str, (*run.tests, *run.checked)))  # what was accepted can be shown, and written again
    json.dumps(run_to_json(run))


@given(FINDINGS)
def test_every_fact_is_read_back_and_has_a_text(finding: Finding) -> None:
    data = json.loads(json.dumps(FINDING.write(finding)))
    assert (data["message"], data["details"]) == (title(finding), [*details(finding)])
    read = FINDING.read(data, "finding")
    assert read == finding
    assert (title(read), details(read)) == (title(finding), details(finding))


def test_an_unknown_fact_is_read_as_its_text() -> None:
    data = {"kind": "leak", "verdict": "reachable", "severity": "fail", "message": "m", "details": ["a"]}
    known = FINDING.read(data, "f")
    later = FINDING.read({**data, "fact": {"type": "shadow", "x": 1}, "remarks": [{"type": "later"}]}, "f")
    assert known == later == Finding(Kind.LEAK, Verdict.REACHABLE, Severity.FAIL, Reported("m", ("a",)))
    with pytest.raises(ValueError, match=r"^f\.fact\.shown\[0\]\.bytes is text, not a whole number$"):
        FINDING.read({**data, "fact": {"type": "retained", "shown": [{"bytes": "x"}], "count": 1}}, "f")


def test_every_fact_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z ]+)` \| [^|]* \|$", page, re.M)
    assert [word_of(fact) for fact in get_args(Fact)] == [row for row in rows if " " in row or row in ROWS]


#: Facts of one word.
ROWS = {"changed", "outgrew", "retained", "refused", "reported"}
