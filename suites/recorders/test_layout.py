"""The search for the layout of frames."""

from __future__ import annotations

import gc

from cudamem_testing.guards import collector_paused
from cudamem_testing.recorders.layout import find_layout


def test_a_search_leaves_no_garbage() -> None:
    """A frame that held itself would hold the frames of all callers, and what these have in hand."""
    with collector_paused():
        gc.collect()
        find_layout()
        assert gc.collect() == 0
