"""The page of two runs on a card: their reports are kept beside the other recordings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from cudamem_testing.model.records import RunRecord
from cudamem_testing.report.schema import run_from_json
from suites.report.pages import compare_text, data_of, run_text

FOLDER = Path(__file__).parents[2] / "fixtures" / "recordings"


def report(name: str) -> RunRecord:
    return run_from_json(json.loads(gzip.decompress((FOLDER / f"report_{name}.json.gz").read_bytes())))


@pytest.fixture(scope="module")
def after() -> RunRecord:
    return report("after")


def test_the_overview(after: RunRecord) -> None:
    data = data_of(run_text(after))
    assert data["verdict"] == "14 of 14 tests failed, 11 of them because of memory"
    assert data["environment"][:2] == [["cuda:0 (NVIDIA H200)"], "2.11.0"]
    assert data["devices"] == ["cuda:0", "host"]
    kinds = [one["k"] for one in data["findings"] if one["s"] != "note"]
    assert {kind: kinds.count(kind) for kind in kinds} == {"budget": 1, "baseline": 8, "leak": 1, "cycle": 1, "oom": 1}
    assert data["ledger"][0][1:] == ["tests/test_decoder.py::test_keys_are_kept", 48 * 2**20, 3]


def test_the_memory_of_a_training_step(after: RunRecord) -> None:
    test = after.test("test_training_step")
    (curve,) = test.curves
    assert curve.events == 2297
    assert curve.totals[curve.peak] == max(curve.totals) == test.window().peak
    assert [one.name for one in curve.stretches] == [
        *(
            "setup",
            "forward 0",
            "backward 0",
            "optimizer 0",
            "forward 1",
            "backward 1",
            "optimizer 1",
            "call",
            "teardown",
        )
    ]
    assert sum(part.bytes for part in curve.live) == curve.totals[curve.peak]
    largest = max((part for part in curve.live if part.stack is not None), key=lambda part: part.bytes)
    assert largest.stack is not None
    assert str(largest.stack.project_frame).startswith("model/attention.py:20 in forward")


def test_the_budget_that_broke(after: RunRecord) -> None:
    (curve,) = after.test("test_attention_of_a_long_sequence").curves
    at_peak = {band.label: band.sizes(len(curve.moments))[curve.peak] for band in curve.bands}
    assert at_peak["model/attention.py:19 in forward"] == at_peak["model/attention.py:20 in forward"] == 512 * 2**20


RECORDED = FOLDER / "report_graphs.json.gz"


@pytest.mark.skipif(
    not RECORDED.exists(), reason="not recorded: python -m fixtures.recordings.report fixtures/recordings graphs"
)
def test_a_captured_graph_with_its_operators_pool_and_replays() -> None:
    run = report("graphs")
    (test,) = run.tests
    shown = {one.title: one.text.splitlines() for one in test.exhibits}
    assert {*shown} == {"Operators", "Modules", "Captured graph"}
    graph = shown["Captured graph"]
    assert graph[0].startswith("graph of ")
    assert " in pool (" in graph[0]
    assert graph[1] == "3 replays"
    assert any("aten::addmm" in line and "kernel" in line for line in graph)
    assert any(line.strip().startswith("private pool (") and " reserved" in line for line in graph)
    assert any("float32[64, 512] on cuda:0" in line for line in graph)
    (data,) = data_of(run_text(run))["tests"]
    assert ["Captured graph", "\n".join(graph)] in data["exhibits"]


def test_both_pages_are_made(after: RunRecord) -> None:
    assert len(run_text(after)) < 300_000
    before = report("before")
    compared = data_of(compare_text(before, after))["compared"]
    assert compared["rows"][0][0] == "tests/test_decoder.py::test_training_step"
    assert len(compared["places"]) == 8
