"""The pool check: a test with captures reports the pools that it left; other tests are not checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Retained
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.recorders.capture import CudaCapture
from cudamem_testing.run import pools
from cudamem_testing.run.evidence import Evidence
from cudamem_testing.run.pools import PoolCheck
from cudamem_testing.windows.tracker import Tracker
from cudamem_testing.wording.findings import details, text
from cudamem_testing.wording.memory import POOL_HINT
from suites.plugin.inner import run_inner
from suites.windows.fake import FakeRecorder

MIB = 2**20


class Card(FakeRecorder):
    """A card with the given pools: (number, MiB reserved, whether a block lives)."""

    has_pools = True

    def __init__(self) -> None:
        super().__init__("cuda:0")
        self.pools: list[tuple[int, int, bool]] = []
        self.asked = 0

    def capture(self) -> CudaCapture:  # type: ignore[override]
        self.asked += 1
        return CudaCapture(Device("cuda", 0), {"segments": [*map(self._segment, self.pools)], "device_traces": [[]]})

    def _segment(self, pool: tuple[int, int, bool]) -> dict[str, Any]:
        number, size, live = pool
        state = "active_allocated" if live else "inactive"
        block = {
            "address": number * 2**30,
            "size": size * MIB,
            "requested_size": size * MIB,
            "state": state,
            "frames": [],
        }
        return {
            "device": 0,
            "address": number * 2**30,
            "total_size": size * MIB,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (number, 0),
            "blocks": [block],
        }


class Graph:
    """Stands for torch's."""

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        self.begun = args, kwargs

    def capture_end(self) -> None: ...


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Card, PoolCheck]]:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(pools, "collect_garbage", lambda: None)
    recorder, tracker = Card(), Tracker()
    tracker.attach([recorder])
    check = PoolCheck(tracker, Evidence(tracker, Path(), {}, recorded=True))
    yield recorder, check
    check.close()
    assert Graph.capture_begin.__qualname__ == "Graph.capture_begin"


def test_a_pool_that_a_failed_capture_left(card: tuple[Card, PoolCheck]) -> None:
    recorder, check = card
    graph = Graph()
    graph.capture_begin((1, 2), capture_error_mode="relaxed")
    assert graph.begun == (((1, 2),), {"capture_error_mode": "relaxed"})
    recorder.pools = [(0, 20, False), (3, 2, False), (4, 2, True)]
    (finding,) = check.judge("test_a.py::test_decode[4]")
    assert text(finding) == (
        "cudamem: private pool (3, 0) of a CUDA graph keeps 2.0 MiB without a live block (cuda:0)\n"
        "   a capture of test_a.py::test_decode[4] failed, or its graph's tensors were freed; "
        "nothing else can use this memory\n"
        "   hint: reset or delete the graph after a failed capture; graph_capture does this, and says what failed"
    )
    assert (finding.kind.value, finding.verdict.value, finding.severity.value) == ("pool", "unattributed", "warn")
    assert (finding.bytes, finding.cause) == (2 * MIB, "pool | unattributed | test_a.py::test_decode")


def test_the_pool_of_compiled_graphs_is_the_compilers(
    card: tuple[Card, PoolCheck], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, check = card
    monkeypatch.setattr(torch_api, "compiler_pools", lambda: {(3, 0)})
    recorder.pools = [(3, 2, False), (4, 6, False)]
    Graph().capture_begin()
    compiled, orphan = check.judge("test_a.py::test_it")
    assert text(compiled) == (
        "cudamem: the pool of torch.compile's CUDA graphs keeps 2.0 MiB without a live block (cuda:0)\n"
        "   torch.compiler.reset() frees it"
    )
    assert (compiled.verdict.value, compiled.severity.value) == ("compiler cache", "note")
    assert (orphan.verdict.value, orphan.bytes) == ("unattributed", 6 * MIB)


def test_only_the_test_that_made_it_reports_it(card: tuple[Card, PoolCheck]) -> None:
    recorder, check = card
    recorder.pools = [(3, 2, False)]
    Graph().capture_begin()
    assert len(check.judge("test_a.py::test_one")) == 1
    Graph().capture_begin()
    assert check.judge("test_a.py::test_two") == []
    recorder.pools.append((5, 2, False))
    Graph().capture_begin()
    assert [finding.bytes for finding in check.judge("test_a.py::test_three")] == [2 * MIB]


def test_a_test_without_a_capture_is_not_looked_at(card: tuple[Card, PoolCheck]) -> None:
    recorder, check = card
    recorder.pools = [(3, 2, False)]
    assert check.judge("test_a.py::test_one") == []
    assert recorder.asked == 0


def test_a_capture_that_a_test_left_open_is_not_collected_in(
    card: tuple[Card, PoolCheck], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, check = card
    recorder.pools = [(3, 2, False)]
    collected: list[bool] = []
    open_captures = [True]
    monkeypatch.setattr(torch_api, "capturing", lambda: bool(open_captures))
    monkeypatch.setattr(pools, "collect_garbage", lambda: collected.append(bool(open_captures)))
    Graph().capture_begin()
    assert check.judge("test_a.py::test_begins") == []
    assert (recorder.asked, collected) == (0, [])
    open_captures.clear()
    assert len(check.judge("test_a.py::test_ends")) == 1
    assert collected == [False]


def test_a_device_without_pools_is_not_asked(card: tuple[Card, PoolCheck]) -> None:
    recorder, check = card
    recorder.has_pools = False
    recorder.pools = [(3, 2, False)]
    Graph().capture_begin()
    assert check.judge("test_a.py::test_one") == []
    assert recorder.asked == 0


def test_in_a_run(pytester: pytest.Pytester) -> None:
    """Without a card there are no pools; torch has its method back afterwards."""
    before = vars(torch.cuda.CUDAGraph)["capture_begin"]
    inner = run_inner(
        pytester,
        """
        import torch

        def test_captured(monkeypatch):
            assert torch.cuda.CUDAGraph.capture_begin.__qualname__.startswith("Captures.")
        """,
        "--cudamem",
    )
    assert inner.last == "1 passed"
    assert vars(torch.cuda.CUDAGraph)["capture_begin"] is before


def test_what_the_graph_keeps_is_freed_with_it(card: tuple[Card, PoolCheck]) -> None:
    recorder, check = card

    def leak(graph_state: bool, device: str = "cuda:0") -> Finding:
        fact = Retained((), 1, graph_state=graph_state)
        return Finding(Kind.LEAK, Verdict.HELD_BY_CPP, Severity.FAIL, fact, 1024, Device.parse(device))

    leaks = [leak(True), leak(False), leak(True, "cuda:1")]
    assert check.judge("test_a.py::test", leaks) == leaks, "nothing was captured"
    Graph().capture_begin()
    assert check.judge("test_a.py::test", leaks) == leaks, "no pool was left"
    recorder.pools = [(3, 2, False)]
    Graph().capture_begin()
    *rest, pool = check.judge("test_a.py::test", leaks)
    assert rest == leaks[1:]
    assert details(pool) == (
        "   a capture of test_a.py::test failed, or its graph's tensors were freed; nothing else can use this memory",
        "   also 1.0 KiB held by random-number state of a live CUDA graph",
        f"   hint: {POOL_HINT}",
    )
