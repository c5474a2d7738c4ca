"""The terminal summary, to the letter, at 80 columns."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Reported
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.records import Environment, RunRecord, TestRecord, Unchecked, Unseen
from cudamem_testing.model.sizes import parse_size
from cudamem_testing.model.windows import Window
from cudamem_testing.report.terminal import folded, offered, ranked, summary_lines

KIB, MIB, GIB = 2**10, 2**20, 2**30
CARD, SECOND, CPU = Device("cuda", 0), Device("cuda", 1), Device("cpu")
H100 = "NVIDIA H100 80GB HBM3"


def measured(
    nodeid: str,
    *calls: tuple[Device, int | None, int | None, int | None, int | None],
    outcome: str = "passed",
    used: float | None = None,
    findings: tuple[Finding, ...] = (),
    complete: bool = True,
) -> TestRecord:
    """A test; each call is a device with peak, reserved growth, retained and the number of allocations."""
    windows, whole = [], []
    for device, peak, reserved, retained, allocations in calls:
        start, none = (None, None) if peak is None else (MIB, MIB + peak), (None, None)
        held = none if reserved is None else (0, reserved)
        numbers = {"start": start[0], "peak": start[1], "reserved_start": held[0], "reserved_peak": held[1]}
        windows.append(Window("setup", device, 0, GIB, 0))
        windows.append(Window("call", device, allocations=allocations, complete=complete, **numbers))
        whole.append(Window("test", device, retained=retained))
    return TestRecord(nodeid, outcome, 1, tuple(windows), tuple(whole), findings, used)


def finding(kind: Kind = Kind.BUDGET, verdict: Verdict = Verdict.OVER, severity: Severity = Severity.FAIL) -> Finding:
    return Finding(kind, verdict, severity, Reported("cudamem: ..."))


def summary(run: RunRecord, top: int = 10, width: int = 80, **options: Any) -> str:
    lines = [line.text for line in summary_lines(run, top=top, width=width, **options)]
    assert all(line == line.rstrip() for line in lines)
    return "\n".join(lines) + "\n"


def exactly(text: str) -> str:
    return dedent(text.removeprefix("\n"))


def test_one_card() -> None:
    run = RunRecord(
        Environment((f"cuda:0 ({H100})",), "2.11.0", "native"),
        (
            measured("tests/test_small.py::test_nothing", (CARD, 0, 0, 0, 0)),
            measured(
                "tests/models/test_decoder.py::TestDecoder::test_step[bf16-causal]",
                (CARD, 642148761, 640 * MIB, 0, 1480),
                outcome="failed",
                used=1.196,
                findings=(finding(),),
            ),
            measured("tests/test_cache.py::test_grows", (CARD, 12 * MIB, 20 * MIB, 12 * MIB, 3)),
            TestRecord("tests/test_text.py::test_no_torch", "passed"),
            measured("tests/test_free.py::test_frees", (CARD, 0, 0, -5 * KIB, 1), used=0.0),
        ),
        unenforced={"cpu is not measured here": 1},
        notes=("report written to report.json",),
    )
    assert summary(run) == exactly("""
        budget: 1 finding (over budget) in 1 test
             peak   reserved  retained  allocs  budget  test
        612.4 MiB  640.0 MiB       0 B    1480    120%  ...::test_step[bf16-causal]
         12.0 MiB   20.0 MiB  12.0 MiB       3       -  tests/test_cache.py::test_grows
              0 B        0 B       0 B       0       -  .../test_small.py::test_nothing
              0 B        0 B  -5.0 KiB       1      0%  tests/test_free.py::test_frees
        measured 4 tests on cuda:0 (NVIDIA H100 80GB HBM3); 1 test without torch
        NOT CHECKED: 1 budget: cpu is not measured here
        note: report written to report.json
        suggested budgets (current peak + 10 %):
          tests/test_cache.py::test_grows
            @pytest.mark.memory_budget(peak="14MiB")
        """)


def test_shares_of_tiny_limits_are_short() -> None:
    """A budget of 0, broken to see what is live, is not broken by 1678336800 %."""
    for used, text in ((9.994, " 999%"), (16_783_368.0, ">999%")):
        run = RunRecord(Environment(("cpu",)), (measured("a.py::test_a", (CPU, MIB, None, 0, 1), used=used),))
        assert f"{text}  a.py::test_a" in summary(run)


def test_what_is_retained_for_a_reason_is_one_line() -> None:
    def note(verdict: Verdict, size: int, severity: Severity = Severity.NOTE) -> Finding:
        return Finding(Kind.LEAK, verdict, severity, "cudamem: ...", size)

    tests = (
        measured("a.py::test_a", (CPU, 0, None, 512 * KIB, 1), findings=(note(Verdict.HARNESS, 512 * KIB),)),
        measured("a.py::test_b", (CPU, 0, None, MIB, 1), findings=(note(Verdict.FIXTURE, MIB),) * 2),
        measured("a.py::test_c", (CPU, 0, None, 0, 1), findings=(note(Verdict.TRACEBACK, MIB),)),
        measured("a.py::test_d", (CPU, 0, None, 0, 1), findings=(note(Verdict.FIXTURE, MIB, Severity.FAIL),)),
    )
    lines = summary(RunRecord(Environment(("cpu",)), tests), top=0).splitlines()
    assert lines[-1] == "retained, no leak: 512.0 KiB test harness in 1 test, 2.0 MiB fixture in 1 test"
    assert "no leak" not in summary(RunRecord(Environment(("cpu",)), tests[2:]))


def test_a_laptop_without_budgets_has_no_empty_columns() -> None:
    run = RunRecord(
        Environment(("cpu",), "2.13.0", "cpu"),
        (
            measured("tests/test_a.py::test_large", (CPU, 5 * GIB, None, 0, 1_234_567)),
            measured("tests/test_a.py::test_small", (CPU, 3, None, 0, 1)),
        ),
    )
    assert summary(run) == exactly("""
           peak  retained   allocs  test
        5.0 GiB       0 B  1234567  tests/test_a.py::test_large
            3 B       0 B        1  tests/test_a.py::test_small
        measured 2 tests on cpu
        suggested budgets (current peak + 10 %):
          tests/test_a.py::test_large
            @pytest.mark.memory_budget(peak="5633MiB")
          tests/test_a.py::test_small
            @pytest.mark.memory_budget(peak="1KiB")
        """)


def test_several_devices_have_rows_of_their_own() -> None:
    run = RunRecord(
        Environment((f"cuda:0 ({H100})", f"cuda:1 ({H100})", "cpu"), "2.11.0", "native"),
        (
            measured(
                "tests/test_parallel.py::test_all_reduce[gloo-2]",
                (CARD, 2 * MIB, 2 * MIB, 0, 4),
                (SECOND, 4 * MIB, 4 * MIB, 512, 5),
                (CPU, 10, None, 0, 6),
                used=0.5,
            ),
        ),
    )
    assert summary(run) == exactly("""
           peak  reserved  retained  allocs  budget  device  test
        4.0 MiB   4.0 MiB     512 B       5     50%  cuda:1  test_all_reduce[gloo-2]
        2.0 MiB   2.0 MiB       0 B       4       -  cuda:0  test_all_reduce[gloo-2]
           10 B         -       0 B       6       -  cpu     test_all_reduce[gloo-2]
        measured 1 test on cuda:0-1 (NVIDIA H100 80GB HBM3), cpu
        """)


def test_unknown_is_shown_as_such_and_ranked_last() -> None:
    run = RunRecord(
        Environment(("cuda:0", "cpu"), "2.11.0", "native"),
        (
            measured("a.py::test_late", (CARD, None, None, None, None), complete=False),
            measured("a.py::test_known", (CARD, 0, 0, 0, 0)),
        ),
    )
    assert summary(run) == exactly("""
        peak  reserved  retained  allocs  test
         0 B       0 B       0 B       0  a.py::test_known
           ?         ?         ?       ?  a.py::test_late
        measured 2 tests on cuda:0, cpu; 1 measured in part
        """)


def test_processes_of_which_nothing_is_known() -> None:
    def started(nodeid: str, *names: str) -> TestRecord:
        test = measured(nodeid, (CPU, 4, 0, 0, 1))
        unknown = ("the process still runs: what it took is not known",)
        windows = tuple(Window(f"{name}: call", CPU, complete=False, notes=unknown) for name in names)
        return test._replace(windows=(*test.windows, *windows))

    run = RunRecord(Environment(("cpu",)), (started("test_one", "Manager-1"), started("test_two", "a b", "c", "d")))
    assert summary(run, top=0) == exactly("""
        measured 2 tests on cpu; 2 measured in part
        measured in part: test_one: Manager-1: the process still runs: what it took is
          not known
        measured in part: test_two: a b: the process still runs: what it took is not
          known
        measured in part: test_two: c: the process still runs: what it took is not known
        ... 1 more
        """)


def test_pinned_memory_has_a_row_only_where_it_was_used() -> None:
    host = Device("host")
    run = RunRecord(
        Environment(("cuda:0", "host")),
        (
            measured("a.py::test_pins", (CARD, 4, 0, 0, 1), (host, 4096, 0, 0, 1), used=0.1),
            measured("a.py::test_plain", (CARD, 3, 0, 0, 1), (host, 4095, 0, 4095, 32), used=0.2),
        ),
    )
    assert summary(run) == exactly("""
           peak  reserved  retained  allocs  budget  device  test
        4.0 KiB       0 B       0 B       1     10%  host    a.py::test_pins
            4 B       0 B       0 B       1       -  cuda:0  a.py::test_pins
            3 B       0 B       0 B       1     20%  cuda:0  a.py::test_plain
        measured 2 tests on cuda:0, host
        """)


def test_only_the_top_is_shown() -> None:
    run = RunRecord(
        Environment(("cpu",)), tuple(measured(f"a.py::test_{size}", (CPU, size, None, 0, 1)) for size in (2, 9, 4, 7))
    )
    assert summary(run, top=2, offers=1) == exactly("""
        peak  retained  allocs  test
         9 B       0 B       1  a.py::test_9
         7 B       0 B       1  a.py::test_7
        ... 2 more (--cudamem-top=4 shows them)
        measured 4 tests on cpu
        suggested budgets (current peak + 10 %):
          a.py::test_9
            @pytest.mark.memory_budget(peak="1KiB")
        """)


def test_quiet_shows_findings_totals_and_notes_only() -> None:
    run = RunRecord(
        Environment(("cpu",)),
        (measured("a.py::test_b", (CPU, 9, None, 0, 1), findings=(finding(),), outcome="failed"),),
        notes=("a note",),
    )
    assert summary(run, top=0) == exactly("""
        budget: 1 finding (over budget) in 1 test
        measured 1 test on cpu
        note: a note
        """)


def test_findings_are_counted_by_kind_verdict_and_severity() -> None:
    under, warns = finding(verdict=Verdict.UNDER), finding(severity=Severity.WARN)
    remark = finding(severity=Severity.NOTE)
    run = RunRecord(
        tests=(
            TestRecord("a", findings=(finding(), finding(), under)),
            TestRecord("b", findings=(finding(), remark)),
            TestRecord("c", findings=(warns, remark)),
        ),
        findings=(finding(Kind.OTHER, Verdict.NOT_REPEATABLE), under),
    )
    assert summary(run) == exactly("""
        budget: 3 findings (over budget) in 2 tests
        budget: 2 findings (under lower bound) in 1 test and the run itself
        other: 1 finding (body is not repeatable) in the run itself
        budget: 1 finding (over budget, warning) in 1 test
        cudamem: ...
        cudamem: ...
        nothing was measured; 3 tests without torch
        """)


def test_what_fails_is_red_and_what_warns_is_yellow() -> None:
    leak = finding(Kind.LEAK, Verdict.REACHABLE)
    cycle = finding(Kind.CYCLE, Verdict.CYCLE, Severity.WARN)
    grew = finding(Kind.BASELINE)
    name = "test_a.py::test_leak[leak: 2 findings (b) in c]"
    run = RunRecord(
        tests=(measured(name, (CPU, MIB, None, 0, 1), findings=(leak, cycle, grew, grew)),),
        notes=("first\nsecond",),
        failures=("interrupted",),
        unchecked={Unchecked("baseline", "other threads"): 2},
        unseen=Unseen("--cudamem-prune", ("leak | a (cpu)",)),
    )
    found = {line.text: line.colour for line in summary_lines(run, top=1, width=90, offers=0)}
    assert {text: colour for text, colour in found.items() if colour} == {
        "failed: interrupted": "red",
        "baseline: 2 findings (above the baseline) in 1 test": "red",
        "leak: 1 finding (reachable) in 1 test": "red",
        "cycle: 1 finding (cycle, warning) in 1 test": "yellow",
        "NOT CHECKED: 2 baselines: other threads": "yellow",
        "note: first": "yellow",
        "note: 1 known cause was not seen (--cudamem-prune drops what is gone):": "yellow",
    }
    assert {"  second", "  leak | a (cpu)", "nothing was measured"} <= found.keys()
    assert any(text.endswith(name) for text in found)


def test_a_run_of_nothing() -> None:
    assert summary(RunRecord()) == "nothing was measured\n"


def test_eight_cards_take_one_line_and_long_notes_are_wrapped() -> None:
    cards = tuple(f"cuda:{index} ({H100})" for index in range(8))
    run = RunRecord(
        Environment((*cards, "cpu")),
        (measured("a.py::test_b", (CPU, 0, None, 0, 0)),),
        unenforced={"reserved is unknown on cuda:0: allocator cudaMallocAsync counts allocated and reserved bytes": 3},
        notes=(
            "no C++ compiler found (looked for c++, g++, clang++); install one, or set CXX to it\n  first\n  second",
        ),
    )
    assert summary(run, top=0) == exactly("""
        measured 1 test on cuda:0-7 (NVIDIA H100 80GB HBM3), cpu
        NOT CHECKED: 3 budgets: reserved is unknown on cuda:0: allocator cudaMallocAsync
          counts allocated and reserved bytes
        note: no C++ compiler found (looked for c++, g++, clang++); install one, or set
          CXX to it
            first
            second
        """)


def test_cards_of_different_names_are_listed_apart() -> None:
    run = RunRecord(Environment(("cuda:0 (H100)", "cuda:1 (H100)", "cuda:2 (T4)", "cuda:3", "cpu")))
    assert summary(run) == "measured 0 tests on cuda:0-1 (H100), cuda:2 (T4), cuda:3, cpu\n"


def test_offers_name_each_test_once_if_its_marker_would_pass() -> None:
    run = RunRecord(
        Environment(("cuda:0", "cpu")),
        (
            measured("a.py::test_p[1]", (CARD, 30 * MIB, 0, 0, 0), (CPU, 10, None, 0, 0)),
            measured("a.py::test_p[2]", (CARD, 50 * MIB, 0, 0, 0)),
            measured("a.py::test_failed", (CARD, 90 * MIB, 0, 0, 0), outcome="failed"),
            measured("a.py::test_marked", (CARD, 80 * MIB, 0, 0, 0), used=0.1),
            measured("a.py::test_nothing", (CARD, 0, 0, 0, 0)),
            measured("a.py::test_unknown", (CARD, None, 0, 0, 0)),
        ),
    )
    assert summary(run, top=1).endswith(
        exactly("""
        suggested budgets (current peak + 10 %):
          a.py::test_p
            @pytest.mark.memory_budget(peak="56MiB")
        """)
    )
    assert "to hold" not in summary(run, offers=0)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1, "1KiB"),
        (1000, "2KiB"),
        (10 * KIB, "12KiB"),
        (9 * MIB, "10138KiB"),
        (10 * MIB, "12MiB"),
        (100 * GIB, "111GiB"),
    ],
)
def test_what_is_offered(size: int, text: str) -> None:
    assert offered(size) == text


@given(st.integers(1, 2**45))
def test_what_is_offered_leaves_a_tenth_and_little_more(size: int) -> None:
    budget = parse_size(offered(size))
    assert size * 11 // 10 < budget <= size * 121 // 100 + 2 * KIB


IDS = st.text("abc/_[]:-é", min_size=1, max_size=120)
SIZE = st.one_of(st.none(), st.integers(0, 2**42))
CALL = st.tuples(st.sampled_from([CARD, SECOND, CPU]), SIZE, SIZE, SIZE, st.one_of(st.none(), st.integers(0, 10**8)))


@given(st.lists(st.tuples(IDS, CALL, st.one_of(st.none(), st.floats(0, 99))), min_size=1, max_size=12))
def test_the_table_is_aligned_and_fits_80_columns(tests: list[Any]) -> None:
    run = RunRecord(
        Environment(("cuda:0", "cuda:1", "cpu")), tuple(measured(name, call, used=used) for name, call, used in tests)
    )
    lines = [line.text for line in summary_lines(run, top=10, width=80, offers=0)]
    table = lines[: 1 + min(len(folded(ranked(run.tests))), 10)]
    start = table[0].index("test")
    assert all(len(line) <= 80 or not re.search("/|::", line[start + 12 :].partition("[")[0]) for line in lines)
    assert all(row[start - 2 : start] == "  " for row in table)
    for title in table[0][: start - 2].split():
        end = table[0].index(title) + len(title)
        if title != "device":
            assert all(row[end - 1] != " " and row[end : end + 2] == "  " for row in table)
