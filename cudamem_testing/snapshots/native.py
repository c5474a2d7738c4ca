"""The native parts of reading and replaying large snapshots: the same as in Python, and many times faster.

Where there is no compiler, Python does it. The library needs nothing of torch, which commands on snapshots do not
import. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from cudamem_testing.recorders.build import Library, RecorderUnavailable, compiled, compiled_before, load

LIBRARY = Library(
    "snapshot_reader",
    "the reader of large snapshots",
    ("snapshot_reader.cpp", "block_layout.h", "block_lives.h", "event_kinds.h", "event_reader.h"),
    "c++17",
    (),
    Path(__file__).parent,
    of_torch=False,
)
#: Bytes of a pickle, or 150 times the number of events: from where on calls into the library are worth their overhead,
#: and compiling it takes less time than it saves.
_WORTH_A_CALL, _WORTH_COMPILING = 2**20, 2**27


def library(size: int, progress: Callable[[str], None] | None = None) -> ctypes.PyDLL | None:
    """The library, if there is one for so many bytes: it is compiled for a large snapshot only.

    ``progress`` is called with a line before it is compiled.
    """
    if size < _WORTH_A_CALL:
        return None
    tried = loaded.cache_info().currsize > 0
    if not tried and compiled_before(LIBRARY) is None:
        if size < _WORTH_COMPILING:
            return None
        with suppress(RecorderUnavailable):
            compiled(progress, LIBRARY)
    return loaded()


@cache
def loaded() -> ctypes.PyDLL | None:
    """The library, compiled if it never was; ``None`` where that is not possible."""
    try:
        return load(LIBRARY)
    except RecorderUnavailable:
        return None
