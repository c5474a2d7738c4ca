"""Events of a pickled history by column: dicts of few keys that never were dicts.

Columns take a fraction of the memory of dicts, and are read many times faster (:mod:`event_runs`, :mod:`native_runs`).
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count, groupby, repeat
from typing import Any, Final, TypeAlias

#: The key that an event has, and no other dict of a snapshot.
ACTION: Final = "action"
#: What is kept under the number of an event: it has no dict.
ROW: Final = object()
#: What is kept under a number that the reader of runs knows.
KNOWN_TO_RUNS: Final = object()
#: The value of a key that an event lacks.
ABSENT: Final = object()


class SharedRowError(Exception):
    """A pickle uses one event in two places: it has to be read without columns."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """Values that are often the same objects: a number for each, and ``objects`` by number, of which not all appear."""

    numbers: array[int]
    objects: Sequence[Any]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> Any:
        return self.objects[self.numbers[place]]

    def __iter__(self) -> Iterator[Any]:
        return map(self.objects.__getitem__, self.numbers)

    @property
    def different(self) -> list[Any]:
        """The values in any order, each number once."""
        return [*map(self.objects.__getitem__, {*self.numbers})]

    def mapped(self, function: Callable[[Any], int]) -> list[int]:
        """What a function makes of each value; it is called once for each number, in order of appearance."""
        return [*map(_Made(self.objects, function).__getitem__, self.numbers)]


class _Made(dict[int, int]):
    """What a function makes of the objects that are asked for, by number."""

    def __init__(self, objects: Sequence[Any], function: Callable[[Any], int]) -> None:
        self._objects, self._function = objects, function

    def __missing__(self, number: int) -> int:
        made = self[number] = self._function(self._objects[number])
        return made


Column: TypeAlias = "Sequence[Any] | Numbered"


class Rows:
    """Some events in a row, by column. ``absent`` are keys that not all events have."""

    __slots__ = ("absent", "columns")
    __hash__ = None  # type: ignore[assignment]  # a dict cannot be a key, either

    def __init__(self, columns: Mapping[str, Column], absent: Iterable[str] = ()) -> None:
        self.columns = columns
        self.absent = frozenset(absent)

    def __len__(self) -> int:
        return len(self.columns[ACTION])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.row, range(len(self)))

    def row(self, place: int) -> dict[str, Any]:
        """One event as a dict."""
        values = ((key, column[place]) for key, column in self.columns.items())
        return {key: value for key, value in values if value is not ABSENT}

    def column(self, key: str, default: object) -> Iterable[Any]:
        """The values of one key."""
        column = self.columns.get(key)
        if column is None:
            return repeat(default, len(self))
        return [default if value is ABSENT else value for value in column] if key in self.absent else column


def check_shared(items: Iterable[object]) -> None:
    """Refuse an event that was read by column where it is used once more.

    Raises:
        SharedRowError: one is among the values.
    """
    if id(ROW) in {*map(id, items)}:
        raise SharedRowError


def plain(value: Any) -> Any:
    """A value of a snapshot with dicts in place of columns, in lists of lists as well."""
    if type(value) is not list or not any(type(item) in (Rows, list) for item in value):
        return value
    return [*chain.from_iterable(item if type(item) is Rows else (plain(item),) for item in value)]


class Trace:
    """The events of a list, some of them by column."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts
        self._by_column = any(type(part) is Rows for part in parts)
        sizes = (len(part) if type(part) is Rows else 1 for part in parts) if self._by_column else ()
        self._ends = array("q", accumulate(sizes))

    def __len__(self) -> int:
        return self._ends[-1] if self._by_column else len(self._parts)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(part if type(part) is Rows else (part,) for part in self._parts)

    @property
    def types(self) -> set[type]:
        """Those of the events."""
        return {dict if kind is Rows else kind for kind in map(type, self._parts)}

    @property
    def keys(self) -> frozenset[str]:
        """All keys that any event has."""
        if not self._by_column:
            return frozenset(chain.from_iterable(self._parts))
        return frozenset(chain.from_iterable(part.columns if type(part) is Rows else part for part in self._parts))

    def values(self, key: str, default: object) -> list[Any]:
        """The values of one key."""
        if not self._by_column:
            return [part.get(key, default) for part in self._parts]
        found: list[Any] = []
        for part in self._parts:
            found.extend(part.column(key, default) if type(part) is Rows else (part.get(key, default),))
        return found

    def numbers(self, key: str, default: object) -> array[int]:
        """The values of one key, all of which have to be integers.

        Raises:
            TypeError: one is not.
            OverflowError: one needs more than 64 bits.
        """
        found = array("q")
        for part in self._parts:
            found.extend(part.column(key, default) if type(part) is Rows else (part.get(key, default),))
        return found

    def numbered(self, key: str, default: object) -> Numbered:
        """The values of one key; an object may have several numbers."""
        columns = (part.columns.get(key) for part in self._parts if type(part) is Rows)
        known = next((column.objects for column in columns if type(column) is Numbered), ())
        objects = [default if one is ABSENT else one for one in known]
        numbers = array("q")

        def add(values: list[Any]) -> None:
            ids = [*map(id, values)]
            by_id = dict(zip(ids, values, strict=True))
            places = dict(zip(by_id, count(len(objects)), strict=False))
            objects.extend(by_id.values())
            numbers.extend(map(places.__getitem__, ids))

        for kind, parts in groupby(self._parts, type):
            if kind is not Rows:
                add([part.get(key, default) for part in parts])
                continue
            for part in parts:
                column = part.columns.get(key)
                if type(column) is Numbered and column.objects is known:
                    numbers.extend(column.numbers)
                else:
                    add([*part.column(key, default)])
        return Numbered(numbers, objects)

    def event(self, place: int) -> dict[str, Any]:
        """One event."""
        if not self._by_column:
            event: dict[str, Any] = self._parts[place]
            return event
        at = bisect_right(self._ends, place)
        part = self._parts[at]
        return part if type(part) is dict else part.row(place - self._ends[at] + len(part))
