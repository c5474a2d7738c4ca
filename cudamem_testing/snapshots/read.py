"""Reads a snapshot of CUDA's allocator: the dict of ``torch.cuda.memory._snapshot()``, or the list of its segments.

Snapshots of every torch from 2.7 on are read by their contents, never by a version: missing block addresses follow
from the segment's address and the sizes before; pools, expandable segments, annotations and settings are read if
present; unknown keys are kept as ``extra``. Pinned host memory, which torch 2.14 records on request,
is read if the device ``host`` is named. What does not fit (an entry that is not an event, sizes that do not add
up, a clock that runs backwards) is left out or repaired, and counted in the recording's notes.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import operator
import sys
from array import array
from collections.abc import Iterable, Mapping
from itertools import islice, pairwise
from typing import Any, TypeGuard

from cudamem_testing.model.devices import Device
from cudamem_testing.model.pools import MAIN_POOL, Pool
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.stacks import Locator
from cudamem_testing.safe_access import type_name
from cudamem_testing.snapshots.frames import FrameTable
from cudamem_testing.snapshots.notes import Notes
from cudamem_testing.snapshots.read_written import CPU, is_of_cpu, read_written_cpu
from cudamem_testing.snapshots.record import (
    Annotation,
    Events,
    Extra,
    Kind,
    LiveBlock,
    Recording,
    Segment,
    Settings,
    SnapshotError,
    Stacks,
)
from cudamem_testing.snapshots.rows import ACTION, Trace, plain

ACTIONS = {kind.name.lower(): int(kind) for kind in Kind if kind is not Kind.OTHER}
_LIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")
_NOT_LIVE = ("inactive", "inactive_split")
_TOP = frozenset({"segments", "device_traces", "allocator_settings", "external_annotations"})
_SEGMENT = frozenset(
    {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type"}
    | {"segment_pool_id", "is_expandable", "frames", "blocks"}
)
_BLOCK = frozenset({"address", "size", "requested_size", "state", "frames"})
_EVENT = frozenset({"action", "addr", "device_free", "size", "stream", "time_us", "frames", "pool_id"})
_EMPTY_VALUES = ("", "N/A", None)
_OTHER = int(Kind.OTHER)
_MOST = 2**63
#: Largest sum of all sizes, in bytes: below this no sum of rounded sizes exceeds 64 bits.
_MOST_TOGETHER = 2**60
_MOST_POOLS = 2**32
_HOST = -1  # the index of pinned host memory, as torch writes it
_MOST_DEVICES = 1024


def devices(snapshot: object) -> tuple[Device, ...]:
    """The CUDA devices in a snapshot; the CPU in one that this package wrote of it.

    Raises:
        SnapshotError: if ``snapshot`` is not a snapshot.
    """
    top = _top(snapshot)
    if is_of_cpu(top):
        return (CPU,)
    named = (segment.get("device", 0) for segment in _dicts(top["segments"]))
    found = {index for index in named if _is_index(index)}
    traces = _list(top.get("device_traces"))
    found |= {index for index, trace in enumerate(traces[:_MOST_DEVICES]) if isinstance(trace, list) and trace}
    return tuple(Device("cuda", index) for index in sorted(found))


def read(
    snapshot: object, device: Device | None = None, locator: Locator | None = None, max_entries: int | None = None
) -> Recording:
    """One device's recording; the only card's unless a device is named (``host``: pinned memory).

    ``locator`` marks the frames of the project (default: paths unchanged, shortened if they belong to a
    library). ``max_entries`` is the size of the history's ring: with it the recording knows whether
    older events were dropped.

    Raises:
        SnapshotError: if ``snapshot`` is not a snapshot, or has several devices and none was named.
    """
    top = _top(snapshot)
    if device is None or device == CPU or is_of_cpu(top):
        known = devices(snapshot)
        if (device or CPU) == CPU and known == (CPU,):
            return read_written_cpu(top, locator)
        if device is not None:
            raise SnapshotError(
                f"the snapshot is not of {device}: it is of {', '.join(map(str, known)) or 'no device'}"
            )
        if len(known) > 1:
            raise SnapshotError(
                f"the snapshot has several devices, name one of {', '.join(map(str, known))} (--device)"
            )
        device = known[0] if known else Device("cuda", 0)
    notes, frames = Notes(), FrameTable()
    pools: dict[Pool, int] = {MAIN_POOL: 0}
    index, raw, trace = _parts(top, device)
    segments, blocks = _segments(raw, index, frames, pools, notes)
    events = _events(trace, frames, pools, notes)
    _check_sizes(events, segments, blocks)
    if not len(events):
        notes.add("no events: the history was off, so only what is live now is known")
    return Recording(
        device=device,
        blocks=tuple(blocks),
        events=events,
        segments=tuple(segments),
        pools=tuple(pools)[1:],
        settings=_settings(top.get("allocator_settings"), segments, notes),
        annotations=tuple(_annotations(top.get("external_annotations"), index, notes)),
        stacks=Stacks(frames.resolver(locator)),
        truncated=None if max_entries is None else len(events) >= max_entries,
        stackless=_why_stackless(len(frames), blocks),
        notes=notes.texts(),
        extra=_unknown(top, _TOP),
    )


def _check_sizes(events: Events, segments: list[Segment], blocks: list[LiveBlock]) -> None:
    together = sum(events.sizes) + sum(segment.size for segment in segments) + sum(block.size for block in blocks)
    if together >= _MOST_TOGETHER:
        raise SnapshotError(f"its sizes add up to {format_size(together)}, which no device can reach")


def _why_stackless(stacks: int, blocks: list[LiveBlock]) -> str:
    if stacks:
        return "no Python stack: allocated by one of torch's threads, as in backward"
    return "no Python stacks: the history was off, or kept without them" if blocks else "no Python stack"


# --- the outer shape ---


def _top(snapshot: object) -> Mapping[str, Any]:
    if isinstance(snapshot, list):
        snapshot = {"segments": snapshot}
    if not isinstance(snapshot, Mapping):
        raise SnapshotError(f"not a snapshot: a {type_name(snapshot)}, not the dict of torch.cuda.memory._snapshot()")
    if not isinstance(snapshot.get("segments"), list):
        keys = ", ".join(key[:40] for key in list(snapshot)[:8] if isinstance(key, str)) or "none"
        raise SnapshotError(f"not a snapshot: no list of 'segments' among its keys ({keys})")
    return snapshot


def _parts(top: Mapping[str, Any], device: Device) -> tuple[int, list[Any], Any]:
    """The device's index in the snapshot, the segments to search, and its events."""
    if device.pseudo:
        return _HOST, _list(top.get("host_segments")), _list(top.get("host_traces"))
    index = device.index or 0
    traces = _list(top.get("device_traces"))
    return index, top["segments"], traces[index] if index < len(traces) else []


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: object) -> Iterable[dict[str, Any]]:
    return (item for item in _list(value) if isinstance(item, dict))


