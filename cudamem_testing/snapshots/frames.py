"""Frames of snapshots: equal stacks get one number, and become text only when needed.

torch shares the dicts of frames between events, and a pickle keeps that. So stacks are compared by the identity of
their frames first, which takes a fraction of comparing file names. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudamem_testing.model.stacks import Locator, RawFrame, Stack
from cudamem_testing.recorders.capture import GRAD_MODE
from cudamem_testing.snapshots.record import NO_STACK
from cudamem_testing.snapshots.rows import Numbered

_NATIVE = (".cpp", ".cc", ".cxx", ".c", ".cu", ".cuh", ".h", ".hpp", ".inl")
_LONGEST = 1000


class FrameTable:
    """Numbers for stacks. It lives as long as the snapshot that it reads, whose objects it identifies by ``id``."""

    def __init__(self) -> None:
        self._by_list: dict[int, int] = {}
        self._grad_modes: dict[int, bool] = {}  # of lists that tell it
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._by_text: dict[tuple[RawFrame, ...], int] = {}
        self._frames: dict[int, RawFrame | None] = {}
        self._stacks: list[tuple[RawFrame, ...]] = []

    def __len__(self) -> int:
        return len(self._stacks)

    def number(self, frames: object) -> int:
        """The number of one list of frames, innermost first; :data:`NO_STACK` for an empty or unreadable one."""
        known = self._by_list.get(id(frames))
        if known is None:
            known = self._by_list[id(frames)] = self._number(frames) if isinstance(frames, list) else NO_STACK
            if isinstance(frames, list) and frames and _file(frames[-1]) == GRAD_MODE:
                self._grad_modes[id(frames)] = frames[-1].get("name") == "on"
        return known

    def grad_modes(self, frames: Numbered) -> bytes | None:
        """1 for each of many lists of frames that were recorded while grad mode was on; ``None`` if none shows it.

        They must have been numbered before.
        """
        known = self._grad_modes
        return bytes(frames.mapped(lambda one: known.get(id(one), False))) if known else None

    def resolver(self, locator: Locator | None) -> Callable[[int], Stack]:
        """The function from number to stack."""
        stacks, place = self._stacks, locator or Locator("")

        def resolve(number: int) -> Stack:
            return place.stack(stacks[number]) if 0 <= number < len(stacks) else Stack()

        return resolve

    def _number(self, frames: list[Any]) -> int:
        frames = frames[:_LONGEST]
        key = tuple(map(id, frames))
        known = self._by_frames.get(key)
        if known is None:
            text = tuple(frame for frame in map(self._frame, key, frames) if frame is not None)
            known = self._by_text.get(text, NO_STACK)
            if text and known == NO_STACK:
                known = self._by_text[text] = len(self._stacks)
                self._stacks.append(text)
            self._by_frames[key] = known
        return known

    def _frame(self, number: int, frame: object) -> RawFrame | None:
        if number not in self._frames:
            self._frames[number] = _raw_frame(frame)
        return self._frames[number]


def _file(frame: object) -> object:
    return frame.get("filename") if isinstance(frame, dict) else None


def _raw_frame(frame: object) -> RawFrame | None:
    """File, line and function of a Python frame; ``None`` for C++ frames, which a history may also hold."""
    if not isinstance(frame, dict):
        return None
    file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
    if not isinstance(file, str) or not isinstance(name, str) or file in ("", "??", GRAD_MODE):
        return None
    if file.endswith(_NATIVE) or ".so" in file.rsplit("/", 1)[-1]:
        return None
    return file, line if isinstance(line, int) and 0 <= line < 2**31 else 0, name
