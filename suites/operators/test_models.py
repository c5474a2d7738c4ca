"""Twelve models, trained in seven ways: rows add up to what a separate observer sees, to the byte."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

from cudamem_testing import OperatorMemory
from cudamem_testing.recorders.native import NativeRecorder
from suites.operators.models import IMAGES, TASKS, train

WAYS = ("plain", "autocast", "checkpoint", "reentrant", "foreach", "fused", "channels_last")
slow = pytest.mark.slow
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@dataclass
class Seen:
    """What an observer saw, in bytes: at the start, the peak, at the end."""

    start: int = 0
    peak: int = 0
    end: int = 0


@contextmanager
def observed(device: str) -> Iterator[Seen]:
    """An observer that has nothing to do with the recording."""
    gc.collect()  # what waits for the collector since earlier tests would go at any moment inside
    seen = Seen()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        seen.start = torch.cuda.memory_allocated()
        yield seen
        seen.end, seen.peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        return
    native = NativeRecorder.load()
    was_installed = native.is_installed()
    native.install()
    try:
        with native.slot() as slot:
            seen.start = slot.read().allocated
            yield seen
            last = slot.read()
            seen.end, seen.peak = last.allocated, last.peak
    finally:
        if not was_installed:
            native.uninstall()


def quick(name: str, way: str) -> bool:
    """Each model once, and each way once."""
    return way == "plain" or name == ("residual" if way == "channels_last" else "mlp")


def cases() -> Iterator[object]:
    for name in TASKS:
        for way in WAYS:
            if way == "channels_last" and name not in IMAGES:
                continue
            if way == "reentrant" and name in ("recurrent", "bag", "gpt2", "llama", "vit"):
                continue  # inputs that are ids need no gradient, and outputs must be tensors
            yield pytest.param(name, way, marks=() if quick(name, way) else slow)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "way"), [*cases()])
def test_rows_add_up(name: str, way: str, device: str) -> None:
    torch.manual_seed(0)
    run: Callable[[], None] = train(TASKS[name]().to(device), way, device)
    with observed(device) as seen, OperatorMemory(device=device) as memory:
        run()
    (levels,) = memory.table.levels
    rows = memory.table.rows
    assert (levels.start, levels.peak, levels.end) == (seen.start, seen.peak, seen.end)
    assert sum(row.kept for row in rows) == seen.end - seen.start
    assert max(row.peak for row in rows) == seen.peak
    assert {row.phase.value for row in rows} == {"forward", "backward", "optimizer", "other"}
    level = seen.start
    for row in rows:
        assert row.before == level
        assert row.peak >= max(row.before, row.after)
        assert min(row.allocated, row.freed, row.allocations) >= 0
        level = row.after


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "name", ["mlp", "residual", "gpt2", *(pytest.param(name, marks=slow) for name in ("recurrent", "encoder", "vit"))]
)
def test_recording_takes_no_memory(name: str, device: str) -> None:
    """The same program has the same peak with and without it, but for a number that a mode is given as a tensor."""
    peaks = []
    for recorded in (False, True):
        torch.manual_seed(0)
        run = train(TASKS[name]().to(device), "plain", device)
        if device == "cuda":
            run()  # a library's workspaces stay
        with observed(device) as seen:
            if recorded:
                with OperatorMemory(device=device):
                    run()
            else:
                run()
        peaks.append(seen.peak - seen.start)
        del run
    assert peaks[1] - peaks[0] in (0, 8)
