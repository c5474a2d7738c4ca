"""Removes the marks of frames from a pickle.

They tell a reader of streams how many bytes follow. A long pickle has one for every 64 KiB, anywhere between two
instructions. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

_FRAME: Final = b"\x95"
_LENGTH: Final = 9


def without_frames(data: bytes) -> tuple[bytes, list[int]]:
    """The pickle without the marks of frames that follow each other from its start, and where they were in it."""
    whole = memoryview(data)
    at, parts, places = 2, [whole[:2]], []
    while data[at : at + 1] == _FRAME:
        end = at + _LENGTH + int.from_bytes(data[at + 1 : at + _LENGTH], "little")
        if end > len(data):
            break
        places.append(at)
        parts.append(whole[at + _LENGTH : end])
        at = end
    if len(places) < 2:
        return data, []
    parts.append(whole[at:])
    return b"".join(parts), [place - _LENGTH * number for number, place in enumerate(places)]


def byte_in_file(place: int, frames: list[int]) -> int:
    """The position in the file of a byte of the pickle without the marks of ``frames``."""
    return place + _LENGTH * bisect_right(frames, place)
