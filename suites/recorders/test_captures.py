"""Captures are noticed on every stream and in every thread, and the driver is asked about those alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from cudamem_testing import guards, torch_api
from cudamem_testing.recorders.captures import Captures


class Driver:
    """Stands for CUDA: the streams that capture, and the one on which each thread works."""

    def __init__(self) -> None:
        self.capturing: set[str] = set()
        self.asked: list[str] = []
        self._local = threading.local()
        self.error = ""

    @property
    def current(self) -> str:
        return str(getattr(self._local, "stream", "default"))

    @contextmanager
    def on(self, stream: str | None) -> Iterator[None]:
        before = self.current
        self._local.stream = before if stream is None else stream
        try:
            yield
        finally:
            self._local.stream = before

    def is_capturing(self) -> bool:
        self.asked.append(self.current)
        if self.error and self.current == "default":
            raise RuntimeError(self.error)
        return self.current in self.capturing


class Graph:
    """Takes the place of torch's. A failed capture raises when it ends."""

    driver: Driver
    fails = False

    def capture_begin(self, pool: object = None, *, capture_error_mode: str = "global") -> None:
        self.driver.capturing.add(self.driver.current)
        self.begun = pool, capture_error_mode

    def capture_end(self) -> None:
        self.driver.capturing.discard(self.driver.current)
        if self.fails:
            raise RuntimeError("operation failed due to a previous error during capture")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Graph.driver = Driver()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: made.current)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: "default")
    monkeypatch.setattr(torch.cuda, "stream", made.on)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", made.is_capturing)
    return made


@pytest.fixture
def captures(driver: Driver) -> Iterator[Captures]:
    found = Captures()
    yield found
    found.close()
    assert Graph.capture_begin.__qualname__ == "Graph.capture_begin"
    assert Graph.capture_end.__qualname__ == "Graph.capture_end"


def test_a_capture_on_a_side_stream(driver: Driver, captures: Captures) -> None:
    graph = Graph()
    assert not captures.begun
    with driver.on("side"):
        graph.capture_begin((1, 2), capture_error_mode="relaxed")
    assert graph.begun == ((1, 2), "relaxed")
    assert (captures.begun, torch_api.capturing(), driver.current) == (True, True, "default")
    with driver.on("side"):
        graph.capture_end()
    driver.asked.clear()
    assert not torch_api.capturing()
    assert driver.asked == ["default", "default"], "a stream that ended its capture may be gone"


def test_a_capture_in_another_thread(driver: Driver, captures: Captures) -> None:
    begun, end = threading.Event(), threading.Event()

    def capture() -> None:
        graph = Graph()
        with driver.on("of the thread"):
            graph.capture_begin()
            begun.set()
            end.wait(10)
            graph.capture_end()

    thread = threading.Thread(target=capture)
    thread.start()
    assert begun.wait(10)
    assert torch_api.capturing()
    end.set()
    thread.join()
    assert not torch_api.capturing()


def test_a_capture_that_failed_is_over(driver: Driver, captures: Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "fails", True)
    graph = Graph()
    with driver.on("side"):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="previous error during capture"):
            graph.capture_end()
    driver.asked.clear()
    assert not torch_api.capturing()
    assert driver.asked == ["default", "default"]


def test_what_the_driver_says_counts(driver: Driver, captures: Captures) -> None:
    """Somebody ended a capture without torch, or began one where it is not noticed."""
    with driver.on("side"):
        Graph().capture_begin()
    driver.capturing.clear()
    assert not torch_api.capturing()
    driver.capturing.add("own")
    assert not torch_api.capturing(), "started by C++ on an unused stream"
    with driver.on("own"):
        assert torch_api.capturing()


@pytest.mark.parametrize(
    ("error", "found"),
    [
        ("CUDA error: operation would make the legacy stream depend on a capturing blocking stream", True),
        ("CUDA error: device-side assert triggered", False),
    ],
)
def test_a_default_stream_that_does_not_answer(driver: Driver, captures: Captures, error: str, found: bool) -> None:
    driver.error = error
    assert torch_api.capturing() is found
    with driver.on("side"):
        assert torch_api.capturing() is found, "the current stream is another one"


