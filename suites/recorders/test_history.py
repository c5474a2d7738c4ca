"""A snapshot imports nothing: torch would import its compiler to put frames into words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cudamem_testing import torch_api
from cudamem_testing.recorders import history
from suites import forked

FRAMES = """
import sys, torch
from torch.utils._traceback import CapturedTraceback
from cudamem_testing import torch_api
from cudamem_testing.recorders import history
torch_api.snapshot = lambda: CapturedTraceback.extract().summary()  # words as for the frames of a snapshot
before, lazy = set(sys.modules), set(torch._lazy_modules)
frames = history.snapshot()
print(frames[-1].name, len(set(sys.modules) - before), torch._lazy_modules == lazy)
torch_api.snapshot()
print("torch._inductor" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_a_snapshot_imports_nothing() -> None:
    done = subprocess.run([forked.python(), "-c", FRAMES], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout.splitlines(), done.returncode) == (["<lambda> 0 True", "True"], 0), done.stderr


@pytest.mark.parametrize(("lazy", "there"), [(None, False), (["_inductor"], False), ({"_inductor"}, True)])
def test_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch, lazy: object, there: bool) -> None:
    """Where torch has no such list, or where its compiler was imported."""
    monkeypatch.setitem(vars(torch), "_lazy_modules", lazy)
    if there:
        monkeypatch.setitem(vars(torch), "_inductor", sys)
    else:
        monkeypatch.delitem(vars(torch), "_inductor", raising=False)
    seen: list[object] = []

    def snapshot() -> torch_api.Stats:
        seen.append(vars(torch)["_lazy_modules"])
        return {}

    monkeypatch.setattr(torch_api, "snapshot", snapshot)
    assert (history.snapshot(), seen, vars(torch)["_lazy_modules"]) == ({}, [lazy], lazy)


# -- restarting it ----------------------------------------------------------------------------------------


class Stacks:
    """In the place of our reader of stacks."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def start(self) -> None:
        self.said.append("start")

    def stop(self) -> None:
        self.said.append("stop")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What reaches torch's binding; CUDA is initialised."""
    found: list[tuple[Any, ...]] = []
    bindings = SimpleNamespace(_cuda_record_memory_history=lambda *values, **named: found.append((*values, named)))
    monkeypatch.setattr(torch_api, "bindings", lambda: bindings)
    monkeypatch.setattr(torch_api, "cuda_initialized", lambda: True)
    monkeypatch.setattr(torch_api, "history_enabled", lambda: False)
    monkeypatch.setattr(torch_api, "observe_out_of_memory", lambda observer: True)
    monkeypatch.setattr(torch_api, "stop_history", lambda: bindings._cuda_record_memory_history(None))
    return found


def test_it_restarts_with_the_call_that_started_it(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def starter(entries: int) -> Callable[[], None]:
        def start() -> None:
            begun.append(entries)
            torch_api.bindings()._cuda_record_memory_history("all", entries, clear=True)

        return start

    monkeypatch.setattr(torch_api, "history_starter", starter)
    record = history.CudaHistory()
    for _ in range(3):
        record.start()
    record.close()
    assert begun == [history.MAX_ENTRIES]
    assert calls == 3 * [("all", history.MAX_ENTRIES, {"clear": True})] + [(None, {})]


def test_a_forked_process_does_not_restart_it(calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    forked = [False]
    monkeypatch.setattr(torch_api, "fork_check", lambda: lambda: forked[0])
    monkeypatch.setattr(torch_api, "when_cuda_starts", lambda action: calls.append(("waits",)))
    bindings = torch_api.bindings()
    monkeypatch.setattr(
        torch_api, "history_starter", lambda entries: lambda: bindings._cuda_record_memory_history("all")
    )
    record = history.CudaHistory()
    record.start()
    record.start()
    assert calls == 2 * [("all", {})]
    forked[0] = True
    monkeypatch.setattr(torch_api, "cuda_initialized", lambda: False)
    record.start()
    assert calls[2:] == [("waits",)]
    record.close()


def test_statistics_that_need_two_calls_follow_torch(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> None:
        torch_api.bindings()._cuda_record_memory_history(None)
        torch_api.bindings()._cuda_record_memory_history("all")

    monkeypatch.setattr(torch_api, "history_starter", lambda entries: start)
    record = history.CudaHistory()
    record.start()
    record.start()
    assert calls == 2 * [(None, {}), ("all", {})]
    record.close()


def test_stacks_are_read_while_the_history_is_ours(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bindings = torch_api.bindings()
    monkeypatch.setattr(
        torch_api, "history_starter", lambda entries: lambda: bindings._cuda_record_memory_history("all")
    )
    stacks = Stacks()
    record = history.CudaHistory(stacks=stacks)  # type: ignore[arg-type]
    record.start()
    assert stacks.said == ["start"]
    bindings._cuda_record_memory_history("all", stacks="all")  # the user's
    assert (stacks.said, record.users) == (["start", "stop"], True)
    record.start()
    record.stop()
    bindings._cuda_record_memory_history(None)
    record.start()
    record.stop()
    assert (stacks.said, record.users) == (["start", "stop", "stop", "start", "stop"], False)
    record.close()
