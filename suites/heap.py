"""A small heap for an inner run: what this process has made before is set aside, and comes back afterwards.

A verdict of the plugin collects garbage, and may search the heap for a holder. Both take as long as there are objects:
here those of torch's compiler, of other suites and of all tests before, a second where a project of its own takes a
hundredth. They are frozen (``gc.freeze``), so that the collector neither walks nor lists them, and none of their
garbage goes meanwhile. The plugin would thaw what somebody froze, so it sees a collector that has frozen nothing;
what an inner test freezes it sees.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cudamem_testing import guards


@contextmanager
def set_aside() -> Iterator[None]:
    """Inside, collections and searches of the heap meet only what was made inside; its garbage goes at the end.

    Inside another one it changes nothing.
    """
    if guards.gc is not gc:
        yield
        return
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guards, "gc", _without_what_is_frozen())
        try:
            yield
            gc.collect()
        finally:
            gc.unfreeze()


def _without_what_is_frozen() -> types.ModuleType:
    """The module ``gc``, whose count of frozen objects is 0 until somebody freezes what is made from here on."""
    seen = types.ModuleType("gc")
    vars(seen).update(vars(gc))
    first: list[object] = []

    def get_freeze_count() -> int:
        return 0 if any(found is first for found in gc.get_objects()) else gc.get_freeze_count()

    seen.get_freeze_count = get_freeze_count  # type: ignore[attr-defined]
    return seen