def test_nested_sessions_know_each_others_captures(driver: Driver, captures: Captures) -> None:
    with driver.on("outer"):
        Graph().capture_begin()
    captures.begun = False
    inner = Captures()
    assert torch_api.capturing()
    with driver.on("outer"):
        Graph().capture_end()
    with driver.on("inner"):
        Graph().capture_begin()
    assert (captures.begun, inner.begun) == (True, True)
    inner.close()
    assert torch_api.capturing()
    with driver.on("inner"):
        Graph().capture_end()
    assert not torch_api.capturing()


@pytest.mark.usefixtures("captures")
def test_nothing_is_touched_meanwhile(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("synchronize", "empty_cache", "ipc_collect"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: done.append(name))
    bindings = {"_cuda_clearCublasWorkspaces": lambda: done.append("workspaces")}
    monkeypatch.setattr(torch_api.cuda, "cuda_function", bindings.get)
    monkeypatch.setattr(guards.Original, "collect", lambda generation: done.append("garbage"))
    monkeypatch.setattr(guards, "MOST_WAITED", 0.0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (1, 4))

    def touch() -> list[str]:
        done.clear()
        torch_api.synchronize(0)
        torch_api.empty_cache()
        torch_api.clear_workspaces()
        assert torch_api.memory_in_use(0) == (None if driver.capturing else 3)
        assert not guards.collect_garbage()
        with pytest.raises(RuntimeError, match="no garbage was collected: a stream captures a CUDA graph"):
            guards.collect_garbage(needed=True)
        return done

    with driver.on("side"):
        Graph().capture_begin()
    assert touch() == []
    with driver.on("side"):
        Graph().capture_end()
    assert touch() == ["synchronize", "empty_cache", "workspaces", "ipc_collect", "garbage", "garbage"]


def test_before_cuda_is_initialised(driver: Driver, captures: Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a capture then fails in torch, and nowhere else."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: pytest.fail("this initialises CUDA"))
    Graph().capture_begin()
    assert not torch_api.capturing()
    Graph().capture_end()
    assert driver.asked == []


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("in_thread", [False, True])
def test_captures_on_a_card(mode: str, in_thread: bool) -> None:
    """Asking harms no capture: what it recorded is replayed."""
    captures = Captures()
    begun, end, errors = threading.Event(), threading.Event(), []
    x = torch.zeros(8, device="cuda")
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()

    def capture() -> None:
        try:
            with torch.cuda.stream(side):
                graph.capture_begin(capture_error_mode=mode)
                try:
                    x.add_(1)
                    begun.set()
                    end.wait(60)
                    x.add_(1)
                finally:
                    graph.capture_end()
        except Exception as error:
            errors.append(error)
        finally:
            begun.set()

    try:
        assert not torch_api.capturing()
        if in_thread:
            thread = threading.Thread(target=capture)
            thread.start()
            assert begun.wait(60)
        else:
            with torch.cuda.stream(side):
                graph.capture_begin(capture_error_mode=mode)
                x.add_(2)
        before = torch.cuda.current_stream()
        assert torch_api.capturing()
        assert torch.cuda.current_stream() == before
        torch_api.synchronize(0)
        torch_api.empty_cache()
        torch_api.clear_workspaces()
        assert not guards.collect_garbage()
        if in_thread:
            end.set()
            thread.join()
        else:
            with torch.cuda.stream(side):
                graph.capture_end()
        assert errors == []
        assert not torch_api.capturing()
        graph.replay()
        assert x.tolist() == [2.0] * 8
        assert guards.collect_garbage()
    finally:
        end.set()
        captures.close()


@pytest.mark.gpu
def test_a_capture_of_another_library_on_a_card() -> None:
    """One that torch does not begin, on a stream that the default stream waits for."""
    runtime: Any = pytest.importorskip("cuda.bindings.runtime")
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    _, stream = runtime.cudaStreamCreate()
    runtime.cudaStreamBeginCapture(stream, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeGlobal)
    try:
        assert torch_api.capturing()
    finally:
        error, graph = runtime.cudaStreamEndCapture(stream)
    assert error == runtime.cudaError_t.cudaSuccess, "asking has not ended it"
    runtime.cudaGraphDestroy(graph)
    runtime.cudaStreamDestroy(stream)
    assert not torch_api.capturing()
