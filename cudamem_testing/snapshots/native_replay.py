"""Calls the native loops over many events: those of :mod:`lifetimes`, :mod:`layout` and :mod:`replay`.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from cudamem_testing.snapshots.native import library
from cudamem_testing.snapshots.record import Events, Kind, Settings

#: Sizes that were guessed wrong: at most so many are corrected.
MOST_CORRECTIONS = 200
#: Bytes of a pickle that an event takes.
_EVENT = 150
_NUMBER, _ADDRESS = ctypes.c_uint64, ctypes.c_void_p
_RANGES = "free", "borders", "taken", "guessed"


class _Lives(ctypes.Structure):
    """As in ``block_lives.h``."""

    _fields_ = (
        *((name, _NUMBER) for name in ("events", "ends")),
        *((name, _ADDRESS) for name in ("kinds", "addresses", "freed", "before")),
        ("blocks", _NUMBER),
        *((name, _ADDRESS) for name in ("live", "starts", "lost")),
        *((name, _NUMBER) for name in ("before_count", "lost_count", "unseen", "twice")),
    )


class _Layout(ctypes.Structure):
    """As in ``block_layout.h``."""

    _fields_ = (
        *((name, _NUMBER) for name in ("events", "ends")),
        *((name, _ADDRESS) for name in ("kinds", "addresses", "requested", "exact", "sizes")),
        *((name, _NUMBER) for name in ("expandable", "max_split")),
        *((f"{name}_count", _NUMBER) for name in _RANGES),
        *((name, _ADDRESS) for name in (*_RANGES, "corrected")),
        ("corrections", _NUMBER),
    )


class Matched(NamedTuple):
    """``freed`` by event; events that freed a block from ``before``; by live block the event that allocated it.

    ``lost`` are events whose blocks are neither freed nor live at the end; ``unseen`` and ``twice`` are how many blocks
    were allocated again without a free, and freed twice.
    """

    freed: array[int]
    before: array[int]
    starts: array[int]
    lost: array[int]
    unseen: int
    twice: int


def native(events: int) -> ctypes.PyDLL | None:
    """The library, if there is one and it is worth calling for so many events."""
    return library(_EVENT * events)


def match(native: ctypes.PyDLL, events: Events, ends: Kind, live: Sequence[int]) -> Matched:
    """Match allocations, frees, and the addresses of what is ``live`` at the end."""
    total = len(events)
    kinds, addresses = array("B", events.kinds), array("q", live)
    freed, before, lost = array("q", [-1]) * total, *(array("q", bytes(8 * total)) for _ in range(2))
    starts = array("q", bytes(8 * len(addresses)))
    columns = {"kinds": kinds, "addresses": events.addresses, "freed": freed, "before": before, "live": addresses}
    job = _Lives(events=total, ends=ends, blocks=len(addresses), **_pointers(**columns, starts=starts, lost=lost))
    _done(native.cudamem_block_lives(ctypes.byref(job)))
    del before[job.before_count :], lost[job.lost_count :]
    return Matched(freed, before, starts, lost, job.unseen, job.twice)


def replay_layout(
    native: ctypes.PyDLL,
    events: Events,
    ends: Kind,
    exact: Iterable[int],
    sizes: array[int],
    settings: Settings,
    free: Mapping[int, int],
    borders: Iterable[int],
    taken: Mapping[int, int],
    guessed: Mapping[int, int],
) -> dict[int, int]:
    """Correct ``sizes`` in place; returns the corrected sizes of blocks from before the events, by address.

    ``exact`` are the events that allocated blocks of known size. The others are as in :mod:`layout`.
    """
    known = array("B", bytes(len(events)))
    for place in exact:
        known[place] = 1
    pairs = [array("Q", chain.from_iterable(one.items())) for one in (free, taken, guessed)]
    ranges = pairs[0], array("Q", borders), pairs[1], pairs[2]
    corrected = array("Q", bytes(16 * MOST_CORRECTIONS))
    limit = settings.max_split_size
    kinds = array("B", events.kinds)
    columns = {"kinds": kinds, "addresses": events.addresses, "requested": events.sizes, "exact": known, "sizes": sizes}
    named = dict(zip(_RANGES, ranges, strict=True))
    job = _Layout(
        len(events),
        ends,
        expandable=settings.expandable,
        max_split=2**63 if limit is None else limit,
        **_pointers(**columns, **named, corrected=corrected),
        **{f"{name}_count": len(one) if name == "borders" else len(one) // 2 for name, one in named.items()},
    )
    _done(native.cudamem_block_layout(ctypes.byref(job)))
    found = corrected[: 2 * job.corrections]
    return dict(zip(found[::2], found[1::2], strict=True))


def add_up(native: ctypes.PyDLL, starts: array[int], freed: array[int], sizes: array[int], totals: array[int]) -> None:
    """Change ``totals``, by moment, from changes by blocks of before the events to what is live."""
    columns = (_ADDRESS(one.buffer_info()[0]) for one in (starts, freed, sizes, totals))
    native.cudamem_block_totals(_NUMBER(len(freed)), _NUMBER(len(starts)), *columns)


def _pointers(**columns: array[int]) -> dict[str, int]:
    return {name: column.buffer_info()[0] for name, column in columns.items()}


def _done(status: int) -> None:
    if not status:
        raise MemoryError
