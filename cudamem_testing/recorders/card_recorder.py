"""Native code for cards: reads Python stacks for CUDA's memory history, and detects changes of pinned memory.

torch's own way to read stacks costs more than the recorded allocation, and reading pinned-memory counters more than
the rest of a window boundary. If the library cannot be compiled, torch's way is used: the same stacks, longer by the
frames of the harness, and the same numbers, only slower. The library is loaded once per process and not unloaded.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import atexit
import ctypes
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import CodeType
from typing import NamedTuple

from cudamem_testing.recorders.build import CARD_RECORDER, RecorderUnavailable, compiled, load
from cudamem_testing.recorders.layout import FramesUnreadable
from cudamem_testing.recorders.native_python import this_python

MANY = 1 << 14
"""Number of distinct stacks above which unused ones are discarded: about 10 MiB."""


class CardStacks:
    """Handle to the process's stack reader, initially off. Stacks end before the ``harness``."""

    def __init__(self, library: ctypes.PyDLL, harness: Sequence[CodeType] = (), most: int = MANY) -> None:
        self._harness = harness  # so that they stay alive
        codes = array("Q", map(id, harness)).tobytes()
        (start,) = library.cudamem_start_functions(codes, len(harness), most)
        self.start: Callable[[], None] = start
        """Record stacks from now on; if there are ``most``, unused ones are discarded first."""
        self._end = partial(library.cudamem_gather, 0, None, 0)
        self._tell_grad_mode = library.cudamem_tell_grad_mode
        self._kept = library.cudamem_kept_stacks
        self._trim = library.cudamem_trim_kept_stacks

    def stop(self) -> None:
        """Let torch read stacks again; recorded events keep theirs."""
        self._end()

    @contextmanager
    def with_grad_mode(self) -> Iterator[None]:
        """Stacks in snapshots taken inside end with the frame :data:`~.capture.GRAD_MODE`, named ``on`` or ``off``."""
        self._tell_grad_mode(1)
        try:
            yield
        finally:
            self._tell_grad_mode(0)

    def kept(self) -> int:
        """How many distinct stacks are kept."""
        return int(self._kept())

    def trim(self) -> int:
        """Discard unused stacks; returns how many are kept."""
        return int(self._trim())


class HostWatch(NamedTuple):
    """What native code says of pinned memory.

    ``is_still`` says whether it is unchanged since its last call, and needs initialised CUDA. Call ``was_reset`` when
    other code has reset peaks: then ``source`` (:class:`~.base.Recorder`) is not read until the next test.
    """

    is_still: Callable[[], int]
    was_reset: Callable[[], None]
    source: object


class CardLibrary:
    """The compiled library."""

    def __init__(self, library: ctypes.PyDLL, has_stacks: bool) -> None:
        self._library = library
        self._has_stacks = has_stacks

    @classmethod
    def load(cls, progress: Callable[[str], None] | None = None) -> CardLibrary | None:
        """Load it, after compiling it if necessary; ``None`` if it is not available here."""
        try:
            if not _of_this_process.cache_info().currsize:
                compiled(progress, CARD_RECORDER)
            return cls(*_of_this_process())
        except RecorderUnavailable:
            return None

    def stacks(self, harness: Sequence[CodeType] = (), most: int = MANY) -> CardStacks | None:
        """A reader of stacks up to the harness code objects (at most 8).

        ``None`` if the frame layout of this Python is unknown.
        """
        return CardStacks(self._library, harness, most) if self._has_stacks else None

    def host_watch(self) -> HostWatch:
        """A new watch over pinned memory."""
        return HostWatch(*self._library.cudamem_host_functions())


@cache
def _of_this_process() -> tuple[ctypes.PyDLL, bool]:
    library = load(CARD_RECORDER)
    for name in ("add_unwinder", "gather", "tell_grad_mode"):
        getattr(library, f"cudamem_{name}").restype = None
    for name in ("kept_stacks", "trim_kept_stacks"):
        getattr(library, f"cudamem_{name}").restype = ctypes.c_uint64
    for name in ("start_functions", "host_functions"):
        getattr(library, f"cudamem_{name}").restype = ctypes.py_object
    library.cudamem_start_functions.argtypes = [ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint64]
    try:
        python = this_python()
    except FramesUnreadable:
        return library, False
    library.cudamem_add_unwinder(ctypes.byref(python))
    atexit.register(library.cudamem_gather, 0, None, 0)
    return library, True
