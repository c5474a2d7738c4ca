"""The model of the allocator, through ctypes. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

from cudamem_testing.model.allocator_settings import INTERVALS, AllocatorSettings
from cudamem_testing.recorders.build import Library, load

LIBRARY = Library(
    "allocator_model",
    "the model of the allocator",
    ("allocator_model.cpp", "card_driver.h", "card_memory.h", "card_parts.h"),
    "c++17",
    (),
    Path(__file__).parents[2] / "simulated",
)
ALLOC, FREE_REQUESTED, FREE_COMPLETED, PROBE = range(4)


@dataclass(frozen=True, slots=True)
class Job:
    """Events to replay, and what was live before them.

    ``segments`` has rows of address, size, stream, pool, small, expandable; ``blocks`` rows of address, size,
    requested, number of the segment, by segment and address. The columns of events are parallel; ``did`` holds
    ``ALLOC`` to ``PROBE``, the last for a request that is only tried. ``empties`` are the events before which a cache
    is emptied, in their order, each with the pool.
    ``capacity`` is what can be reserved, ``None`` without a limit; ``limited`` is whether that is a limit of torch and
    not of the card.
    """

    segments: array[int]
    blocks: array[int]
    did: bytes
    addresses: array[int]
    sizes: array[int]
    streams: array[int] | None
    pools: array[int] | None
    pool_count: int
    capacity: int | None = None
    limited: bool = False
    empties: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Ran:
    """What a replay came to, in bytes; moments are numbers of events of the job.

    ``fits`` is the outcome of the last request that was tried, ``None`` if none was. ``failed`` allocations of the
    record found no room, the first at ``first_failed``. ``largest_free`` and ``unused`` are of the main pool at the
    end. ``course`` is what was reserved after each event, if asked for.
    """

    peak_reserved: int
    peak_moment: int | None
    reserved: int
    peak_allocated: int
    allocated: int
    fits: bool | None
    largest_free: int
    unused: int
    retries: int
    failed: int
    first_failed: int | None
    segments: int
    course: array[int] | None = None


def run(job: Job, settings: AllocatorSettings, *, course: bool = False) -> Ran:
    """Replay a job under some settings.

    Raises:
        RecorderUnavailable: the model cannot be compiled or loaded here; the message says why and what to do.
        ValueError: the job names pools or segments that it does not have.
    """
    library = _library()
    raw, result = _Job(), _Result()
    raw.expandable, raw.max_split = settings.expandable, settings.max_split
    raw.max_unsplit_rounding, raw.collect_above = settings.max_unsplit_rounding, settings.collect_above
    raw.divisions[:] = settings.divisions
    raw.capacity, raw.limited = job.capacity or 0, job.limited
    raw.segments, raw.segment = len(job.segments) // 6, _pointer(job.segments)
    raw.blocks, raw.block = len(job.blocks) // 4, _pointer(job.blocks)
    raw.events, raw.pools, raw.did = len(job.did), job.pool_count, job.did
    streams = job.streams if job.streams is not None else array("q", bytes(8 * len(job.did)))
    raw.address, raw.size, raw.stream = map(_pointer, (job.addresses, job.sizes, streams))
    raw.pool = None if job.pools is None else _pointer(job.pools)
    empties = array("q", chain.from_iterable(job.empties))
    raw.empties, raw.empty = len(job.empties), _pointer(empties)
    reserved = array("q", bytes(8 * len(job.did))) if course else None
    kept = None if reserved is None else ctypes.c_void_p(_pointer(reserved))
    if library.cudamem_model_replay(ctypes.byref(raw), ctypes.byref(result), kept):
        raise ValueError("the events name pools that the recording does not have")
    return Ran(
        result.peak_reserved,
        _moment(result.peak_moment),
        result.reserved,
        result.peak_allocated,
        result.allocated,
        None if result.fits < 0 else bool(result.fits),
        result.largest_free,
        result.unused,
        result.retries,
        result.failed,
        _moment(result.first_failed),
        result.segments,
        reserved,
    )


def _moment(number: int) -> int | None:
    return None if number < 0 else number


def _pointer(column: Sequence[int]) -> int | None:
    return column.buffer_info()[0] if isinstance(column, array) and len(column) else None


class _Job(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("expandable", "max_split", "max_unsplit_rounding", "capacity", "limited")
        ),
        ("collect_above", ctypes.c_double),
        ("divisions", ctypes.c_int64 * INTERVALS),
        ("segments", ctypes.c_int64),
        ("segment", ctypes.c_void_p),
        ("blocks", ctypes.c_int64),
        ("block", ctypes.c_void_p),
        ("events", ctypes.c_int64),
        ("pools", ctypes.c_int64),
        ("did", ctypes.c_char_p),
        *((name, ctypes.c_void_p) for name in ("address", "size", "stream", "pool")),
        ("empties", ctypes.c_int64),
        ("empty", ctypes.c_void_p),
    )


class _Result(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("peak_reserved", "peak_moment", "reserved", "peak_allocated", "allocated", "fits", "largest_free"),
            *("unused", "retries", "failed", "first_failed", "segments"),
        )
    )


@cache
def _library() -> ctypes.PyDLL:
    library = load(LIBRARY)
    library.cudamem_model_replay.argtypes = [ctypes.c_void_p] * 3
    library.cudamem_model_replay.restype = ctypes.c_int64
    return library
