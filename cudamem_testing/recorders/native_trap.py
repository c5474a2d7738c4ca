"""The trap of a native allocator (`trap.h`): the allocation that is made to fail. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cudamem_testing.model.failing import Trapped, Wanted
from cudamem_testing.recorders.lines import LineCode, code_of_line

if TYPE_CHECKING:
    from cudamem_testing.model.stacks import RawFrame

TAKEN = "another allocation is made to fail already: one fail_allocation at a time"
_TRAPPED = struct.Struct("=4Q2I")
_Trapped = ctypes.c_char * _TRAPPED.size
_PLACE = struct.Struct("=Q2q")


#: Of `set_trap`.
ARGUMENTS: Sequence[Any] = [
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_uint32,
]


class NativeTrap:
    """A trap that is set from here until it is lifted.

    ``put``, ``read`` and ``clear`` are calls of a native library, ``frames`` names the frames of a stack's number.

    Raises:
        RuntimeError: if one is set already.
        ValueError: if no loaded code has the wanted line.
    """

    calls = None

    def __init__(
        self,
        put: Callable[..., int],
        read: Callable[[Any], object],
        clear: Callable[[], object],
        wanted: Wanted,
        frames: Callable[[int], Sequence[RawFrame]],
    ) -> None:
        self._codes: Sequence[LineCode] = () if wanted.at is None else code_of_line(*wanted.at)  # kept alive
        self._read, self._clear, self._frames = read, clear, frames
        self._last: tuple[int, ...] | None = None
        places = b"".join(_PLACE.pack(id(code), first, last) for code, first, last in self._codes)
        every = wanted.nth is None and wanted != Wanted()
        if not put(wanted.above or 0, wanted.nth or 0, every, places, len(self._codes)):
            raise RuntimeError(TAKEN)

    def look(self) -> Trapped:
        """What it has met so far."""
        requests, failed, number, size = self._numbers()[:4]
        return Trapped(requests, failed, number, size, number - failed)

    def frames(self) -> Sequence[RawFrame]:
        """The frames of the last allocation that failed, innermost first; empty if unknown."""
        return self._frames(self._numbers()[4])

    def lift(self) -> None:
        """Remove it; what it met can still be read."""
        if self._last is None:
            self._last = self._numbers()
            self._clear()

    def _numbers(self) -> tuple[int, ...]:
        if self._last is not None:
            return self._last
        buffer = _Trapped()
        self._read(buffer)
        return _TRAPPED.unpack(buffer.raw)
