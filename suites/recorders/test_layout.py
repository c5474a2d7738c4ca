"""The search for the layout of frames."""

from __future__ import annotations

import ctypes
import gc
import sys

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.recorders.layout import find_layout, find_shims


def test_a_search_leaves_no_garbage() -> None:
    """A frame that held itself would hold the frames of all callers, and what these have in hand."""
    with CollectorPaused():
        gc.collect()
        find_layout()
        assert gc.collect() == 0


def test_frames_of_the_interpreters_own_hide_no_others() -> None:
    shims = find_shims(find_layout())
    assert (shims.entry != 0, shims.init != 0) == (sys.version_info[:2] == (3, 12), sys.version_info >= (3, 13))
    codes = [ctypes.cast(code, ctypes.py_object).value for code in shims if code]
    assert {code.co_filename for code in codes} <= {"<shim>", "__init__"}
