"""The search for the layout of frames."""

from __future__ import annotations

import gc

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.recorders.layout import find_layout


def test_a_search_leaves_no_garbage() -> None:
    """A frame that held itself would hold the frames of all callers, and what these have in hand."""
    with CollectorPaused():
        gc.collect()
        find_layout()
        assert gc.collect() == 0
