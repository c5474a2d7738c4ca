"""Events of a pickled history by column: dicts of equal keys that never were dicts.

A history of an hour has millions of events, all with the same keys in the same order. Once one of them is known, a
pattern of its instructions finds the next ones and their values many times faster than a machine for single
instructions, and columns take a fraction of the memory of dicts. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress, repeat
from typing import Any, Final

#: The key that an event has, and no other dict of a snapshot.
ACTION: Final = "action"
#: Most events that are read in one go.
_MOST: Final = 5_000
_KEY = rb"h.|j...."
_SHORT = rb"K.|M..|J...."
_LONG = rb"\x8a(?:\x06......|\x07.......|\x05.....|\x08.{8}|\x09.{9}|\x04....)"
_TEXT = rb"\x8c(?:\x00|\x01.|\x02..|\x03...|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8})\x94"
_PAIR = rb"(?:" + _SHORT + rb"){2}\x86\x94"
#: Lists of what was kept before, as stacks of known frames are; longer ones are read one instruction at a time.
_LIST = rb"\]\x94(?:\((?:j....j....j....j....){0,75}(?:j....|h.){0,300}e|h.a|j....a)?"
_VALUE = b"|".join((_KEY, _SHORT, _LONG, _TEXT, _PAIR, _LIST, rb"[N\x88\x89]"))
_FLAT = re.compile(rb"\}\x94\((?:(?:" + _KEY + rb")(?:" + _VALUE + rb"))+u", re.S)
_ENTRY = re.compile(rb"(" + _KEY + rb")(?:" + _VALUE + rb")", re.S)
_ITEM = re.compile(_KEY, re.S)
_NUMBER = re.compile(_SHORT, re.S)
_CONSTANTS: Final = {0x4E: None, 0x88: True, 0x89: False}
#: First instructions of values: those of numbers, and those whose values a pickle keeps under a number.
_NUMBERS: Final = frozenset({0x4B, 0x4D, 0x4A})
_KEEPING: Final = frozenset({0x8C, 0x5D})
#: What is kept under the number of an event: it has no dict.
ROW: Final = object()


class SharedRowError(Exception):
    """A pickle uses one event in two places: it has to be read without columns."""


class Rows:
    """Some events in a row, by column."""

    __slots__ = ("columns", "keys")
    __hash__ = None  # type: ignore[assignment]  # a dict cannot be a key, either

    def __init__(self, keys: tuple[str, ...], columns: Sequence[Sequence[Any]]) -> None:
        self.keys = keys
        self.columns = [_packed(column) for column in columns]

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.keys, values, strict=True)) for values in zip(*self.columns, strict=True))

    def row(self, place: int) -> dict[str, Any]:
        """One event as a dict."""
        return {key: column[place] for key, column in zip(self.keys, self.columns, strict=True)}

    def column(self, key: str, default: object) -> Iterable[Any]:
        """The values of one key."""
        return self.columns[self.keys.index(key)] if key in self.keys else repeat(default, len(self))


class Shape:
    """The instructions of events with the same keys: what is the same in all of them, and what may stand between."""

    def __init__(self, keys: tuple[str, ...], raw: tuple[bytes, ...]) -> None:
        self.keys = keys
        self.raw = raw
        self._match = re.compile(
            rb"\}\x94\(" + b"".join(re.escape(key) + rb"(" + _VALUE + rb")" for key in raw) + rb"u", re.S
        ).match
        self._most = _MOST

    @classmethod
    def of(cls, raw: tuple[bytes, ...], get: Callable[[int], object]) -> Shape | None:
        """The shape of events with these keys; ``None`` if they are not different texts."""
        keys = tuple(get(_place(key)) for key in raw)
        texts = tuple(key for key in keys if isinstance(key, str))
        return cls(texts, raw) if len({*texts}) == len(raw) else None

    def read(self, data: bytes, at: int, memo: list[Any], lists: dict[bytes, list[Any]]) -> tuple[Rows, int] | None:
        """Some events from a position on, and the position after them; ``None`` if there is none.

        What their instructions keep is added to ``memo``; ``lists`` are the lists that were made, by instructions.

        Raises:
            SharedRowError: they use an event.
        """
        match = self._match
        found, ends = match(data, at), array("q")
        values: list[tuple[bytes, ...]] = []
        while found is not None and len(values) < self._most:
            values.append(found.groups())
            at = found.end()
            ends.append(at)
            found = match(data, at)
        while values:
            try:
                columns = [_Column([*raw], memo, lists) for raw in zip(*values, strict=True)]
            except IndexError:  # one of them uses what another has kept: fewer at once
                del values[len(values) // 2 :]
                self._most = max(len(values), 1)
                continue
            self._most = min(2 * self._most, _MOST)
            _keep(memo, columns, len(values))
            return Rows(self.keys, [column.values for column in columns]), ends[len(values) - 1]
        return None


def check_shared(items: Iterable[object]) -> None:
    """Refuse an event that was read by column where it is used once more.

    Raises:
        SharedRowError: one is among the values.
    """
    if any(item is ROW for item in items):
        raise SharedRowError


def keys_of(data: bytes) -> tuple[bytes, ...] | None:
    """The keys of the event that these instructions make; ``None`` if a pattern cannot tell them."""
    return (*_ENTRY.findall(data, 3),) if _FLAT.fullmatch(data) else None


class _Column:
    """The values of one key, and which of them are kept: all, none, or some."""

    def __init__(self, raw: list[bytes], memo: list[Any], lists: dict[bytes, list[Any]]) -> None:
        codes = {one[0] for one in raw}
        self.values: list[Any]
        self.keeps: bool | list[bool] = False
        if codes == {0x8A}:
            self.values = [int.from_bytes(one[2:], "little", signed=True) for one in raw]
        elif codes <= _NUMBERS and max(map(len, raw)) <= 5:
            self.values = [_number(one) for one in raw]
        else:
            known = {one: _value(one, memo, lists) for one in {*raw}}
            if any(value is ROW for value in known.values()):
                raise SharedRowError
            self.values = [known[one] for one in raw]
            if codes <= _KEEPING:
                self.keeps = True
            elif not codes.isdisjoint(_KEEPING | _NUMBERS):
                kept = {one: one[0] in _KEEPING or isinstance(known[one], tuple) for one in known}
                self.keeps = [kept[one] for one in raw]


def _keep(memo: list[Any], columns: list[_Column], size: int) -> None:
    """Keep what the instructions of some events keep, in their order: an event before its values."""
    keeping = [column for column in columns if column.keeps is not False]
    if all(column.keeps is True for column in keeping):
        memo.extend(chain.from_iterable(zip(repeat(ROW, size), *(column.values for column in keeping), strict=True)))
        return
    masks = [repeat(True, size) if column.keeps is True else column.keeps for column in keeping]
    rows = zip(*(column.values for column in keeping), strict=True)
    for values, kept in zip(rows, zip(*masks, strict=True), strict=True):
        memo.append(ROW)
        memo.extend(compress(values, kept))


def _value(raw: bytes, memo: list[Any], lists: dict[bytes, list[Any]]) -> Any:
    """The value of any instructions.

    Raises:
        IndexError: they use what is not kept yet.
    """
    code = raw[0]
    if code in (0x68, 0x6A):
        return memo[_place(raw)]
    if code == 0x5D:
        made = lists.get(raw)
        if made is None:
            made = lists[raw] = [memo[_place(one)] for one in _ITEM.findall(raw, 2)]
        return made
    if code == 0x8C:
        return raw[2:-1].decode("utf-8", "surrogatepass")
    if code == 0x8A:
        return int.from_bytes(raw[2:], "little", signed=True)
    if code in _CONSTANTS:
        return _CONSTANTS[code]
    numbers = [_number(one) for one in _NUMBER.findall(raw)]
    return numbers[0] if len(numbers) == 1 else (*numbers,)


def _number(raw: bytes) -> int:
    """That of ``BININT1``, ``BININT2`` or ``BININT``."""
    return int.from_bytes(raw[1:], "little", signed=raw[0] == 0x4A)


def _place(raw: bytes) -> int:
    """The number that ``BINGET`` or ``LONG_BINGET`` names."""
    return int.from_bytes(raw[1:], "little")


def _packed(column: Sequence[Any]) -> Sequence[Any]:
    if {*map(type, column)} == {int}:
        try:
            return array("q", column)
        except OverflowError:
            pass
    return column


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
        return frozenset(chain.from_iterable(part.keys if type(part) is Rows else part for part in self._parts))

    def values(self, key: str, default: object) -> list[Any]:
        """The values of one key."""
        if not self._by_column:
            return [part.get(key, default) for part in self._parts]
        found: list[Any] = []
        for part in self._parts:
            found.extend(part.column(key, default) if type(part) is Rows else (part.get(key, default),))
        return found

    def event(self, place: int) -> dict[str, Any]:
        """One event."""
        if not self._by_column:
            event: dict[str, Any] = self._parts[place]
            return event
        at = bisect_right(self._ends, place)
        part = self._parts[at]
        return part if type(part) is dict else part.row(place - self._ends[at] + len(part))
