"""Functions of Python as they were when this module was imported, for work that a test must neither see nor steer.

A test, or a fixture of a module or session, may replace ``time.monotonic`` or ``gc.collect`` by a mock: a call of ours
would then be counted, return a mock, or not collect. Tools that freeze the time replace their functions also where a
module holds one by name, so these are attributes of a class. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import gc
import sys
import time


class Original:
    """The functions, by the names that Python gives them."""

    collect = staticmethod(gc.collect)
    get_objects = staticmethod(gc.get_objects)
    get_stats = staticmethod(gc.get_stats)
    getrefcount = staticmethod(sys.getrefcount)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    thread_time = staticmethod(time.thread_time)
    time_ns = staticmethod(time.time_ns)
