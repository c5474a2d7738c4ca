"""Flame graphs of a recording: folded stacks, speedscope's JSON, and torch's pickle.

*Live* weighs each stack by the bytes that were live at a moment, *volume* by all bytes that it allocated in the record,
whenever they were freed. Folded stacks are lines of ``outermost;...;innermost BYTES`` (B. Gregg, FlameGraph), which
flamegraph.pl, inferno and speedscope read. The JSON is that of https://www.speedscope.app/file-format-schema.json: a
sampled profile, weights in bytes, stacks outermost first. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cudamem_testing.model.blocks import LiveSet
from cudamem_testing.model.curves import Part
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.show.printable import one_line
from cudamem_testing.snapshots.record import Kind, Recording
from cudamem_testing.snapshots.replay import Replay

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


@dataclass(frozen=True, slots=True)
class Flame:
    """Bytes and blocks by stack, largest first, what has no stack by its reason. ``title`` says what they are of."""

    title: str
    parts: tuple[Part, ...]

    @property
    def total(self) -> int:
        """Bytes of all stacks."""
        return sum(part.bytes for part in self.parts)

    def folded(self) -> Iterator[str]:
        """A line a stack. Stacks with equal names are one line; a semicolon in a name becomes a colon."""
        sums: dict[str, int] = {}
        for part in self.parts:
            line = ";".join(name.replace(";", ":") for name in _names(part))
            sums[line] = sums.get(line, 0) + part.bytes
        for line, size in sums.items():
            yield f"{line} {size}"

    def speedscope(self, version: str) -> dict[str, Any]:
        """The file as a plain value; ``version`` is that of this package."""
        frames: dict[tuple[str, str, int], int] = {}
        samples, weights = [], []
        for part in self.parts:
            samples.append([frames.setdefault(one, len(frames)) for one in _frames(part)])
            weights.append(part.bytes)
        profile = {
            "type": "sampled",
            "name": self.title,
            "unit": "bytes",
            "startValue": 0,
            "endValue": sum(weights),
            "samples": samples,
            "weights": weights,
        }
        return {
            "$schema": SCHEMA,
            "exporter": f"cudamem_testing@{version}",
            "name": self.title,
            "activeProfileIndex": 0,
            "shared": {"frames": [_frame(*one) for one in frames]},
            "profiles": [profile],
        }


def flame_of(live: LiveSet, title: str, before: str) -> Flame:
    """What was live, by stack; ``before`` is what blocks from before the record are called."""
    sums: dict[Stack | str, list[int]] = {}
    for block in live:
        key: Stack | str = block.stack
        if not block.stack.frames:
            owner = before if block.owner is None else f"left by {block.owner}"
            key = f"({one_line(owner if block.preexisting else live.stackless)})"
        _add(sums, key, block.size, 1)
    if live.rounding > 0:
        _add(sums, "(counted by the allocator beyond its blocks' sizes)", live.rounding, 0)
    return Flame(title, _parts(sums))


def volume(replayed: Replay, title: str) -> Flame:
    """All that was allocated in the record, by stack, also what was freed again."""
    recording = replayed.recording
    by_number: dict[int, list[int]] = {}
    kinds, stacks = recording.events.kinds, recording.events.stacks
    place = kinds.find(Kind.ALLOC)
    while place >= 0:
        both = by_number.setdefault(stacks[place], [0, 0])
        both[0] += replayed.sizes[place]
        both[1] += 1
        place = kinds.find(Kind.ALLOC, place + 1)
    return Flame(title, _parts(_by_stack(recording, by_number)))


def _by_stack(recording: Recording, by_number: dict[int, list[int]]) -> dict[Stack | str, list[int]]:
    sums: dict[Stack | str, list[int]] = {}
    for number, (size, blocks) in by_number.items():
        stack = recording.stacks[number]
        _add(sums, stack if stack.frames else f"({one_line(recording.stackless)})", size, blocks)
    return sums


def _add(sums: dict[Stack | str, list[int]], key: Stack | str, size: int, blocks: int) -> None:
    both = sums.setdefault(key, [0, 0])
    both[0] += size
    both[1] += blocks


def _parts(sums: dict[Stack | str, list[int]]) -> tuple[Part, ...]:
    parts = []
    for key, (size, blocks) in sorted(sums.items(), key=lambda one: -one[1][0]):
        if isinstance(key, str):
            parts.append(Part(size, blocks, None, key, "stackless"))
        else:
            parts.append(Part(size, blocks, key, "", "library" if key.project_frame is None else "project"))
    return tuple(parts)


def _names(part: Part) -> Iterator[str]:
    """The calls of a stack, outermost first."""
    for name, file, line in _frames(part):
        yield f"{name} ({file}{f':{line}' if line else ''})" if file else name


def _frames(part: Part) -> Iterator[tuple[str, str, int]]:
    """Name, file and line of each call, outermost first; a part without a stack is one call."""
    frames: tuple[Frame, ...] = () if part.stack is None else part.stack.frames
    if not frames:
        yield one_line(part.label) or "?", "", 0
    for frame in reversed(frames):
        yield one_line(frame.function) or "?", one_line(frame.file), frame.line


def _frame(name: str, file: str, line: int) -> dict[str, Any]:
    return {"name": name, **({"file": file} if file else {}), **({"line": line} if line else {})}