def _unknown(value: Mapping[str, Any], known: frozenset[str]) -> Extra | None:
    return {key: plain(value[key]) for key in value if key not in known} or None


def _is_index(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _MOST_DEVICES


def _is_size(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _MOST


def _pool(value: object, pools: dict[Pool, int]) -> Pool:
    """The pool's id, numbered when first met; pairs are lists in JSON.

    torch numbers pools from 1 on. Larger numbers are not its own, and pairs of them could be chosen so that all
    hashes are equal.
    """
    if (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and all(_is_size(one) and one < _MOST_POOLS for one in value)
    ):
        pool = (int(value[0]), int(value[1]))
        pools.setdefault(pool, len(pools))
        return pool
    return MAIN_POOL


# --- segments and blocks ---


def _segments(
    raw: list[Any], index: int, frames: FrameTable, pools: dict[Pool, int], notes: Notes
) -> tuple[list[Segment], list[LiveBlock]]:
    segments: list[Segment] = []
    blocks: list[LiveBlock] = []
    seen: set[int] = set()  # of block lists: one that is shared would be read once per segment
    for item in raw:
        if not isinstance(item, dict):
            notes.add("a segment that is not a dict was left out")
            continue
        if item.get("device", 0) != index:
            continue
        inner = item.get("blocks")
        address, size = item.get("address"), item.get("total_size")
        if not _is_size(address) or not _is_size(size) or not isinstance(inner, list) or id(inner) in seen:
            notes.add("a segment without its own address, size or blocks was left out")
            continue
        seen.add(id(inner))
        segment = Segment(
            address=address,
            size=size,
            stream=item["stream"] if _is_size(item.get("stream")) else 0,
            pool=_pool(item.get("segment_pool_id"), pools),
            expandable=item.get("is_expandable") is True,
            small=item.get("segment_type") == "small" if item.get("segment_type") in ("small", "large") else None,
            stack=frames.number(item.get("frames")),
            extra=_unknown(item, _SEGMENT),
        )
        segments.append(segment)
        blocks += _blocks(segment, inner, frames, notes)
    segments.sort(key=lambda segment: segment.address)
    overlapping = [after for before, after in pairwise(segments) if after.address < before.end]
    notes.add("a segment begins inside another: their sizes do not add up", len(overlapping))
    return segments, blocks


def _blocks(segment: Segment, raw: list[Any], frames: FrameTable, notes: Notes) -> Iterable[LiveBlock]:
    place = segment.address
    for item in raw:
        if not isinstance(item, dict) or not _is_size(item.get("size")):
            notes.add("a block that is not a dict with a size was left out")
            continue
        size = item["size"]
        address = item.get("address", place)
        if not _is_size(address) or not place <= address <= segment.end:
            notes.add("a block's address does not follow from the sizes before it: recomputed")
            address = place
        place = address + size
        if place > segment.end:
            notes.add("a block extends beyond its segment: sizes do not add up")
        state = item.get("state")
        if state not in _LIVE:
            if state not in _NOT_LIVE:
                notes.add("a block with an unknown state counts as free")
            continue
        requested = item.get("requested_size")
        if not _is_size(requested) or requested > size:
            notes.add("a block without a valid requested size: its size is used instead")
            requested = size
        yield LiveBlock(
            address=address,
            size=size,
            requested=requested,
            stack=frames.number(item.get("frames")),
            stream=segment.stream,
            pool=segment.pool,
            awaiting_free=state != "active_allocated",
            extra=_unknown(item, _BLOCK) if len(item) != len(_BLOCK) else None,
        )
    if place != segment.end:
        notes.add("the blocks of a segment do not fill it: sizes do not add up")


# --- events ---


def _events(raw: object, frames: FrameTable, pools: dict[Pool, int], notes: Notes) -> Events:
    if not isinstance(raw, list):
        notes.add("the trace of the device is not a list: left out")
        return Events()
    trace = Trace(raw)
    found = _columns(trace)
    if found is None:
        trace = Trace(list(_repaired(trace, notes)))
        found = _columns(trace)
    if found is None or not len(trace):
        return Events()
    kinds, columns = found
    keys = trace.keys
    extra = _unknown_of_events(trace, keys)
    for place in _places(kinds, _OTHER):
        action = trace.event(place)["action"]
        notes.add(f"events of the kind {action[:40]!r} are unknown")
        extra.setdefault(place, {})["action"] = action
    for place in _places(kinds, Kind.OOM):
        free = trace.event(place).get("device_free")
        columns["addr"][place] = free if _is_size(free) else 0
    times = columns["time_us"] if "time_us" in keys else None
    stacks = trace.numbered("frames", None)
    if times is not None:
        notes.add("the clock of the events runs backwards", sum(map(operator.gt, times, islice(times, 1, None))))
    return Events(
        kinds=kinds,
        addresses=columns["addr"],
        sizes=columns["size"],
        stacks=array("q", stacks.mapped(frames.number)),
        streams=columns["stream"],
        times=times,
        pools=_pool_column(trace, pools) if "pool_id" in keys else None,
        grads=frames.grad_modes(stacks),
        extra=extra,
    )


def _columns(trace: Trace) -> tuple[bytes, dict[str, array[int]]] | None:
    """The kinds and numbers of all entries at C speed; ``None`` if any entry needs a closer look."""
    if not trace.types <= {dict}:
        return None
    defaults = {"size": None, "addr": 0, "stream": 0, "time_us": 0}
    try:
        kinds = bytes(trace.numbered(ACTION, None).mapped(_kind))
        columns = {key: trace.numbers(key, default) for key, default in defaults.items()}
    except (TypeError, OverflowError):
        return None
    return None if any(map(_any_negative, columns.values())) else (kinds, columns)


def _kind(action: object) -> int:
    if not isinstance(action, str):
        raise TypeError(f"{type_name(action)} is no kind of event")
    return ACTIONS.get(action, _OTHER)


def _any_negative(column: array[int]) -> bool:
    """Whether the highest byte of any number has the bit of a sign."""
    return not memoryview(column.tobytes())[7 if sys.byteorder == "little" else 0 :: 8].tobytes().isascii()


def _repaired(raw: Iterable[Any], notes: Notes) -> Iterable[dict[str, Any]]:
    """The entries that are events, with invalid values removed."""
    for item in raw:
        if not isinstance(item, dict) or not isinstance(item.get("action"), str) or not _is_size(item.get("size")):
            notes.add("an entry of the trace that is not an event with action and size was left out")
        elif not _is_size(item.get("addr", 0)):
            notes.add("an event without a valid address was left out")
        else:
            odd = [key for key in ("stream", "time_us") if key in item and not _is_size(item[key])]
            notes.add("an event's stream or time is invalid: dropped", len(odd))
            yield {key: value for key, value in item.items() if key not in odd} if odd else item


def _places(kinds: bytes, kind: int) -> Iterable[int]:
    place = kinds.find(kind)
    while place >= 0:
        yield place
        place = kinds.find(kind, place + 1)


def _pool_column(trace: Trace, pools: dict[Pool, int]) -> array[int]:
    return array("q", trace.numbered("pool_id", None).mapped(lambda pool: pools[_pool(pool, pools)]))


def _unknown_of_events(trace: Trace, keys: frozenset[str]) -> dict[int, dict[str, Any]]:
    """Values of unknown keys of events."""
    found: dict[int, dict[str, Any]] = {}
    unknown = keys - _EVENT
    if len(unknown) <= 4:  # one quick pass per key; with many keys one slow pass, to stay linear
        for key in unknown:
            values = trace.numbered(key, "")
            if all(value in _EMPTY_VALUES for value in values.different):
                continue
            for place, value in enumerate(values):
                if value not in _EMPTY_VALUES:
                    found.setdefault(place, {})[key] = value
        return found
    for place, entry in enumerate(trace):
        told = {key: entry[key] for key in entry.keys() - _EVENT if entry[key] not in _EMPTY_VALUES}
        if told:
            found[place] = told
    return found


# --- settings and annotations ---


def _settings(raw: object, segments: list[Segment], notes: Notes) -> Settings:
    if not isinstance(raw, dict):
        return Settings(expandable=any(segment.expandable for segment in segments))
    limit = raw.get("max_split_size")
    roundup = raw.get("roundup_power2_divisions")
    divisions: tuple[int, ...] = ()
    if isinstance(roundup, dict):
        values = list(roundup.values())
        if len(values) <= 64 and all(map(_is_size, values)):
            divisions = tuple(values) if any(values) else ()
        else:
            notes.add("the setting roundup_power2_divisions is not understood")
    return Settings(
        expandable=raw.get("expandable_segments") is True,
        max_split_size=limit if isinstance(limit, int) and 0 < limit < _MOST - 1 else None,
        roundup=divisions,
        raw=raw,
    )


def _annotations(raw: object, index: int, notes: Notes) -> Iterable[Annotation]:
    for item in _list(raw):
        if not isinstance(item, dict) or not _is_size(item.get("time_us")):
            notes.add("an annotation without a time was left out")
        elif item.get("device", index) == index:
            known = frozenset({"name", "stage", "time_us", "device"})
            name, stage = item.get("name"), item.get("stage")
            text = (name if isinstance(name, str) else "", stage if isinstance(stage, str) else "")
            yield Annotation(*text, item["time_us"], _unknown(item, known))
