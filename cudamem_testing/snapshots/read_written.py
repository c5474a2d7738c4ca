"""Reads a snapshot of the CPU that this package wrote: the device and the numbers of blocks are kept beside what
torch's viewers read (:mod:`export`), and the segments that only they need are left out. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import Locator
from cudamem_testing.snapshots.frames import FrameTable
from cudamem_testing.snapshots.read_cpu import KINDS, BlockRow, EventRow, read_cpu
from cudamem_testing.snapshots.record import Kind, Recording
from cudamem_testing.snapshots.rows import Trace

#: The key of a snapshot that holds what torch's format cannot say.
KEY = "cudamem"
CPU = Device("cpu")
_KINDS = {Kind(code).name.lower(): place for place, code in enumerate(KINDS)}
_MOST = 2**62


def is_of_cpu(snapshot: Mapping[str, Any]) -> bool:
    """Whether a snapshot holds a recording of the CPU."""
    more = snapshot.get(KEY)
    return isinstance(more, dict) and more.get("device") == "cpu"


def read_written_cpu(snapshot: Mapping[str, Any], locator: Locator | None = None) -> Recording:
    """The recording of the CPU in a snapshot for which :func:`is_of_cpu` holds.

    Entries that are no blocks or events are left out, and counted in a note.

    Raises:
        SnapshotError: if the numbers do not fit into a recording.
    """
    more: dict[str, Any] = snapshot[KEY]
    frames, left_out = FrameTable(), [0]
    blocks = [*_blocks(snapshot["segments"], frames, left_out)]
    traces = snapshot.get("device_traces")
    first = traces[0] if isinstance(traces, list) and traces and isinstance(traces[0], list) else []
    events = [*_events(Trace(first), frames, left_out)]
    resolve = frames.resolver(locator)
    owners = more.get("owners")
    return read_cpu(
        blocks,
        events,
        lambda number: resolve(number - 1),
        owners={number: name for number, name in enumerate(owners, 1) if isinstance(name, str)}
        if isinstance(owners, list)
        else None,
        first=_size(more, "first"),
        truncated=more.get("truncated") is True,
        notes=[f"entries that are no blocks or events of the CPU were left out ({left_out[0]} times)"]
        if left_out[0]
        else [],
    )


def _blocks(segments: list[Any], frames: FrameTable, left_out: list[int]) -> Iterator[BlockRow]:
    for segment in segments:
        inner = segment.get("blocks") if isinstance(segment, dict) else None
        for one in inner if isinstance(inner, list) else []:
            if not isinstance(one, dict) or one.get("state") != "active_allocated" or not _has_place(one, "address"):
                left_out[0] += 1
                continue
            owner, thread = _size(one, "owner"), _size(one, "thread")
            yield one["address"], one["size"], _size(one, "sequence"), _stack(one, frames), owner, thread


def _events(trace: Iterable[Any], frames: FrameTable, left_out: list[int]) -> Iterator[EventRow]:
    for one in trace:
        kind = _KINDS.get(one.get("action", "")) if isinstance(one, dict) else None
        if kind is None or not _has_place(one, "device_free" if KINDS[kind] == Kind.OOM else "addr"):
            known = isinstance(one, dict) and one.get("action") in ("segment_alloc", "segment_free", "free_completed")
            left_out[0] += not known
            continue
        address = one["device_free" if KINDS[kind] == Kind.OOM else "addr"]
        nanoseconds = 1000 * _size(one, "time_us")
        row = (address, one["size"], _size(one, "sequence"), nanoseconds, _stack(one, frames))
        yield (*row, _size(one, "owner"), _size(one, "thread"), kind)


def _stack(one: dict[str, Any], frames: FrameTable) -> int:
    return frames.number(one.get("frames")) + 1


def _has_place(one: dict[str, Any], address: str) -> bool:
    return all(type(one.get(key)) is int and 0 <= one[key] < _MOST for key in (address, "size"))


def _size(one: Mapping[str, Any], key: str) -> int:
    value = one.get(key)
    return value if type(value) is int and 0 <= value < _MOST // 1000 else 0
