"""The calls of the CPU recorder's library, and the layout of their arguments and results in memory.

Signatures, as ctypes sees them (`cudamem_` in front; `->` what it returns):

    install() -> c_int32                                1 in place, below 0 why not
    uninstall() -> None                                 is_installed() -> c_int32
    acquire_slot() -> c_int32                           release_slot(c_int32) -> c_int32
    read(c_int32 slot, c_int32 reset, Reading*) -> c_int32 0 no such slot
    new_owner() -> c_uint32
    reader_functions(c_int32 slot, the class Counters) -> take, begun, plan, planned, a source      cpu_functions.h
    boundary_functions(sources, names, the class Counters) -> read, key, counters, grown, gained    boundaries.h
    owner_functions() -> enter_new_owner, set_owner, owns
    owner_totals(c_uint32, OwnerTotals*) -> c_int32
    scan(c_int64 owner or -1, Block*, c_uint64 room) -> c_uint64 needed or copied
    block_at(c_uint64 pointer, Block*) -> c_int32       1 copied, 0 none there
    set_python(Python*) -> None                         set_recording(c_int32, c_int32) -> c_int32 earlier, 1 | 2
    swap_stop_codes(c_uint64[8], c_uint32* count) -> None
    stack(c_uint32, Frame[64]) -> c_uint32 depth        stack_counts(c_uint64[2]) -> None
    trim_stacks() -> c_uint64 dropped
    restart_events(c_uint64 capacity) -> c_int64 first index, or -1                 events_capacity() -> c_uint64
    events(c_uint64 from, Event*, c_uint64 room, c_uint64* first, c_uint64* total) -> c_uint64 copied
    set_limit(c_int64 or -1) -> c_int64 earlier         refusal(Refusal*) -> None
    set_trap(c_uint64 above, c_uint64 nth, c_int32 every, Place*, c_uint32 count) -> c_int32    0 one is set already
    clear_trap() -> None                                trapped(Trapped*) -> None
    thread() -> c_uint32
    open_journal(c_int32 device type or -1, c_int32 index) -> c_int32 handle, or below 0
    note(c_int32 handle) -> c_int64 number              close_journal(c_int32 handle) -> None
    notes(c_int32 handle, Note*, c_uint64 room) -> c_uint64 how many
    take_highest(c_int32 handle, c_int64[29]) -> c_int32
    has_device(c_int32 device type, c_int32 index) -> c_int32
    device_functions(c_int32 device type, c_int32 index, the class Counters)
        -> read_alone, read, forget, set_alone, a source                                            device_functions.h

    Reading      8s: allocated, peak, own, own_peak; 8u: peak_event, events, allocations, live_blocks,
                 allocated_total, unknown_frees, refusals                                       (88 bytes, "=4q7Q")
    OwnerTotals  8s: bytes; 8u: blocks, allocations                                             (24 bytes, "=q2Q")
    Block        8u: pointer, size, sequence; 4u: stack, owner, thread, unused                  (40 bytes, "=3Q3I4x")
    Event        8u: pointer, size, sequence; 8s: time_ns; 4u: stack, owner, thread; 2u: kind, grad
                                                                                            (48 bytes, "=3Qq3I2H")
    Refusal      8u: count, size, event; 8s: allocated, limit; 4u: stack, thread                (48 bytes, "=3Q2q2I")
    Trapped      8u: requests, failed, number, size; 4u: stack, thread                          (40 bytes, "=4Q2I")
    Place        8u: code object; 8s: its first position, and the one behind its last           (24 bytes, "=Q2q")
    Frame        8u: code object; 8s: position in its bytecode                                  (16 bytes, "=Qq")
    Note         8s: allocated, peak, allocated_total, allocations, active, reserved, retries   (56 bytes, "=7q")

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
from typing import Any


def room(size: int) -> tuple[bytearray, Any]:
    """Memory of at least ``size`` bytes that a call fills, and what to pass to that call.

    A ctypes array of that size would be of a class made for it, which only the garbage collector frees: a test that
    counts what ``gc.collect()`` finds would count it.
    """
    memory = bytearray(max(size, 1))
    return memory, ctypes.byref(ctypes.c_char.from_buffer(memory))


def declare(library: ctypes.PyDLL) -> None:
    """Tell ctypes the types of the calls; those that are not named here take and return what ctypes assumes."""
    for name, result in (
        ("boundary_functions", ctypes.py_object),
        ("device_functions", ctypes.py_object),
        ("is_installed", ctypes.c_bool),
        ("owner_functions", ctypes.py_object),
        ("reader_functions", ctypes.py_object),
        ("scan", ctypes.c_uint64),
        ("new_owner", ctypes.c_uint32),
        ("stack", ctypes.c_uint32),
        ("trim_stacks", ctypes.c_uint64),
        ("restart_events", ctypes.c_int64),
        ("events_capacity", ctypes.c_uint64),
        ("events", ctypes.c_uint64),
        ("set_limit", ctypes.c_int64),
        ("thread", ctypes.c_uint32),
        ("note", ctypes.c_int64),
        ("notes", ctypes.c_uint64),
    ):
        getattr(library, f"cudamem_{name}").restype = result
    for name in (
        "uninstall",
        "set_python",
        "swap_stop_codes",
        "stack_counts",
        "refusal",
        "clear_trap",
        "trapped",
        "close_journal",
    ):
        getattr(library, f"cudamem_{name}").restype = None
    library.cudamem_boundary_functions.argtypes = [ctypes.py_object] * 3
    library.cudamem_device_functions.argtypes = [ctypes.c_int32, ctypes.c_int32, ctypes.py_object]
    library.cudamem_reader_functions.argtypes = [ctypes.c_int32, ctypes.py_object]
    library.cudamem_owner_totals.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    library.cudamem_scan.argtypes = [ctypes.c_int64, ctypes.c_char_p, ctypes.c_uint64]
    library.cudamem_block_at.argtypes = [ctypes.c_uint64, ctypes.c_char_p]
    library.cudamem_stack.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    library.cudamem_restart_events.argtypes = [ctypes.c_uint64]
    counter = ctypes.POINTER(ctypes.c_uint64)
    library.cudamem_events.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64, counter, counter]
    library.cudamem_set_limit.argtypes = [ctypes.c_int64]
    library.cudamem_notes.argtypes = [ctypes.c_int32, ctypes.c_char_p, ctypes.c_uint64]
