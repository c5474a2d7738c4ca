"""A small heap for a run inside a test: all older objects of this process are set aside, and come back afterwards.

A verdict of the plugin collects garbage, and may search the heap for a holder. Both take time in proportion to the
number of objects: here those of torch's compiler, of other suites and of all tests before, so that a verdict takes a
second where a project of its own needs a hundredth of that. The older objects are frozen (``gc.freeze``): the collector
neither walks nor lists them, and frees none of their garbage meanwhile. The plugin thaws what a user froze, so it sees
a collector that has frozen nothing; it does see what the run inside freezes.

A holder among the older objects (the module ``sys``, say) is not found: a test of such a holder needs the whole heap.

``-p suites.heap`` sets aside what was imported before a run in a process of its own.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from cudamem_testing import guards


@contextmanager
def set_aside() -> Iterator[None]:
    """Collections and searches inside meet only objects made inside; garbage among these is freed at the end.

    A second one inside the first changes nothing.
    """
    if guards.gc is not gc:
        yield
        return
    gc.collect(1)  # frozen garbage would be live memory for the run inside; that of the test before is young
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guards, "gc", _collector())
        try:
            yield
            gc.collect()
        finally:
            gc.unfreeze()


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin: set aside torch and everything else, but not in a process that only hands out tests to workers."""
    if config.getoption("dist", "no") == "no":
        import torch  # noqa: F401

        aside = ExitStack()
        aside.enter_context(set_aside())
        config.add_cleanup(aside.close)


def _collector() -> types.ModuleType:
    """The module ``gc``, whose count of frozen objects is 0 until an object made from here on is frozen."""
    seen = types.ModuleType("gc")
    vars(seen).update(vars(gc))
    first: list[object] = []

    def get_freeze_count() -> int:
        there = id(first) in map(id, gc.get_objects())  # without a call for each that a profiler would record
        return 0 if there else gc.get_freeze_count()

    seen.get_freeze_count = get_freeze_count  # type: ignore[attr-defined]
    return seen
