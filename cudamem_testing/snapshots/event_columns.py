"""Columns of many events of a pickled history, gathered from their instructions by slices with a step.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import operator
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeAlias

from cudamem_testing.snapshots.event_layouts import Field, Layout
from cudamem_testing.snapshots.rows import ABSENT

_SIGN: Final = bytes(255 * (code > 127) for code in range(256))


@dataclass(frozen=True, slots=True)
class Same:
    """One value for all events of a group."""

    value: Any


#: The values of the events of a group.
Part: TypeAlias = "array[int] | Same | list[Any]"
MISSING = Same(ABSENT)


@dataclass(frozen=True, slots=True)
class Alike:
    """Events of one layout: their places in the run, and their instructions side by side."""

    layout: Layout
    places: Sequence[int]
    joined: bytes
    lists: list[list[Any]]

    def column(self, at: int) -> bytes:
        """One byte of each event."""
        return self.joined[at :: len(self.joined) // len(self.places)]

    def same(self, field: Field) -> bool:
        """Whether a value is made by the same bytes in all of them."""
        columns = map(self.column, range(field.at, field.at + field.width))
        return all(one.count(one[:1]) == len(one) for one in columns)

    def raw(self, field: Field, start: int) -> bytes:
        """The bytes of a value in the event whose instructions begin at ``start``."""
        return self.joined[start + field.at : start + field.at + field.width]

    def raws(self, field: Field) -> list[bytes]:
        """The bytes of a value in each event."""
        return [self.raw(field, start) for start in range(0, len(self.joined), len(self.joined) // len(self.places))]

    def numbers(self, field: Field) -> array[int] | Same:
        """An integer of each event."""
        if self.same(field):
            return Same(int.from_bytes(self.raw(field, 0), "little", signed=field.kind == "signed"))
        parts = bytearray(8 * len(self.places))
        for place in range(8):
            if place < field.width:
                parts[place::8] = last = self.column(field.at + place)
            elif field.kind == "signed" and not last.isascii():  # with a sign
                parts[place::8] = last.translate(_SIGN)
        found = array("q", bytes(parts))
        if sys.byteorder == "big":
            found.byteswap()
        return found


class Order:
    """Puts columns of several groups of events together, in the order of the events."""

    def __init__(self, groups: list[Sequence[int]], number: int) -> None:
        self._sizes = [*map(len, groups)]
        self._number = number
        places = [0] * number
        for at, place in enumerate(chain.from_iterable(groups)):
            places[place] = at
        self._sort = operator.itemgetter(*places) if len(groups) > 1 else None

    def column(self, parts: list[Part]) -> Sequence[Any]:
        """The values of one key, given those of each group."""
        first = parts[0]
        if isinstance(first, Same) and all(isinstance(part, Same) and part.value is first.value for part in parts):
            return column(first, self._number)
        columns = [*map(column, parts, self._sizes)]
        if self._sort is None:
            return columns[0]
        sort: Callable[[Sequence[Any]], tuple[Any, ...]] = self._sort
        if all(isinstance(one, array) for one in columns):
            numbers = array("q")
            for one in columns:
                numbers.extend(one)
            return array("q", sort(numbers))
        return sort([*chain.from_iterable(columns)])


def column(part: Part, size: int) -> Sequence[Any]:
    if not isinstance(part, Same):
        return part
    if type(part.value) is int and -(2**63) <= part.value < 2**63:
        return array("q", [part.value]) * size
    return [part.value] * size
