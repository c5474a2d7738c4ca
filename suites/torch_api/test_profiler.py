"""The profiler of this torch, and one without its older sibling."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Sequence

import pytest
import torch

from cudamem_testing.torch_api.profiler import (
    disable_profiler,
    event_tree,
    event_types,
    finished_results,
    let_callers_go,
    memory_profiler_config,
    new_profiler,
    older_profiler_is_running,
    older_profiler_stays,
    profiler_is_running,
    profiler_keeps_callers,
    profiler_modules,
)
from cudamem_testing.torch_api.tensors import StoredMemory


def test_the_profiler_of_this_torch_can_be_used() -> None:
    assert profiler_modules() == (torch.autograd.profiler, sys.modules["torch.autograd.profiler_legacy"])


def test_a_torch_without_the_older_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.autograd.profiler_legacy._enable_profiler_legacy")
    assert profiler_modules() is None


def test_the_classes_of_events_are_those_of_a_profile() -> None:
    types = event_types()
    assert not profiler_is_running()
    profiler = new_profiler()
    assert finished_results(profiler) is None
    with profiler:
        assert profiler_is_running()
        torch.ones(2).add_(1)
    pending = [*event_tree(finished_results(profiler))]
    seen = set()
    while pending:
        event = pending.pop()
        seen.add(type(event.extra_fields))
        pending += event.children
    assert {types.operator, types.allocation, types.python_call, types.builtin_call} <= seen


def test_a_profiler_that_was_left_running_is_stopped() -> None:
    disable_profiler()  # nothing runs: nothing happens
    profiler = new_profiler()
    profiler.__enter__()
    disable_profiler()
    assert not torch._C._autograd._profiler_enabled()
    assert not profiler_is_running()


def test_the_older_profiler_is_recognised_and_left_alone() -> None:
    modules = profiler_modules()
    assert modules is not None
    older = modules[1]
    assert not older_profiler_is_running()
    older._enable_profiler_legacy(memory_profiler_config())
    try:
        assert older_profiler_is_running()
        assert not profiler_is_running()
        disable_profiler()
        assert older_profiler_is_running()
        assert older_profiler_stays()
        assert older_profiler_is_running()
    finally:
        older._disable_profiler_legacy()
    assert not older_profiler_stays()


def test_the_profiler_releases_what_it_recorded() -> None:
    profiler = new_profiler()
    tensor = torch.ones(4)
    memory = StoredMemory(tensor)
    with profiler:
        torch.func.vmap(torch.sin)(tensor)
    del tensor
    assert not memory.gone  # the result holds it
    gc.disable()
    try:
        del profiler
        assert memory.gone
    finally:
        gc.enable()


class Nested(torch.nn.Module):
    """Calls itself."""

    def forward(self, depth: int) -> torch.Tensor:
        return torch.ones(1) if depth == 0 else self(depth - 1)


class Broken(torch.nn.Module):
    """Cannot be called."""

    def forward(self) -> None:
        raise ValueError


def references(objects: Sequence[object]) -> list[int]:
    return [sys.getrefcount(one) for one in objects]


def test_no_module_or_optimizer_is_kept_for_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the profiler keeps none the test takes the references instead, one for each call that it knows of."""
    layer, nested, broken = torch.nn.Linear(1, 1), Nested(), Broken()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    objects = (layer, nested, broken, optimizer)
    keeps = profiler_keeps_callers()
    before = references(objects)
    with new_profiler() as profiler:
        layer(nested(200)).sum().backward()
        thread = threading.Thread(target=layer, args=(torch.ones(1),))
        thread.start()
        thread.join()
        with pytest.raises(ValueError):
            broken()
        optimizer.step()
    roots = event_tree(finished_results(profiler))
    calls = [1, 201, 1, 1]  # those in threads that started later are not recorded
    if not keeps:
        monkeypatch.setattr("cudamem_testing.torch_api.profiler.profiler_keeps_callers", lambda: True)
        take = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_IncRef", ctypes.pythonapi))
        for one, number in zip(objects, calls, strict=True):
            for _ in range(number):
                take(id(one))
        del one
    assert [new - old for new, old in zip(references(objects), before, strict=True)] == calls
    let_callers_go(roots)
    assert references(objects) == before
