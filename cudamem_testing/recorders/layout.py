"""Finds the memory layout of this Python's frames, so that stacks can be read without the GIL.

The CPU recorder records a Python stack for every block. Asking Python for frames needs the GIL, which the allocating
thread has usually released; reading three words per frame from the thread's own suspended frames needs nothing.
The position of those words differs between versions of Python, so it is not hard-coded but found: a probe calls
itself a few levels deep, so that the code object and position of each of its frames are known, and the search looks
for offsets that show exactly these values at every level. Memory is read through `/proc/self/mem`, which answers
with an error, not a crash, for an invalid address. A Python where nothing fits gives no stacks and a reason;
all counts still work. Free-threaded builds have no stacks: there, other threads change what the walk relies on.

CPython 3.11 and later: thread state -> (a struct on the C stack ->) interpreter frame, whose position is a pointer
into the bytecode. CPython 3.10: thread state -> frame object, whose position is an index of two-byte units.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from functools import partial
from types import CodeType, FrameType
from typing import NamedTuple

_WORDS = struct.Struct("=24Q")
_INT = struct.Struct("=i")
_CALLS = 16
_TAGS = ~7
"""Python 3.14 uses the low bits of a reference; objects are aligned to more than that."""


class FramesUnreadable(Exception):  # noqa: N818 - an outcome to fall back from, not a programming error
    """Stacks cannot be read here without the interpreter's lock; the message says why."""


class FrameLayout(NamedTuple):
    """Offsets in bytes, named and ordered as in `struct Python` of cpu_stacks.h; -1 if there is no such step."""

    state_frame: int
    indirect_frame: int
    frame_code: int
    frame_back: int
    frame_position: int
    code_start: int


def find_layout() -> FrameLayout:
    """Search for the layout of this interpreter.

    Raises:
        FramesUnreadable: it is not CPython on 64-bit Linux, a build without the lock or for debugging, or nothing fits.
    """
    if sys.implementation.name != "cpython" or struct.calcsize("P") != 8:
        raise FramesUnreadable("stacks are recorded with 64-bit CPython only")
    if "t" in sys.abiflags:
        raise FramesUnreadable("stacks are not recorded with free-threaded Python")
    if hasattr(sys, "getobjects"):  # it keeps a list of all objects, which code objects kept beyond its end would break
        raise FramesUnreadable("stacks are not recorded with a Python that traces references")
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError as error:
        raise FramesUnreadable(
            f"stacks are recorded only where /proc/self/mem can be read ({error.strerror})"
        ) from error
    try:
        found = _one_level(memory)
    finally:
        os.close(memory)
    if found is None:
        raise FramesUnreadable("stacks are not recorded: the layout of this Python's frames is unknown")
    return found


class Shims(NamedTuple):
    """Addresses of the code of the interpreter's own frames; 0 if they have no code, or none was met."""

    entry: int
    """Of the frame wherever C calls Python; CPython 3.12 gives it a code object like all others."""
    init: int
    """Of the frame below an `__init__` that CPython 3.13 calls without C, as it does the second time at one place."""


def find_shims(layout: FrameLayout) -> Shims:
    """Call functions in the ways that need a frame of the interpreter's own, and read what lies below them."""
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        here = id(find_shims.__code__)
        (entry,) = map(_code_below, (layout,), (memory,), (1,))
        entry = 0 if entry == here else entry
        for _ in range(_CALLS):
            init = _Called(layout, memory).below
            if init not in (0, here, entry):
                return Shims(entry, init)
        return Shims(entry, 0)
    finally:
        os.close(memory)


