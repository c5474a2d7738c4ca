"""Exports a recording as a snapshot that pytorch.org/memory_viz and ``torch.cuda._memory_viz`` load.

The format is the dict of ``torch.cuda.memory._snapshot()``, pickled. Events, the most of a large file, are made and
written a thousand at a time (:mod:`long_pickle`). A recording of the CPU has no segments, so each block gets a separate
segment, and segment events are added around allocations and frees; its name and the numbers of its blocks are kept
under a key that viewers pass over (:mod:`read_written`).
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from cudamem_testing.model.pools import MAIN_POOL
from cudamem_testing.show.atomic_files import replace_file
from cudamem_testing.snapshots import long_pickle
from cudamem_testing.snapshots.read_written import KEY
from cudamem_testing.snapshots.record import NO_STACK, Events, Extra, Kind, LiveBlock, Recording, Segment

PROTOCOL = 4
_UNLIMITED = -1
_TRACES = "device_traces"
_ACTIONS = {kind: kind.name.lower() for kind in Kind}
_KEYS = ("action", "addr", "device_free", "size", "stream", "time_us", "pool_id", "frames")
_NUMBERS = ("sequence", "owner", "thread")


def write(path: str | Path, snapshot: Recording | dict[str, Any]) -> None:
    """Write a recording, or a snapshot's dict, to a file atomically."""
    if isinstance(snapshot, Recording):
        replace_file(Path(path), partial(_dump, snapshot))
    else:
        replace_file(Path(path), partial(pickle.dump, snapshot, protocol=PROTOCOL))


def to_snapshot(recording: Recording) -> dict[str, Any]:
    """The dict of ``torch.cuda.memory._snapshot()``; the recording's device keeps its index, the CPU becomes 0."""
    frames = _Frames(recording)
    index = recording.device.index or 0
    return {**_document(recording, frames), _TRACES: [*([] for _ in range(index)), [*_trace(recording, frames)]]}


def _dump(recording: Recording, stream: BinaryIO) -> None:
    """Pickle what :func:`to_snapshot` returns, without having it all."""
    frames = _Frames(recording)
    shared = [
        *(frames.of(number) for number in set(recording.events.stacks)),
        *(*_ACTIONS.values(), *_KEYS, *_NUMBERS),
        *(MAIN_POOL, *recording.pools),
        *_values(recording.events.extra.values()),
    ]
    document, rows = _document(recording, frames), _trace(recording, frames)
    long_pickle.dump(stream, document, _TRACES, recording.device.index or 0, rows, shared)


def _values(extras: Iterable[Extra]) -> Iterable[Any]:
    """Unknown keys and values that may be those of several events or, as lists and dicts, hold themselves."""
    both = (value for extra in extras for value in (*extra, *extra.values()))
    return {id(value): value for value in both if not isinstance(value, int | float)}.values()


def _document(recording: Recording, frames: _Frames) -> dict[str, Any]:
    """A snapshot without its events."""
    index, real = recording.device.index or 0, recording.device.has_segments
    segments = recording.segments if real else tuple(map(_segment_of, recording.blocks))
    settings = recording.settings
    return {
        **(recording.extra or {}),
        **({} if real else {KEY: _of_cpu(recording)}),
        "segments": list(_segments(recording, segments, frames, index)),
        "allocator_settings": dict(
            settings.raw
            or {
                "max_split_size": settings.max_split_size or _UNLIMITED,
                "expandable_segments": settings.expandable,
            }
        ),
        "external_annotations": [
            {"name": one.name, "stage": one.stage, "device": index, "time_us": one.time, **(one.extra or {})}
            for one in recording.annotations
        ],
    }


def _of_cpu(recording: Recording) -> dict[str, Any]:
    """What torch's format has no place for: the device, the number of the first event, who owns blocks by number."""
    most = max(recording.owners, default=0)
    return {
        "device": str(recording.device),
        "first": recording.first,
        "truncated": recording.truncated is True,
        "owners": [recording.owners.get(number, "") for number in range(1, most + 1)],
    }


