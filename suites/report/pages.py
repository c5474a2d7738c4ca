"""Runs made by hand, for pages: every kind of finding, hostile names, thousands of tests."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

from cudamem_testing.model.baselines import Measured, PeakLine
from cudamem_testing.model.changes import TRACKED, Change, Spread
from cudamem_testing.model.checked import Checked
from cudamem_testing.model.curves import Band, Curve, Origin, Part, Stretch, steps_of
from cudamem_testing.model.devices import Device
from cudamem_testing.model.edges import Kind as Edge
from cudamem_testing.model.facts import (
    Allocation,
    Changed,
    ChangedPlace,
    CycleKept,
    KeptBy,
    OnRecord,
    OverLimit,
    Reported,
    Retained,
    RetainedBlock,
)
from cudamem_testing.model.findings import Finding, Kind, Severity, Standing, Verdict
from cudamem_testing.model.limits import Breach, Limit
from cudamem_testing.model.records import Environment, LedgerEntry, RunRecord, TestRecord, Unchecked
from cudamem_testing.model.references import Reach
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.model.windows import Window
from cudamem_testing.records.known import noted
from cudamem_testing.report.compare import compare_runs
from cudamem_testing.report.page import compare_page, run_page
from suites.made import path

MIB = 2**20
CARD = Device("cuda", 0)
LINE = Frame("project/attention.py", 88, "Attention.forward")
HOSTILE = (
    "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">\u202eabc&amp;"
)
LONG = "x" * 10_000


def window(name: str, start: int, peak: int, end: int, device: Device = CARD) -> Window:
    return Window(name, device, start, peak, end, start, peak, start, peak * 2, end - start, 40, 2, 0, 3)


def curve(points: int = 300, lines: int = 6, stacks: int = 40, peak: int = 64 * MIB) -> Curve:
    """Hills of some lines, above what was there before."""
    columns = [
        [
            int(peak / lines / 1.2 * max(0.0, math.sin(math.pi * (place / points) * (1 + line % 3))))
            for place in range(points)
        ]
        for line in range(lines)
    ]
    origins: list[Origin] = ["project"] * lines
    bands = [
        Band(f"project/attention.py:{88 + line} in Attention.forward", origin, steps_of(column))
        for line, (origin, column) in enumerate(zip(origins, columns, strict=True))
    ]
    bands.append(Band("(live before the test)", "before", ((0, 4 * MIB),)))
    totals = [sum(column) for column in zip(*columns, strict=True)]
    parts = tuple(
        Part(
            MIB * (stacks - place),
            place + 1,
            Stack(
                (
                    Frame("torch/nn/functional.py", 1800 + place, "linear", "library"),
                    Frame("project/attention.py", 88 + place % 7, "Attention.forward"),
                    Frame("project/model.py", 20 + place % 3, "Model.forward"),
                    Frame("test_a.py", 5, "test_it"),
                )
            ),
        )
        for place in range(stacks)
    )
    return Curve(
        CARD,
        "line",
        tuple(range(points)),
        tuple(range(0, 10 * points, 10)),
        tuple(bands),
        (Stretch("setup", 0, 3), Stretch("forward", 10, points // 2), Stretch("call", 3, points - 5)),
        totals.index(max(totals)),
        (*parts, Part(4 * MIB, 9, None, "(left by test_b.py::test_left)", "before")),
        points,
    )


def over_budget() -> Finding:
    call = window("call", 4 * MIB, 68 * MIB, 4 * MIB)
    breach = Breach(Limit("peak", 48 * MIB), 48 * MIB, 64 * MIB, call)
    return Finding(
        Kind.BUDGET, Verdict.OVER, Severity.FAIL, OverLimit(breach), 16 * MIB, CARD, cause="budget peak at most"
    )


def leak(name: str = "_CACHE", size: int = 12 * MIB) -> Finding:
    chain = path(
        "module project.cache",
        (Edge.GLOBAL, name, "dict"),
        (Edge.ITEM, "['layer0']", "list"),
        (Edge.ELEMENT, "[0]", "Tensor"),
    )
    block = RetainedBlock(size, "float32[3145728]", Allocation(LINE), Reach.REACHABLE, chain)
    return Finding(
        *(Kind.LEAK, Verdict.REACHABLE, Severity.FAIL, Retained((block,), 1), size, CARD, str(LINE), str(chain)),
        f"leak | reachable | {LINE.place} | {chain.stable}",
    )


def cycle() -> Finding:
    chain = ("Model.__dict__['head']", "Head.__dict__['owner']", "Block.__dict__['model']", "Model")
    fact = CycleKept(
        chain,
        ("w float32[1024, 1024]",),
        1,
        (KeptBy(str(LINE), ("w",)),),
        "project/model.py:20: self.head = Head(self)",
    )
    cause = "cycle | cycle | project.Model .head | project.Head .owner"
    return Finding(Kind.CYCLE, Verdict.CYCLE, Severity.FAIL, fact, 4 * MIB, CARD, str(LINE), cause=cause)


def regression() -> Finding:
    change = Change("requested", Spread.of(8 * MIB), Spread.of(14 * MIB), MIB // 10)
    places = (
        ChangedPlace("project/attention.py::Attention.forward", LINE, (88, 90), 4 * MIB, 9 * MIB),
        ChangedPlace("project/mlp.py::Mlp.forward", LINE, (7,), None, 3 * MIB, MIB),
    )
    return Finding(Kind.BASELINE, Verdict.OVER, Severity.FAIL, Changed(change, places), 6 * MIB, CARD)


def record(
    name: str,
    outcome: str,
    *findings: Finding,
    curves: tuple[Curve, ...] = (),
    peak: int = 8 * MIB,
    recorded: Spread | None = None,
) -> TestRecord:
    """A test with its baseline: that of what it took, unless ``recorded`` is something else."""
    windows = (window("setup", 0, 0, 0), window("call", 0, peak, MIB), window("teardown", MIB, MIB, 0))
    there = {"requested": Spread.of(peak)} if recorded is None else {"requested": recorded}
    measured = Measured(
        *(CARD, "NVIDIA H100 (9.0), torch 2.13, native", {"requested": Spread.of(peak)}),
        *((PeakLine("project/a.py::f", peak),), ("requested",), True, "", there),
    )
    used = 1.33 if findings and findings[0].kind is Kind.BUDGET else None
    return TestRecord(
        name, outcome, 1, windows, (window("test", 0, peak, 0),), findings, used, (), (measured,), (), curves
    )


def everything() -> RunRecord:
    """A run with one test of each kind, and hostile names."""
    hostile = Finding(
        Kind.OTHER,
        Verdict.NOT_REPEATABLE,
        Severity.WARN,
        Reported(f"cudamem: {HOSTILE}", (HOSTILE, LONG)),
        5,
        CARD,
        cause=HOSTILE,
    )
    band = Band(HOSTILE, "project", ((0, 5), (2, 9)))
    strange = Curve(
        CARD,
        "line",
        (0, 1, 2),
        None,
        (band,),
        (Stretch(HOSTILE, 0, 2),),
        2,
        (Part(9, 1, None, HOSTILE, "before"),),
        3,
        (HOSTILE,),
    )
    known = replace(noted(leak("_KNOWN"), OnRecord("known.jsonl", 3, "later")), standing=Standing.KNOWN)
    tests = (
        record("test_a.py::test_over", "failed", over_budget(), curves=(curve(),), peak=64 * MIB),
        record("test_a.py::test_leak", "error", leak(), curves=(curve(40),)),
        record("test_a.py::test_leak_too", "error", leak(size=3 * MIB)),
        record("test_a.py::test_cycle", "error", cycle()),
        record(
            "test_a.py::test_baseline",
            "failed",
            regression(),
            curves=(curve(120),),
            peak=14 * MIB,
            recorded=Spread.of(8 * MIB),
        ),
        record(f"test_a.py::test_hostile[{HOSTILE}]", "failed", hostile, leak(HOSTILE), curves=(strange,)),
        record(f"test_a.py::test_long[{LONG}]", "passed"),
        record("test_a.py::test_text", "failed"),
        record("test_a.py::test_known", "passed", known),
        record("test_b.py::test_passes[0]", "passed", peak=0),
        record("test_b.py::test_passes[1]", "passed", peak=MIB, recorded=Spread(0, 0)),
        record("test_b.py::test_passes[2]", "passed", peak=2 * MIB, recorded=Spread(3 * MIB, 4 * MIB)),
        record("test_b.py::test_passes[3]", "passed", peak=3 * MIB, recorded=Spread(2 * MIB, 4 * MIB)),
        *(record(f"test_b.py::test_passes[{number}]", "passed", peak=number * MIB) for number in range(4, 30)),
        TestRecord("test_b.py::test_unmeasured", "passed", notes=("not measured: see the notes of the run",)),
    )
    return RunRecord(
        Environment(("cuda:0 (NVIDIA H100)",), "2.13.0", "native"),
        tests,
        (),
        (),
        ("a note of the run", HOSTILE),
        {"cuda:1 is not measured here": 2},
        (LedgerEntry("cuda:0", "test_a.py::test_leak", 12 * MIB, 1), LedgerEntry("cuda:0", HOSTILE, MIB, 2)),
        (Checked("test_a.py::test_text", "test_a.py", None, None, "cuda", {"cuda": "a\nb\nc"}, f"a\nB\nc\n{HOSTILE}"),),
        failures=("interrupted: KeyboardInterrupt",),
        unchecked={Unchecked("baseline", "recorded with torch 2.11, this run has torch 2.13"): 3},
        flags=("--cudamem", "--cudamem-leaks=fail"),
    )


def run_text(run: RunRecord) -> str:
    """The page of a run in one piece."""
    return "".join(run_page(run))


def compare_text(before: RunRecord, after: RunRecord) -> str:
    """The page of two runs in one piece."""
    return "".join(compare_page(before, after, compare_runs(before, after, dict.fromkeys(TRACKED))))


def data_of(text: str) -> dict[str, Any]:
    """What the scripts of a page read."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    data: dict[str, Any] = json.loads(found)
    return data