def _code_below(layout: FrameLayout, memory: int, levels: int) -> int:
    """The code object of the frame that is so many below this one; 0 if it has none.

    As in `_search`, memory is read by calls that have no Python frame.
    """
    thread_state = ctypes.pythonapi.PyGILState_GetThisThreadState
    thread_state.restype = ctypes.c_void_p
    read, order = partial(os.pread, memory, 8), sys.byteorder
    frame = int.from_bytes(read(thread_state() + layout.state_frame), order)
    if layout.indirect_frame >= 0:
        frame = int.from_bytes(read(frame + layout.indirect_frame), order)
    for _ in range(levels):
        frame = int.from_bytes(read(frame + layout.frame_back), order)
    code = int.from_bytes(read(frame + layout.frame_code), order) & _TAGS
    type_at = object.__basicsize__ - struct.calcsize("P")
    return code if code != 0 and int.from_bytes(read(code + type_at), order) == id(CodeType) else 0


class _Called:
    def __init__(self, layout: FrameLayout, memory: int) -> None:
        self.below = _code_below(layout, memory, 2)


def _one_level(memory: int) -> FrameLayout | None:
    return _two_levels(memory)


def _two_levels(memory: int) -> FrameLayout | None:
    found = None  # an extra statement, so that no two levels have the same position
    if found is None:
        found = _search(memory)
    return found


def _search(memory: int) -> FrameLayout | None:
    """Try every path of words from the thread state that leads to this frame and from there to its callers.

    Memory is read from this frame itself, by calls without a Python frame, so that it is the current one whenever
    a word is read.
    """
    thread_state = ctypes.pythonapi.PyGILState_GetThisThreadState
    thread_state.restype = ctypes.c_void_p
    state = _WORDS.unpack(os.pread(memory, _WORDS.size, thread_state()))
    here = sys._getframe()
    code, callers = id(here.f_code), _callers(here)
    del here  # otherwise the frame would hold itself and all its callers
    for state_word in range(2, len(state)):
        for indirect in (-1, 0, 8):
            try:
                frame = state[state_word]
                if indirect >= 0:
                    frame = int.from_bytes(os.pread(memory, 8, frame + indirect), sys.byteorder)
                words = _WORDS.unpack(os.pread(memory, _WORDS.size, frame))
            except (OSError, OverflowError, struct.error):
                continue
            for code_word in range(16):
                if words[code_word] & _TAGS != code:
                    continue
                for back_word in range(16):
                    levels: list[bytes] = []
                    back = words[back_word]
                    try:
                        while len(levels) < len(callers):
                            levels.append(os.pread(memory, _WORDS.size, back))
                            back = _WORDS.unpack(levels[-1])[back_word]
                    except (OSError, OverflowError, struct.error):
                        continue
                    position = _position(levels, callers, code_word)
                    if position is not None:
                        return FrameLayout(8 * state_word, indirect, 8 * code_word, 8 * back_word, *position)
    return None


def _callers(frame: FrameType) -> list[tuple[int, int]]:
    """Address of the code object and position of the probe's frames, innermost first."""
    callers = []
    for _ in range(3):
        caller = frame.f_back
        if caller is None:
            break
        callers.append((id(caller.f_code), caller.f_lasti))
        frame = caller
    return callers


def _position(levels: list[bytes], callers: list[tuple[int, int]], code_word: int) -> tuple[int, int] | None:
    """`(frame_position, code_start)` if the levels are these callers, else `None`."""
    words = [_WORDS.unpack(level) for level in levels if len(level) == _WORDS.size]
    if len(words) != 3 or len(callers) != 3:
        return None
    if any(w[code_word] & _TAGS != code for w, (code, _) in zip(words, callers, strict=True)):
        return None
    code_start = CodeType.__basicsize__
    for offset in range(0, _WORDS.size, 8):
        if all(w[offset // 8] == code + code_start + lasti for w, (code, lasti) in zip(words, callers, strict=True)):
            return offset, code_start
    for offset in range(0, _WORDS.size, 4):
        if all(
            2 * _INT.unpack_from(level, offset)[0] == lasti for level, (_, lasti) in zip(levels, callers, strict=True)
        ):
            return offset, -1
    return None
