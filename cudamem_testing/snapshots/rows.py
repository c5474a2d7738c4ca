"""Events of a pickled history by column: dicts of few keys that never were dicts.

Columns take a fraction of the memory of dicts, and are read many times faster (:mod:`event_runs`). PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, repeat
from typing import Any, Final

#: The key that an event has, and no other dict of a snapshot.
ACTION: Final = "action"
#: What is kept under the number of an event: it has no dict.
ROW: Final = object()
#: The value of a key that an event lacks.
ABSENT: Final = object()


class SharedRowError(Exception):
    """A pickle uses one event in two places: it has to be read without columns."""


class Rows:
    """Some events in a row, by column.

    ``different`` are the different objects of a column, which may be repeated; ``None`` for numbers. ``absent`` are
    keys that not all events have.
    """

    __slots__ = ("absent", "columns", "different")
    __hash__ = None  # type: ignore[assignment]  # a dict cannot be a key, either

    def __init__(
        self, columns: dict[str, Sequence[Any]], different: Mapping[str, list[Any] | None], absent: Iterable[str] = ()
    ) -> None:
        self.columns = columns
        self.different = different
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

    def distinct(self, key: str, default: object) -> tuple[list[Any], list[Any]]:
        """The values of one key, and those of them that are different objects."""
        values = self.values(key, default)
        found: dict[int, Any] = {}
        for part in self._parts:
            one: Any = (part.get(key, default),) if type(part) is not Rows else part.different.get(key)
            if one is None:
                one = part.column(key, default) if key in part.columns else (default,)
            for value in one:
                found[id(value)] = default if value is ABSENT else value
        return values, [*found.values()]

    def event(self, place: int) -> dict[str, Any]:
        """One event."""
        if not self._by_column:
            event: dict[str, Any] = self._parts[place]
            return event
        at = bisect_right(self._ends, place)
        part = self._parts[at]
        return part if type(part) is dict else part.row(place - self._ends[at] + len(part))
