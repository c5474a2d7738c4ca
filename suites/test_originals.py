"""Functions that a test replaces: our work neither calls the mocks nor believes them."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Iterator
from unittest import mock

import pytest

from cudamem_testing import originals
from cudamem_testing.guards import collect_garbage
from cudamem_testing.objects.clock import Clock
from cudamem_testing.objects.frames import frame_locals
from cudamem_testing.originals import Original

REPLACED = [
    *((gc, name) for name in ("collect", "get_objects", "get_stats")),
    *((time, name) for name in ("monotonic", "sleep", "thread_time", "time_ns")),
    (sys, "getrefcount"),
]


class Knot:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def mocks() -> Iterator[list[mock.Mock]]:
    """All of them replaced, also where a module holds one by its name, as tools that freeze the time do."""
    held = [(originals, name) for name, found in vars(originals).items() if found in (time.monotonic, time.time_ns)]
    patches = [mock.patch.object(owner, name) for owner, name in (*REPLACED, *held)]
    started = [patch.start() for patch in patches]
    yield started
    for patch in patches:
        patch.stop()


def test_garbage_is_collected_all_the_same(mocks: list[mock.Mock]) -> None:
    gone = weakref.ref(Knot())
    assert collect_garbage()
    assert gone() is None
    assert [one.call_count for one in mocks] == [0] * len(mocks)


def test_a_clock_runs_all_the_same(mocks: list[mock.Mock]) -> None:
    clock = Clock(0.001)
    while not clock.expired():
        pass
    assert [one.call_count for one in mocks] == [0] * len(mocks)


def test_locals_are_read_all_the_same(mocks: list[mock.Mock]) -> None:
    def inner() -> list[tuple[str, object]]:
        value = 1  # noqa: F841
        return frame_locals(sys._getframe())

    assert inner() == [("value", 1)]
    assert [one.call_count for one in mocks] == [0] * len(mocks)


def test_the_functions_are_those_of_python() -> None:
    names = {name for name in vars(Original) if not name.startswith("_")}
    assert names == {name for _, name in REPLACED}
    assert all(getattr(Original, name) is getattr(owner, name) for owner, name in REPLACED)
