"""Curves in the JSON report: bands as their changes, and each stack once, by number. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, get_args

from cudamem_testing.model.curves import Band, Curve, Origin, Part, Stretch
from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.model.stacks import Origin as FrameOrigin
from cudamem_testing.report.codec import TEXT, WHOLE, Codec, Json, listed, one_of, optional, parsed, record, row

_ORIGIN = one_of(*get_args(Origin))
_FRAME = row("[file, line, function, origin]", TEXT, WHOLE, TEXT, one_of(*get_args(FrameOrigin)))
_NUMBERS = listed(WHOLE)


class StackNumbers:
    """Numbers the stacks of a report, and the frames in them, in the order in which they are first met."""

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[Frame, ...], int] = {}

    def number(self, stack: Stack) -> int:
        """The number of a stack."""
        number = self._stacks.setdefault(stack.frames, len(self._stacks))
        if number == len(self._stacks) - 1:
            for frame in stack.frames:
                self._frames.setdefault(frame, len(self._frames))
        return number

    def frames(self) -> Iterator[list[object]]:
        """All frames that were met."""
        for frame in self._frames:
            yield [frame.file, frame.line, frame.function, frame.origin]

    def stacks(self) -> Iterator[list[int]]:
        """All stacks that were met, as numbers of frames, innermost first."""
        for frames in self._stacks:
            yield [self._frames[frame] for frame in frames]


def read_stacks(data: Mapping[str, Any]) -> tuple[Stack, ...]:
    """The stacks of a report.

    Raises:
        ValueError: where a part is of another type, or a stack refers to a missing frame.
    """
    frames = [Frame(*one) for one in listed(_FRAME).read(data.get("frames", []), "frames")]
    found = []
    for number, stack in enumerate(listed(_NUMBERS).read(data.get("stacks", []), "stacks")):
        found.append(Stack(tuple(_at(frames, frame, f"stacks[{number}]", "frame") for frame in stack)))
    return tuple(found)


def write_curve(curve: Curve, stacks: StackNumbers) -> Json:
    """One curve."""
    data: Json = _CURVE.write(curve)
    data["live"] = [write_part(part, stacks) for part in curve.live]
    return data


def write_part(part: Part, stacks: StackNumbers) -> list[object]:
    """What was live of one stack, or for one reason."""
    return [part.bytes, part.blocks, part.label if part.stack is None else stacks.number(part.stack), part.origin]


def read_curve(data: Any, place: str, stacks: Sequence[Stack]) -> Curve:
    """One curve.

    Raises:
        ValueError: where a part is missing, of another type, or refers to missing points or stacks.
    """
    read: Curve = _CURVE.read(data, place)
    points = len(read.moments)
    if read.times is not None and len(read.times) != points:
        raise ValueError(f"{place}.times has {len(read.times)} entries for {points} points")
    ends = [read.peak, *(end for one in read.stretches for end in (one.first, one.last))]
    ends += [end for band in read.bands for end, _ in band.steps]
    for end in ends:
        _at(range(points), end, place, "point")
    for band in read.bands:
        if any(earlier >= later for (earlier, _), (later, _) in pairwise(band.steps)):
            raise ValueError(f"{place}.bands: the points of {band.label!r} are not in order")
    parts = []
    given = data.get("live", [])
    for number, part in enumerate(listed(_ANYTHING).read(given, f"{place}.live")):
        where = f"{place}.live[{number}]"
        kind = _NAMED if isinstance(part, list) and len(part) == 4 and isinstance(part[2], str) else _STACKED
        size, blocks, owner, origin = kind.read(part, where)
        if isinstance(owner, str):
            parts.append(Part(size, blocks, None, owner, origin))
        else:
            parts.append(Part(size, blocks, _at(stacks, owner, where, "stack"), "", origin))
    return Curve(
        read.device,
        read.by,
        read.moments,
        read.times,
        read.bands,
        read.stretches,
        read.peak,
        tuple(parts),
        read.events,
        read.notes,
    )


def _at(some: Sequence[Any], number: int, place: str, noun: str) -> Any:
    if not 0 <= number < len(some):
        raise ValueError(f"{place}: there is no {noun} {number}, there are {len(some)}")
    return some[number]


def _steps() -> Codec:
    """``[point, bytes, point, bytes, ...]``."""

    def read(value: Any, place: str) -> Any:
        flat = _NUMBERS.read(value, place)
        if len(flat) % 2:
            raise ValueError(f"{place} is no list of pairs")
        return tuple(zip(flat[::2], flat[1::2], strict=True))

    return Codec(lambda steps: [number for pair in steps for number in pair], read)


_ANYTHING = Codec(lambda value: value, lambda value, place: value)
_STACKED = row("[bytes, blocks, stack, origin]", WHOLE, WHOLE, WHOLE, _ORIGIN)
_NAMED = row("[bytes, blocks, label, origin]", WHOLE, WHOLE, TEXT, _ORIGIN)
_STRETCH = row("[name, first point, last point]", TEXT, WHOLE, WHOLE)
_CURVE = record(
    Curve,
    skip=("live",),
    device=parsed(Device.parse),
    times=optional(_NUMBERS),
    bands=listed(record(Band, steps=_steps())),
    stretches=listed(
        Codec(
            lambda one: [one.name, one.first, one.last],
            lambda value, place: Stretch(*_STRETCH.read(value, place)),
        )
    ),
)
