"""Original Python functions, bound at the import of this module, so that a test neither sees nor affects our calls.

A test, or a module or session fixture, may replace ``time.monotonic`` or ``gc.collect`` by a mock: our calls
would then be counted, return a mock, or not collect. Tools that freeze the time also replace functions that a
module holds by name, so these are attributes of a class. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import gc
import sys
import time


class Original:
    """The functions, by their Python names."""

    collect = staticmethod(gc.collect)
    get_objects = staticmethod(gc.get_objects)
    get_stats = staticmethod(gc.get_stats)
    getrefcount = staticmethod(sys.getrefcount)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    thread_time = staticmethod(time.thread_time)
    time_ns = staticmethod(time.time_ns)
