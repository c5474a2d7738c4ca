"""Calls for CUDA: there in this version, and missed with an answer where a build has none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cudamem_testing import torch_api


def test_before_cuda_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)

    def initialise() -> int:
        raise AssertionError("this initialises CUDA")

    monkeypatch.setattr(torch.cuda, "current_device", initialise)
    assert not torch_api.cuda_initialized()


@pytest.mark.parametrize(
    ("built", "answer", "backend"),
    [
        (False, "native", "cpu"),
        (True, "native", "native"),
        (True, "cudaMallocAsync", "cudaMallocAsync"),
        (True, RuntimeError, "pluggable"),
        (True, AttributeError, "pluggable"),
    ],
)
def test_the_allocators_backend(
    monkeypatch: pytest.MonkeyPatch, built: bool, answer: str | type[Exception], backend: str
) -> None:
    def ask() -> str:
        if isinstance(answer, str):
            return answer
        raise answer("no name")

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", ask)
    assert torch_api.allocator_backend() == backend


def test_the_fraction_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = SimpleNamespace()
    monkeypatch.setattr(torch_api.cuda, "bindings", lambda: bindings)
    assert torch_api.memory_fraction(0) == 1.0
    bindings._cuda_getMemoryFraction = lambda index: 0.25 * (index + 1)
    assert torch_api.memory_fraction(1) == 0.5
    asked: list[tuple[float, int]] = []
    bindings._cuda_setMemoryFraction = lambda fraction, index: asked.append((fraction, index))
    torch_api.set_memory_fraction(3, 0.125)
    assert asked == [(0.125, 3)]


@pytest.mark.gpu
def test_every_function_for_cuda_is_in_this_torch() -> None:
    names = [
        "_cuda_memoryStats",
        "_cuda_resetPeakMemoryStats",
        "_cuda_resetAccumulatedMemoryStats",
        "_cuda_setMemoryFraction",
    ]
    assert [name for name in names if torch_api.cuda_function(name) is None] == []
    torch.ones(1, device="cuda")
    assert torch_api.total_memory(0) == torch.cuda.mem_get_info(0)[1]
    assert torch_api.cuda_device_count() == torch.cuda.device_count()
    assert torch_api.allocator_backend() == torch.cuda.get_allocator_backend()
    assert 0 < torch_api.memory_fraction(0) <= 1


KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("blas", "light", "sizes"),
    [
        (None, None, {32 * MIB, 8320 * KIB, MIB}),  # of whichever card
        (":4096:2:16:8", None, {8320 * KIB, MIB, 32 * MIB}),
        (":16:8", "0", {128 * KIB}),
        (":0:0", "512", {512 * KIB}),
        ("nonsense", "more", {32 * MIB, 8320 * KIB, MIB}),
    ],
)
def test_sizes_of_workspaces(
    monkeypatch: pytest.MonkeyPatch, blas: str | None, light: str | None, sizes: set[int]
) -> None:
    for name, value in (("CUBLAS_WORKSPACE_CONFIG", blas), ("CUBLASLT_WORKSPACE_SIZE", light)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert torch_api.workspace_sizes() == sizes


def test_the_history_restarts_even_if_torch_cannot_clear_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.7 keeps the events of before when it is started again."""
    events: list[str] = []

    def record(enabled: str | None = "all", context: str = "all", stacks: str = "all", max_entries: int = 0) -> None:
        if enabled is None:
            events.clear()
        events.append(f"{enabled} {context} {stacks} {max_entries}")

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    start = torch_api.history_starter(7)
    for _ in range(2):
        events.append("an allocation")
        start()
        assert events == ["None all all 0", "all alloc python 7"]


def test_the_history_is_cleared_in_one_call_where_torch_can(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, object]] = []

    def record(enabled: str | None = "all", context: str = "all", clear_history: bool = False) -> None:
        calls.append({"enabled": enabled, "context": context, "clear_history": clear_history})

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    torch_api.history_starter(7)()
    assert calls == [{"enabled": "all", "context": "alloc", "clear_history": True}]


@pytest.mark.gpu
def test_a_restarted_history_holds_no_events_of_before() -> None:
    start = torch_api.history_starter(100)
    try:
        start()
        kept = torch.empty(1000, device="cuda")
        assert torch_api.snapshot()["device_traces"][0]
        start()
        assert [entry["action"] for entry in torch_api.snapshot()["device_traces"][0]] in ([], ["snapshot"])
        del kept
    finally:
        torch_api.stop_history()
