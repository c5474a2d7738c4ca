"""Snapshots of a simulated card's allocator, from the numbers of the native part. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from array import array
from collections.abc import Set
from pathlib import Path
from typing import Any

from cudamem_testing.recorders.capture import GRAD_MODE
from cudamem_testing.torch_api.backward import backward_code

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
)
STATES = ("inactive", "active_pending_free", "active_allocated")
#: Frames of kernels in Python, which a real card does not have.
_KERNELS = str(Path(__file__).parent)


class SnapshotReader:
    """Reads the numbers of a snapshot one after the other."""

    def __init__(self, numbers: array[int], words: list[str]) -> None:
        self._numbers = numbers
        self._words = words
        self._at = 0

    def read(self, cards: int) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
        """Segments of all cards, and the events of each."""
        stacked: list[tuple[dict[str, Any], int]] = []
        segments: list[dict[str, Any]] = []
        events: list[list[dict[str, Any]]] = []
        for card in range(cards):
            segments += [self._segment(card, stacked) for _ in range(self._one())]
            events.append([self._event(stacked) for _ in range(self._one())])
        lines = self._take(self._one())
        places = zip(self._words[::2], self._words[1::2], lines, strict=False)  # the words may end in an empty one
        frames = [{"name": name, "filename": file, "line": line} for file, name, line in places]
        own = {at for at, frame in enumerate(frames) if str(frame["filename"]).startswith(_KERNELS)}
        engine = backward_code()
        calls = {
            at
            for at, frame in enumerate(frames)
            if engine is not None and (frame["filename"], frame["name"]) == (engine.co_filename, engine.co_name)
        }
        grad_modes = {at for at, frame in enumerate(frames) if frame["filename"] == GRAD_MODE}
        stacks = [[frames[at] for at in self._stack(calls, grad_modes) if at not in own] for _ in range(self._one())]
        for record, stack in stacked:
            record["frames"] = stacks[stack] if stack >= 0 else []
        return segments, events

    def _one(self) -> int:
        self._at += 1
        return self._numbers[self._at - 1]

    def _stack(self, calls: Set[int], grad_modes: Set[int]) -> list[int]:
        """The numbers of frames that a stack has on a card: those before the outermost call of autograd's engine."""
        ends_before_engine = self._one()
        stack = list(self._take(self._one()))
        call = max((at for at, frame in enumerate(stack) if frame in calls), default=None)
        if call is None or not ends_before_engine:
            return stack
        return stack[:call] + [frame for frame in stack[-1:] if frame in grad_modes]

    def _take(self, count: int) -> array[int]:
        self._at += count
        return self._numbers[self._at - count : self._at]

    def _segment(self, card: int, stacked: list[tuple[dict[str, Any], int]]) -> dict[str, Any]:
        address, stream, small, expandable, number = self._take(5)
        blocks: list[dict[str, Any]] = []
        total = allocated = active = requested = 0
        for _ in range(number):
            at, size, asked, state, stack = self._take(5)
            block = {"address": at, "size": size, "requested_size": asked, "state": STATES[state], "frames": []}
            blocks.append(block)
            stacked.append((block, stack))
            total += size
            allocated += size if state == 2 else 0
            active += size if state else 0
            requested += asked if state else 0
        return {
            "device": card,
            "address": address,
            "total_size": total,
            "allocated_size": allocated,
            "active_size": active,
            "requested_size": requested,
            "stream": stream,
            "segment_type": "small" if small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": bool(expandable),
            "frames": [],
            "blocks": blocks,
        }

    def _event(self, stacked: list[tuple[dict[str, Any], int]]) -> dict[str, Any]:
        action, address, size, stream, time, stack = self._take(6)
        name = ACTIONS[action]
        event: dict[str, Any] = {
            "action": name,
            "device_free" if name == "oom" else "addr": address,
            "size": size,
            "stream": stream,
            "time_us": time,
            "compile_context": "N/A",
            "user_metadata": "",
            "pool_id": (0, 0),
        }
        if stack >= 0:
            stacked.append((event, stack))
        return event
