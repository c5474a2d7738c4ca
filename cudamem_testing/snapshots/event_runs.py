"""Reads many events of a pickled history at once.

A history of an hour has millions of events, all with the same few keys. pickle writes such events as the same
instructions; only the values differ, and how many bytes each takes. So a stretch of the file is split into events,
and those whose instructions are equally long are put side by side: one byte of all of them is then a slice with a
step. Such slices compare the instructions and gather the numbers of thousands of events in one operation, many times
faster than a machine for single instructions.

What cannot be read like this (an event that makes the frames of a new line, a kind of value that no history has) ends
the run, and is left to that machine. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import operator
import re
import sys
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress
from typing import Any, Final, Literal, TypeAlias, TypeVar

from cudamem_testing.snapshots.rows import ABSENT, ACTION, ROW, Rows, SharedRowError

#: Between two events: the first ends, and the second begins with an empty dict that is kept, and a mark.
_BEGIN, _NEXT, _NEXT_BATCH = b"}\x94(", b"u}\x94(", b"ue(}\x94("
#: A list begins that is kept and gets several items.
_LIST: Final = b"]\x94("
#: Bytes of a stretch; how often a stretch without a run is followed by events that are not tried, and by how many.
_LEAST, _MOST, _MOST_SKIPPED = 2**11, 2**20, 64
#: Layouts that are kept, of one length and together: each is made in some tens of microseconds.
_MOST_ALIKE, _MOST_LAYOUTS = 16, 1_000
_LONGEST_LIST: Final = 300
_CONSTANTS: Final = {0x4E: None, 0x88: True, 0x89: False}
#: Widths of instructions for integers and for values that were kept.
_NUMBERS: Final = {0x4B: 1, 0x4D: 2, 0x4A: 4}
_REFERENCES: Final = {0x68: 1, 0x6A: 4}
_ITEM = re.compile(rb"h.|j....", re.S)
_ITEMS = re.compile(rb"(?:j....j....j....j....)*(?:h.|j....)*e", re.S)
_DIFFERS: Final = [bytes(int(code != byte) for code in range(256)) for byte in range(256)]
_SIGN: Final = bytes(255 * (code > 127) for code in range(256))

_V = TypeVar("_V", bound=Collection[Any])
FieldKind = Literal["constant", "number", "signed", "reference", "raw"]


@dataclass(frozen=True, slots=True)
class Run:
    """Events, the position after them, and how many values they put into containers."""

    rows: Rows
    end: int
    values: int


@dataclass(frozen=True, slots=True)
class _Field:
    """The value of a key: where it begins in the instructions of an event, and its bytes.

    ``raw`` values are texts, pairs and short lists, which a pickle keeps under a number; ``kept`` is how many values of
    the event are kept before it. ``value`` is that of a constant.
    """

    key: str
    kind: FieldKind
    at: int
    width: int
    kept: int
    value: object = None


@dataclass(frozen=True, slots=True)
class _Layout:
    """Instructions of one length: the bytes that are the same in all such events, and the values between them.

    ``list_key`` is the key of a list at the end, whose items are not part of it.
    """

    fixed: tuple[tuple[int, int], ...]
    fields: tuple[_Field, ...]
    list_key: str | None

    @property
    def keeps(self) -> int:
        """How many values are kept under a number: the event itself, and some of its values."""
        return 1 + sum(field.kind == "raw" for field in self.fields) + (self.list_key is not None)


@dataclass(frozen=True, slots=True)
class _Same:
    """One value for all events of a group."""

    value: Any


@dataclass(frozen=True, slots=True)
class _Objects:
    """A value for each event of a group, and those that are ``different`` objects."""

    values: list[Any]
    different: Collection[Any]


_Part: TypeAlias = "array[int] | _Same | _Objects"
_ABSENT = _Same(ABSENT)


@dataclass(frozen=True, slots=True)
class _Alike:
    """Events of one layout: their places in the run, and their instructions side by side."""

    layout: _Layout
    places: Sequence[int]
    joined: bytes
    lists: _Objects

    def column(self, at: int) -> bytes:
        """One byte of each event."""
        return self.joined[at :: len(self.joined) // len(self.places)]

    def same(self, field: _Field) -> bool:
        """Whether a value is made by the same bytes in all of them."""
        columns = map(self.column, range(field.at, field.at + field.width))
        return all(column.count(column[:1]) == len(column) for column in columns)

    def raw(self, field: _Field, start: int) -> bytes:
        """The bytes of a value in the event whose instructions begin at ``start``."""
        return self.joined[start + field.at : start + field.at + field.width]

    def raws(self, field: _Field) -> list[bytes]:
        """The bytes of a value in each event."""
        return [self.raw(field, start) for start in range(0, len(self.joined), len(self.joined) // len(self.places))]

    def numbers(self, field: _Field) -> array[int] | _Same:
        """An integer of each event."""
        if self.same(field):
            return _Same(int.from_bytes(self.raw(field, 0), "little", signed=field.kind == "signed"))
        parts = bytearray(8 * len(self.places))
        for place in range(8):
            if place < field.width:
                parts[place::8] = column = self.column(field.at + place)
            elif field.kind == "signed" and not column.isascii():  # with a sign
                parts[place::8] = column.translate(_SIGN)
        found = array("q", bytes(parts))
        if sys.byteorder == "big":
            found.byteswap()
        return found


class _Order:
    """Puts columns of several groups of events together, in the order of the events."""

    def __init__(self, groups: list[Sequence[int]], number: int) -> None:
        self._sizes = [*map(len, groups)]
        self._number = number
        places = [0] * number
        for at, place in enumerate(chain.from_iterable(groups)):
            places[place] = at
        self._sort = operator.itemgetter(*places) if len(groups) > 1 else None

    def column(self, parts: list[_Part]) -> Sequence[Any]:
        """The values of one key, given those of each group."""
        first = parts[0]
        if isinstance(first, _Same) and all(isinstance(part, _Same) and part.value is first.value for part in parts):
            return _column(first, self._number)
        columns = [*map(_column, parts, self._sizes)]
        if self._sort is None:
            return columns[0]
        sort: Callable[[Sequence[Any]], tuple[Any, ...]] = self._sort
        if all(isinstance(column, array) for column in columns):
            return array("q", sort(array("q", b"".join(columns))))
        return sort([*chain.from_iterable(columns)])


def _column(part: _Part, size: int) -> Sequence[Any]:
    if isinstance(part, _Objects):
        return part.values
    if not isinstance(part, _Same):
        return part
    if type(part.value) is int and -(2**63) <= part.value < 2**63:
        return array("q", [part.value]) * size
    return [part.value] * size


def _different(parts: list[_Part]) -> list[Any] | None:
    """The different objects of a key; ``None`` if they are numbers."""
    found: list[Any] = []
    for part in parts:
        if isinstance(part, array):
            return None
        found += part.different if isinstance(part, _Objects) else [part.value]
    return found


class _CutError(Exception):
    """The event at ``place`` of a run cannot be read with those before it."""

    def __init__(self, place: int) -> None:
        self.place = place


class Runs:
    """Finds runs of events in ``data``, given what was kept under numbers and which lists were made of which bytes."""

    def __init__(self, data: bytes, memo: list[Any], lists: dict[bytes, list[Any]]) -> None:
        self._data = data
        self._memo = memo
        self._lists = lists
        self._layouts: dict[int, list[_Layout]] = defaultdict(list)
        self._made = self._items_made = 0
        self._size = _LEAST
        self._skipped = self._skip = 0

    def read(self, at: int) -> Run | None:
        """The run that begins with the event at a position; ``None`` if it cannot be read like this.

        What its instructions keep is added to what was kept before.

        Raises:
            SharedRowError: an event of a run is used a second time.
        """
        if self._skip:
            self._skip -= 1
            return None
        begin = at + len(_BEGIN)
        if self._data[at:begin] != _BEGIN:
            return None
        pieces, batches = _split(self._data[begin : begin + self._size])
        run = self._read(pieces, begin, batches)
        if run is None:
            self._size = max(self._size // 2, _LEAST)
            self._skipped = min(2 * self._skipped + 1, _MOST_SKIPPED)
            self._skip = self._skipped
        return run

    def _read(self, pieces: list[bytes], begin: int, batches: list[int]) -> Run | None:
        self._items_made, tried = 0, len(pieces)
        while pieces:
            try:
                rows = self._rows(pieces)
            except _CutError as cut:
                del pieces[cut.place :]
                continue
            self._size = min(2 * self._size, _MOST) if 2 * len(pieces) > tried else max(self._size // 2, _LEAST)
            self._skipped //= 2
            end = begin + sum(map(len, pieces)) + len(_NEXT) * (len(pieces) - 1) + 1
            end += (len(_NEXT_BATCH) - len(_NEXT)) * bisect_left(batches, len(pieces))
            return Run(rows, end, self._items_made + len(rows) * len(rows.columns))
        return None

    def _rows(self, pieces: list[bytes]) -> Rows:
        """The events that these instructions make."""
        groups = self._alike(pieces)
        order = _Order([group.places for group in groups], len(pieces))
        kept = [self._kept(group) for group in groups]
        bases = self._bases(groups, len(pieces))
        references = [self._references(group, bases) for group in groups]
        self._keep(groups, kept, bases, order)
        known = [
            {**self._values(group, numbers), **values}
            for group, numbers, values in zip(groups, references, kept, strict=True)
        ]
        parts = {key: [values.get(key, _ABSENT) for values in known] for values in known for key in values}
        absent = [key for key, some in parts.items() if _ABSENT in some]
        columns = {key: order.column(some) for key, some in parts.items()}
        return Rows(columns, {key: _different(some) for key, some in parts.items()}, absent)

    def _alike(self, pieces: list[bytes]) -> list[_Alike]:
        """The events by layout."""
        heads, marks, bodies = zip(*[piece.partition(_LIST) for piece in pieces], strict=True)
        lengths: Iterable[int] = map(len, heads)
        if any(marks):
            lengths = [length if mark else ~length for length, mark in zip(lengths, marks, strict=True)]
        else:
            lengths = [~length for length in lengths]
        by_length: dict[int, list[int]] = defaultdict(list)
        for place, length in enumerate(lengths):
            by_length[length].append(place)
        found: list[_Alike] = []
        cut = len(pieces)
        for length, places in by_length.items():
            for layout, chosen, joined in self._laid_out(length, [*map(heads.__getitem__, places)]):
                mine = places if len(chosen) == len(places) else [places[one] for one in chosen]
                if layout is None:
                    cut = min(cut, mine[0])
                    continue
                lists = _Objects([], ())
                if layout.list_key is not None:
                    try:
                        lists = self._made_of([*map(bodies.__getitem__, mine)])
                    except _CutError as wrong:
                        cut = min(cut, mine[wrong.place])
                found.append(_Alike(layout, mine, joined, lists))
        if cut < len(pieces):
            raise _CutError(cut)
        return found

    def _laid_out(self, length: int, heads: list[bytes]) -> Iterator[tuple[_Layout | None, Sequence[int], bytes]]:
        """Instructions of equal length by layout, with their places; those of unknown layout last."""
        layouts = self._layouts[length]
        places: Sequence[int] = range(len(heads))
        at = 0
        while places:
            if at == len(layouts):
                made = None
                if at < _MOST_ALIKE and self._made < _MOST_LAYOUTS:
                    made = _layout(heads[places[0]], self._memo, opens=length >= 0)
                if made is None:
                    yield None, places, b""
                    return
                self._made += 1
                layouts.append(made)
            layout = layouts[at]
            at += 1
            joined = b"".join([heads[place] for place in places])
            differs = _differing(layout, joined, len(places))
            if differs is None:
                yield layout, places, joined
                return
            rest = [*compress(places, differs)]
            if len(rest) < len(places):
                equal = differs.translate(_DIFFERS[1])
                fit = [*compress(places, equal)]
                yield layout, fit, b"".join([heads[place] for place in fit])
            places = rest

    def _made_of(self, bodies: list[bytes]) -> _Objects:
        """The lists of these instructions."""
        lists, different = self._lists, {*bodies}
        wrong = set()
        for body in different.difference(lists):
            items = self._items(body)
            if items is None:
                wrong.add(body)
            else:
                lists[body] = items
        if wrong:
            raise _CutError(next(place for place, body in enumerate(bodies) if body in wrong))
        return _Objects([*map(lists.__getitem__, bodies)], [lists[body] for body in different])

    def _items(self, body: bytes) -> list[Any] | None:
        """The items of a list, all of which were kept before; ``None`` if they were not, or there are too many."""
        if len(body) > 5 * _LONGEST_LIST + 1 or not _ITEMS.fullmatch(body):
            return None
        places = [int.from_bytes(one[1:], "little") for one in _ITEM.findall(body)]
        if max(places, default=0) >= len(self._memo):
            return None
        self._items_made += len(places)
        return _checked([self._memo[place] for place in places])

    def _kept(self, group: _Alike) -> dict[str, _Part]:
        """The values which a pickle keeps under a number."""
        found: dict[str, _Part] = {}
        for field in group.layout.fields:
            if field.kind == "raw":
                raws = [group.raw(field, 0)] if group.same(field) else group.raws(field)
                known = {raw: self._value(raw) for raw in {*raws}}
                if None in known.values():
                    raise _CutError(group.places[next(at for at, raw in enumerate(raws) if known[raw] is None)])
                if len(known) == 1:
                    found[field.key] = _Same(known[raws[0]])
                else:
                    found[field.key] = _Objects([*map(known.__getitem__, raws)], known.values())
        if group.layout.list_key is not None:
            found[group.layout.list_key] = group.lists
        return found

    def _value(self, raw: bytes) -> Any:
        """A text, a pair or a short list; ``None`` if it has an item that is not kept yet."""
        if raw[0] == 0x8C:
            return raw[2:-1].decode("utf-8", "surrogatepass")
        if raw[0] != 0x5D:
            return (*_integers(raw[:-2]),)
        found = self._lists.get(raw)
        if found is None:
            made = self._items(raw[2:-1] + b"e") if len(raw) > 2 else []
            if made is not None:
                found = self._lists[raw] = made
        return found

    def _bases(self, groups: list[_Alike], number: int) -> Sequence[int]:
        """The number under which each event is kept."""
        first = len(self._memo)
        counts = {group.layout.keeps for group in groups}
        if len(counts) == 1:
            step = counts.pop()
            return range(first, first + number * step, step)
        steps = [0] * number
        for group in groups:
            for place in group.places:
                steps[place] = group.layout.keeps
        return [*accumulate(steps, initial=first)][:-1]

    def _references(self, group: _Alike, bases: Sequence[int]) -> list[array[int] | _Same]:
        """The numbers of values which were kept before."""
        found = []
        for field in group.layout.fields:
            if field.kind == "reference":
                part = group.numbers(field)
                numbers = [part.value] * len(group.places) if isinstance(part, _Same) else part
                if max(numbers) >= len(self._memo):
                    known = map(operator.le, numbers, [bases[place] + field.kept for place in group.places])
                    late = next((at for at, fine in enumerate(known) if not fine), None)
                    if late is not None:
                        raise _CutError(group.places[late])
                found.append(part)
        return found

    def _keep(self, groups: list[_Alike], kept: list[dict[str, _Part]], bases: Sequence[int], order: _Order) -> None:
        """Keep what the instructions keep: each event, and some of its values."""
        memo, first = self._memo, len(self._memo)
        last = max(groups, key=lambda group: group.places[-1])
        memo.extend([ROW] * (bases[-1] + last.layout.keeps - first))
        if isinstance(bases, range) and len({(*values,) for values in kept}) == 1:
            for offset, key in enumerate(kept[0], 1):
                memo[first + offset :: bases.step] = order.column([values[key] for values in kept])
            return
        for group, values in zip(groups, kept, strict=True):
            for offset, part in enumerate(values.values(), 1):
                column = _column(part, len(group.places))
                for place, value in zip(group.places, column, strict=True):
                    memo[bases[place] + offset] = value

    def _values(self, group: _Alike, references: list[array[int] | _Same]) -> dict[str, _Part]:
        """The values of the other keys."""
        found: dict[str, _Part] = {}
        numbers = iter(references)
        for field in group.layout.fields:
            if field.kind == "constant":
                found[field.key] = _Same(field.value)
            elif field.kind in ("number", "signed"):
                found[field.key] = group.numbers(field)
            elif field.kind == "reference":
                part = next(numbers)
                if isinstance(part, _Same):
                    found[field.key] = _Same(*_checked([self._memo[part.value]]))
                else:
                    known = {number: self._memo[number] for number in {*part}}
                    different = _checked(known.values())
                    found[field.key] = _Objects([*map(known.__getitem__, part)], different)
        return found


def _split(stretch: bytes) -> tuple[list[bytes], list[int]]:
    """The instructions of each event, and after how many of them a new batch of the list begins.

    What follows the last separator is left out.
    """
    pieces: list[bytes] = []
    batches: list[int] = []
    for batch in stretch.split(_NEXT_BATCH):
        pieces += batch.split(_NEXT)
        batches.append(len(pieces))
    del pieces[-1], batches[-1]
    return pieces, batches


def _checked(values: _V) -> _V:
    """The values, if no event of a run is among them.

    Raises:
        SharedRowError: one is.
    """
    if any(value is ROW for value in values):
        raise SharedRowError
    return values


def _differing(layout: _Layout, joined: bytes, number: int) -> bytes | None:
    """1 for each of some events whose instructions are not those of a layout; ``None`` if all are."""
    step = len(joined) // number
    found = 0
    for at, byte in layout.fixed:
        column = joined[at::step]
        if column.count(byte) != number:
            found |= int.from_bytes(column.translate(_DIFFERS[byte]), "little")
    return found.to_bytes(number, "little") if found else None


# --- the instructions of one event ---


def _layout(head: bytes, memo: list[Any], *, opens: bool) -> _Layout | None:
    """The layout of the instructions of an event up to a list at its end, if it ``opens`` one."""
    try:
        return _Parser(head, memo).layout(opens=opens)
    except (IndexError, KeyError):  # they end too early, or are of a kind that is not read by column
        return None


class _Parser:
    """Walks through the instructions of an event, and notes which bytes are the same in all that are like it."""

    def __init__(self, head: bytes, memo: list[Any]) -> None:
        self._head = head
        self._memo = memo
        self._at = 0
        self._fixed: list[tuple[int, int]] = []
        self._fields: list[_Field] = []
        self._kept = 0

    def layout(self, *, opens: bool) -> _Layout | None:
        keys: list[object] = []
        while self._at < len(self._head):
            first = self._at + 1
            self._fix(1 + _REFERENCES[self._head[self._at]])
            keys.append(self._memo[int.from_bytes(self._head[first : self._at], "little")])
            if opens and self._at == len(self._head):
                break
            self._value(str(keys[-1]))
        texts = {key for key in keys if type(key) is str}
        if ACTION not in texts or len(texts) != len(keys) or len(self._fields) + opens != len(keys):
            return None
        return _Layout((*self._fixed,), (*self._fields,), str(keys[-1]) if opens else None)

    def _fix(self, width: int, *wanted: int) -> None:
        """The next bytes are the same in all events; some have to be those that are ``wanted``."""
        found = self._head[self._at : self._at + width]
        if len(found) < width or (wanted and (*found,) != wanted):
            raise KeyError
        self._fixed += enumerate(found, self._at)
        self._at += width

    def _add(self, key: str, kind: FieldKind, width: int, value: object = None) -> None:
        if self._at + width > len(self._head):
            raise IndexError
        self._fields.append(_Field(key, kind, self._at, width, self._kept, value))
        self._at += width

    def _value(self, key: str) -> None:
        code = self._head[self._at]
        if code in (0x8C, 0x5D) or (code in _NUMBERS and self._is_pair()):
            first = self._at
            if code == 0x8C:
                self._fix(2)
                self._at += self._head[self._at - 1]
                self._fix(1, 0x94)
            elif code == 0x5D:
                self._short_list()
            else:
                self._pair()
            self._at, end = first, self._at
            self._add(key, "raw", end - first)
            self._kept += 1
        elif code == 0x8A:
            self._fix(2)
            if not 0 < self._head[self._at - 1] <= 8:
                raise KeyError
            self._add(key, "signed", self._head[self._at - 1])
        else:
            self._fix(1)
            if code in _CONSTANTS:
                self._add(key, "constant", 0, _CONSTANTS[code])
            elif code in _REFERENCES:
                self._add(key, "reference", _REFERENCES[code])
            else:
                self._add(key, "signed" if code == 0x4A else "number", _NUMBERS[code])

    def _short_list(self) -> None:
        """An empty list, or one with one item."""
        self._fix(2, 0x5D, 0x94)
        width = 1 + _REFERENCES.get(self._head[self._at], 0) if self._at < len(self._head) else 1
        if width > 1 and self._head[self._at + width : self._at + width + 1] == b"a":
            self._fix(1)
            self._at += width - 1
            self._fix(1, 0x61)

    def _is_pair(self) -> bool:
        end = self._at + 1 + _NUMBERS[self._head[self._at]]
        return end < len(self._head) and self._head[end] in _NUMBERS

    def _pair(self) -> None:
        """Two integers in a tuple, as the number of a pool is."""
        for _ in range(2):
            width = _NUMBERS[self._head[self._at]]
            self._fix(1)
            self._at += width
        self._fix(2, 0x86, 0x94)


def _integers(raw: bytes) -> Iterable[int]:
    """Those of ``BININT1``, ``BININT2`` and ``BININT`` one after the other."""
    at = 0
    while at < len(raw):
        end = at + 1 + _NUMBERS[raw[at]]
        yield int.from_bytes(raw[at + 1 : end], "little", signed=raw[at] == 0x4A)
        at = end
