"""Pausing the garbage collector while many records are made. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No automatic collection inside; afterwards the collector is as it was.

    A trace is millions of small objects without a cycle. Each time enough of them were made the collector would walk
    all that live, the user's included, and find nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
