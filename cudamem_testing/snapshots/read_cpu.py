"""Creates a recording from rows of the CPU recorder, in its own order, so that nothing has to be rearranged.

This module needs the rows, not the recorder: a test or a file can provide them.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import Stack
from cudamem_testing.snapshots.record import NO_STACK, Events, Kind, LiveBlock, Recording, SnapshotError, Stacks

BlockRow = tuple[int, int, int, int, int, int]
"""address, size, sequence, stack, owner, thread; stack 0 and owner 0 are none."""
EventRow = tuple[int, ...]
"""address, size, sequence, nanoseconds, stack, owner, thread, kind (0 allocated, 1 freed, 2 refused), and where it was
noted 1 for an allocation while the thread's grad mode was on."""

KINDS: Final = bytes((Kind.ALLOC, Kind.FREE_REQUESTED, Kind.OOM))
_WIDTHS = (8, 9)
_OFF = "no Python stack: the recorder kept none when it was allocated"


def read_cpu(
    blocks: Iterable[BlockRow],
    events: Iterable[EventRow] = (),
    stack: Callable[[int], Stack] | None = None,
    *,
    owners: Mapping[int, str] | None = None,
    first: int = 0,
    truncated: bool = False,
    stackless: str = _OFF,
    notes: Sequence[str] = (),
) -> Recording:
    """The recording of live ``blocks`` and the ``events`` that led to them, oldest first.

    Both must have been read at one moment. ``stack`` returns the stack of a number; ``owners`` has the
    name of the test behind an owner's number; ``first`` is the number of the first event, so that the recorder's event
    number ``n`` is the moment ``n - first``; ``truncated`` says that older events were dropped.

    Raises:
        SnapshotError: if the rows do not match their types.
    """
    try:
        addresses, sizes, sequences, times, stacks, owned, threads, kinds, *grads = _columns(list(events))
        codes = bytes([KINDS[kind] for kind in kinds])
        live = tuple(_block(*row) for row in blocks)
    except (TypeError, ValueError, OverflowError, IndexError) as error:
        raise SnapshotError(f"rows of the CPU recorder are not as expected: {error}") from error
    return Recording(
        device=Device("cpu"),
        blocks=live,
        events=Events(
            kinds=codes,
            addresses=addresses,
            sizes=sizes,
            stacks=array("q", [number or NO_STACK for number in stacks]),
            times=array("q", [time // 1000 for time in times]),
            sequences=sequences,
            owners=owned,
            threads=threads,
            grads=bytes([*grads[0]]) if grads else None,
        ),
        stacks=Stacks(stack),
        owners=owners or {},
        first=first,
        truncated=truncated,
        stackless=stackless,
        notes=tuple(notes),
    )


def _columns(rows: list[EventRow]) -> list[array[int]]:
    widths = {*map(len, rows)} or {_WIDTHS[0]}
    width = max(widths)
    if len(widths) > 1 or width not in _WIDTHS:
        raise ValueError(f"an event has {_WIDTHS[0]} values, or with its grad mode {_WIDTHS[1]}")
    flat = array("q", chain.from_iterable(rows))
    return [flat[column::width] for column in range(width)]


def _block(address: int, size: int, sequence: int, stack: int, owner: int, thread: int) -> LiveBlock:
    return LiveBlock(
        address=address,
        size=size,
        requested=size,
        stack=stack or NO_STACK,
        sequence=sequence,
        owner=owner,
        thread=thread,
    )