class _Frames:
    """Frames as dicts; equal stacks share one list, as in torch, which keeps the pickle small."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._lists: dict[int, list[dict[str, Any]]] = {NO_STACK: []}
        self._frames: dict[tuple[str, int, str], dict[str, Any]] = {}

    def of(self, number: int) -> list[dict[str, Any]]:
        """The frames of a stack, innermost first."""
        found = self._lists.get(number)
        if found is None:
            found = self._lists[number] = [
                self._frames.setdefault(
                    (frame.file, frame.line, frame.function),
                    {"filename": frame.file, "line": frame.line, "name": frame.function},
                )
                for frame in self._recording.stacks[number].frames
            ]
        return found


def _segment_of(block: LiveBlock) -> Segment:
    return Segment(address=block.address, size=block.size, small=False)


def _segments(
    recording: Recording, segments: tuple[Segment, ...], frames: _Frames, index: int
) -> Iterator[dict[str, Any]]:
    blocks = sorted(recording.blocks, key=lambda block: block.address)
    at = 0
    for segment in sorted(segments, key=lambda segment: segment.address):
        while at < len(blocks) and blocks[at].address < segment.address:
            at += 1
        first = at
        while at < len(blocks) and blocks[at].address < segment.end:
            at += 1
        inside = blocks[first:at]
        allocated = [block for block in inside if not block.awaiting_free]
        yield {
            "device": index,
            "address": segment.address,
            "total_size": segment.size,
            "allocated_size": sum(block.size for block in allocated),
            "active_size": sum(block.size for block in inside),
            "requested_size": sum(block.requested for block in allocated),
            "stream": segment.stream,
            "segment_type": "small" if segment.small else "large",
            "segment_pool_id": segment.pool,
            "is_expandable": segment.expandable,
            "frames": frames.of(segment.stack),
            "blocks": list(_pieces(segment, inside, frames)),
            **(segment.extra or {}),
        }


def _pieces(segment: Segment, blocks: list[LiveBlock], frames: _Frames) -> Iterator[dict[str, Any]]:
    """The blocks of a segment and the free ranges between them."""
    place = segment.address
    for block in blocks:
        if block.address > place:
            yield _free(place, block.address)
        yield {
            "address": block.address,
            "size": block.size,
            "requested_size": block.requested,
            "state": "active_awaiting_free" if block.awaiting_free else "active_allocated",
            "frames": frames.of(block.stack),
            **_numbers(block.sequence, block.owner, block.thread),
            **(block.extra or {}),
        }
        place = max(place, block.address + block.size)
    if place < segment.end:
        yield _free(place, segment.end)


def _numbers(sequence: int | None, owner: int | None, thread: int | None) -> dict[str, int]:
    """What the recorder of the CPU knows of a block."""
    known = zip(_NUMBERS, (sequence, owner, thread), strict=True)
    return {key: value for key, value in known if value is not None}


def _free(start: int, end: int) -> dict[str, Any]:
    return {"address": start, "size": end - start, "requested_size": 0, "state": "inactive", "frames": []}


def _trace(recording: Recording, frames: _Frames) -> Iterator[dict[str, Any]]:
    events, alloc, freed = recording.events, Kind.ALLOC, Kind.FREE_REQUESTED
    segments = not recording.device.has_segments
    for place, kind in enumerate(events.kinds):
        entry = _entry(recording, events, place, Kind(kind), frames)
        if not segments or kind not in (alloc, freed):
            yield entry
        elif kind == alloc:
            yield {**entry, "action": _ACTIONS[Kind.SEGMENT_ALLOC]}
            yield entry
        else:
            yield entry
            yield {**entry, "action": _ACTIONS[Kind.FREE_COMPLETED]}
            yield {**entry, "action": _ACTIONS[Kind.SEGMENT_FREE]}


def _entry(recording: Recording, events: Events, place: int, kind: Kind, frames: _Frames) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "action": _ACTIONS[kind],
        "device_free" if kind == Kind.OOM else "addr": events.addresses[place],
        "size": events.sizes[place],
        "stream": 0 if events.streams is None else events.streams[place],
    }
    if events.times is not None:
        entry["time_us"] = events.times[place]
    if events.pools is not None:
        entry["pool_id"] = recording.pool(events.pools[place])
    if events.sequences is not None:
        owner = None if events.owners is None else events.owners[place]
        thread = None if events.threads is None else events.threads[place]
        entry |= _numbers(events.sequences[place], owner, thread)
    entry["frames"] = frames.of(events.stacks[place])
    extra: Extra | None = events.extra.get(place)
    return {**entry, **extra} if extra else entry
