"""The native part of recording cards: Python stacks for CUDA's memory history, and whether pinned memory has changed.

torch's own way to the stacks is dearer than the allocation that it notes, and to the counters of pinned memory than all
else of a boundary. Where the library cannot be compiled it is torch's way all the same: the same stacks, longer by the
frames of the harness, and the same numbers, only slower. The library is loaded once per process and not unloaded.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import CodeType

from cudamem_testing.recorders.build import CARD_RECORDER, RecorderUnavailable, compiled, load
from cudamem_testing.recorders.layout import FramesUnreadable
from cudamem_testing.recorders.native_python import this_python

MANY = 1 << 14
"""Distinct stacks, from which on those that no record has are forgotten: some 10 MiB."""


class CardStacks:
    """Handle to the process's reader of stacks, which begins switched off. Stacks end before the ``harness``."""

    def __init__(self, library: ctypes.PyDLL, harness: Sequence[CodeType] = ()) -> None:
        self._harness = harness  # so that they stay alive
        codes = (ctypes.c_uint64 * len(harness))(*map(id, harness))
        self._begin = partial(library.cudamem_gather, 1, codes, len(harness))
        self._end = partial(library.cudamem_gather, 0, None, 0)
        self._kept = library.cudamem_kept_stacks
        self._trim = library.cudamem_trim_kept_stacks

    def start(self) -> None:
        """Gather stacks from now on."""
        if self._kept() >= MANY:
            self._trim()
        self._begin()

    def stop(self) -> None:
        """Leave it to torch again; what was recorded keeps its stacks."""
        self._end()

    def kept(self) -> int:
        """How many distinct stacks are kept."""
        return int(self._kept())

    def trim(self) -> int:
        """Forget the stacks that no record has; how many are kept then."""
        return int(self._trim())


class CardLibrary:
    """The library, as what asks it."""

    def __init__(self, library: ctypes.PyDLL, has_stacks: bool) -> None:
        self._library = library
        self._has_stacks = has_stacks

    @classmethod
    def load(cls, progress: Callable[[str], None] | None = None) -> CardLibrary | None:
        """Compile it if it never was; ``None`` where it cannot be had here."""
        try:
            if not _of_this_process.cache_info().currsize:
                compiled(progress, CARD_RECORDER)
            return cls(*_of_this_process())
        except RecorderUnavailable:
            return None

    def stacks(self, harness: Sequence[CodeType] = ()) -> CardStacks | None:
        """What reads stacks up to the code of the harness (8 at most).

        ``None`` where the layout of this Python's frames is not known.
        """
        return CardStacks(self._library, harness) if self._has_stacks else None

    def host_watch(self) -> Callable[[], int]:
        """Whether pinned memory is what it was at the last call; to be asked once CUDA is initialised."""
        return partial(self._library.cudamem_host_is_still, (ctypes.c_int64 * 6)())


@cache
def _of_this_process() -> tuple[ctypes.PyDLL, bool]:
    library = load(CARD_RECORDER)
    for name in ("add_unwinder", "gather"):
        getattr(library, f"cudamem_{name}").restype = None
    for name in ("kept_stacks", "trim_kept_stacks"):
        getattr(library, f"cudamem_{name}").restype = ctypes.c_uint64
    try:
        python = this_python()
    except FramesUnreadable:
        return library, False
    library.cudamem_add_unwinder(ctypes.byref(python))
    atexit.register(library.cudamem_gather, 0, None, 0)
    return library, True
