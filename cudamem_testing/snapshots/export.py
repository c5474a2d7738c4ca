"""Exports a recording as a snapshot that pytorch.org/memory_viz and ``torch.cuda._memory_viz`` load.

The format is the dict of ``torch.cuda.memory._snapshot()``, pickled with protocol 4. A recording of the CPU has no
segments, so each block gets a separate segment, and segment events are added around allocations and frees; its name and
the numbers of its blocks are kept under a key that viewers pass over (:mod:`read_written`).
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from cudamem_testing.show.atomic_files import replace_file
from cudamem_testing.snapshots.read_written import KEY
from cudamem_testing.snapshots.record import NO_STACK, Events, Extra, Kind, LiveBlock, Recording, Segment

PROTOCOL = 4
_UNLIMITED = -1


def write(path: str | Path, snapshot: Recording | dict[str, Any]) -> None:
    """Write a recording, or a snapshot's dict, to a file atomically."""
    document = to_snapshot(snapshot) if isinstance(snapshot, Recording) else snapshot
    replace_file(Path(path), partial(pickle.dump, document, protocol=PROTOCOL))  # not all of a large file at once


def to_snapshot(recording: Recording) -> dict[str, Any]:
    """The dict of ``torch.cuda.memory._snapshot()``; the recording's device keeps its index, the CPU becomes 0."""
    index = recording.device.index or 0
    frames = _Frames(recording)
    real = recording.device.has_segments
    segments = recording.segments if real else tuple(map(_segment_of, recording.blocks))
    trace = list(_trace(recording, frames, segments=not real))
    settings = recording.settings
    return {
        **(recording.extra or {}),
        **({} if real else {KEY: _of_cpu(recording)}),
        "segments": list(_segments(recording, segments, frames, index)),
        "device_traces": [trace if place == index else [] for place in range(index + 1)],
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
    known = {"sequence": sequence, "owner": owner, "thread": thread}
    return {key: value for key, value in known.items() if value is not None}


def _free(start: int, end: int) -> dict[str, Any]:
    return {"address": start, "size": end - start, "requested_size": 0, "state": "inactive", "frames": []}


def _trace(recording: Recording, frames: _Frames, segments: bool) -> Iterator[dict[str, Any]]:
    events, alloc, freed = recording.events, Kind.ALLOC, Kind.FREE_REQUESTED
    for place, kind in enumerate(events.kinds):
        entry = _entry(recording, events, place, Kind(kind), frames)
        if not segments or kind not in (alloc, freed):
            yield entry
        elif kind == alloc:
            yield {**entry, "action": "segment_alloc"}
            yield entry
        else:
            yield entry
            yield {**entry, "action": "free_completed"}
            yield {**entry, "action": "segment_free"}


def _entry(recording: Recording, events: Events, place: int, kind: Kind, frames: _Frames) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "action": kind.name.lower(),
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
