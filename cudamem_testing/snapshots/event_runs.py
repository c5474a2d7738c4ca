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
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import Any, Final

from cudamem_testing.snapshots.event_columns import MISSING, Alike, Order, Part, Same, column
from cudamem_testing.snapshots.event_layouts import DIFFERS, Layout, integers, layout_of
from cudamem_testing.snapshots.rows import ROW, Rows, check_shared

#: An event begins: an empty dict, kept under a number or not, and a mark. Before it, an event or a batch of them ends.
_BEGIN: Final = re.compile(rb"\}(\x94?)\(")
_END, _END_BATCH = b"u", b"ue("
#: A list begins that is kept and gets several items.
_LIST: Final = b"]\x94("
#: Bytes of a stretch; how often a stretch without a run is followed by events that are not tried, and by how many.
_LEAST, _MOST, _MOST_SKIPPED = 2**11, 2**20, 64
#: Layouts that are kept, of one length and together: each is made in some tens of microseconds.
_MOST_ALIKE, _MOST_LAYOUTS = 16, 1_000
_LONGEST_LIST: Final = 300
_ITEM = re.compile(rb"h.|j....", re.S)
_ITEMS = re.compile(rb"(?:j....j....j....j....)*(?:h.|j....)*e", re.S)


@dataclass(frozen=True, slots=True)
class Run:
    """Events, the position after them, and how many values they put into containers."""

    rows: Rows
    end: int
    values: int


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
        self._layouts: dict[int, list[Layout]] = defaultdict(list)
        self._made = self._items_made = 0
        self._events_kept = 0  # 1 if each event of a run is kept, 0 if none is
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
        first = _BEGIN.match(self._data, at)
        if first is None:
            return None
        self._events_kept = len(first[1])
        pieces, batches = _split(self._data[first.end() : first.end() + self._size], first[0])
        run = self._read(pieces, first.end(), batches)
        if run is None:
            self._size = max(self._size // 2, _LEAST)
            self._skipped = min(2 * self._skipped + 1, _MOST_SKIPPED)
            self._skip = self._skipped
        return run

    def kept(self, place: int) -> Any:
        """What is kept under a number."""
        return self._memo[place]

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
            between = len(_END) + 2 + self._events_kept
            end = begin + sum(map(len, pieces)) + between * (len(pieces) - 1) + len(_END)
            end += (len(_END_BATCH) - len(_END)) * bisect_left(batches, len(pieces))
            return Run(rows, end, self._items_made + len(rows) * len(rows.columns))
        return None

    def _rows(self, pieces: list[bytes]) -> Rows:
        """The events that these instructions make."""
        groups = self._alike(pieces)
        order = Order([group.places for group in groups], len(pieces))
        kept = [self._kept(group) for group in groups]
        bases = self._bases(groups, len(pieces))
        references = [self._references(group, bases) for group in groups]
        self._keep(groups, kept, bases, order)
        known = [
            {**self._values(group, numbers), **values}
            for group, numbers, values in zip(groups, references, kept, strict=True)
        ]
        parts = {key: [values.get(key, MISSING) for values in known] for values in known for key in values}
        absent = [key for key, some in parts.items() if MISSING in some]
        columns = {key: order.column(some) for key, some in parts.items()}
        return Rows(columns, absent)

    def _alike(self, pieces: list[bytes]) -> list[Alike]:
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
        found: list[Alike] = []
        cut = len(pieces)
        for length, places in by_length.items():
            for layout, chosen, joined in self._laid_out(length, [*map(heads.__getitem__, places)]):
                mine = places if len(chosen) == len(places) else [places[one] for one in chosen]
                if layout is None:
                    cut = min(cut, mine[0])
                    continue
                lists: list[list[Any]] = []
                if layout.list_key is not None:
                    try:
                        lists = self._made_of([*map(bodies.__getitem__, mine)])
                    except _CutError as wrong:
                        cut = min(cut, mine[wrong.place])
                found.append(Alike(layout, mine, joined, lists))
        if cut < len(pieces):
            raise _CutError(cut)
        return found

    def _laid_out(self, length: int, heads: list[bytes]) -> Iterator[tuple[Layout | None, Sequence[int], bytes]]:
        """Instructions of equal length by layout, with their places; those of unknown layout last."""
        layouts = self._layouts[length]
        places: Sequence[int] = range(len(heads))
        at = 0
        while places:
            if at == len(layouts):
                made = None
                if at < _MOST_ALIKE and self._made < _MOST_LAYOUTS:
                    made = layout_of(heads[places[0]], self._memo, opens=length >= 0)
                if made is None:
                    yield None, places, b""
                    return
                self._made += 1
                layouts.append(made)
            layout = layouts[at]
            at += 1
            joined = b"".join([heads[place] for place in places])
            differs = layout.differing(joined, len(places))
            if differs is None:
                yield layout, places, joined
                return
            rest = [*compress(places, differs)]
            if len(rest) < len(places):
                equal = differs.translate(DIFFERS[1])
                fit = [*compress(places, equal)]
                yield layout, fit, b"".join([heads[place] for place in fit])
            places = rest

    def _made_of(self, bodies: list[bytes]) -> list[list[Any]]:
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
        return [*map(lists.__getitem__, bodies)]

    def _items(self, body: bytes) -> list[Any] | None:
        """The items of a list, all of which were kept before; ``None`` if they were not, or there are too many."""
        if len(body) > 5 * _LONGEST_LIST + 1 or not _ITEMS.fullmatch(body):
            return None
        places = [int.from_bytes(one[1:], "little") for one in _ITEM.findall(body)]
        if max(places, default=0) >= len(self._memo):
            return None
        self._items_made += len(places)
        items = [self._memo[place] for place in places]
        check_shared(items)
        return items

    def _kept(self, group: Alike) -> dict[str, Part]:
        """The values which a pickle keeps under a number."""
        found: dict[str, Part] = {}
        for field in group.layout.fields:
            if field.kind == "raw":
                raws = [group.raw(field, 0)] if group.same(field) else group.raws(field)
                known = {raw: self._value(raw) for raw in {*raws}}
                if None in known.values():
                    raise _CutError(group.places[next(at for at, raw in enumerate(raws) if known[raw] is None)])
                if len(known) == 1:
                    found[field.key] = Same(known[raws[0]])
                else:
                    found[field.key] = [*map(known.__getitem__, raws)]
        if group.layout.list_key is not None:
            found[group.layout.list_key] = group.lists
        return found

    def _value(self, raw: bytes) -> Any:
        """A text, a pair or a short list; ``None`` if it has an item that is not kept yet."""
        if raw[0] == 0x8C:
            return raw[2:-1].decode("utf-8", "surrogatepass")
        if raw[0] != 0x5D:
            return (*integers(raw[:-2]),)
        found = self._lists.get(raw)
        if found is None:
            made = self._items(raw[2:-1] + b"e") if len(raw) > 2 else []
            if made is not None:
                found = self._lists[raw] = made
        return found

    def _bases(self, groups: list[Alike], number: int) -> Sequence[int]:
        """How many values were kept before each event: its number, if it is kept."""
        first = len(self._memo)
        counts = {self._events_kept + group.layout.keeps for group in groups}
        if len(counts) == 1:
            step = counts.pop()
            return range(first, first + number * step, step) if step else number * [first]
        steps = [0] * number
        for group in groups:
            step = self._events_kept + group.layout.keeps
            for place in group.places:
                steps[place] = step
        return [*accumulate(steps, initial=first)][:-1]

    def _references(self, group: Alike, bases: Sequence[int]) -> list[array[int] | Same]:
        """The numbers of values which were kept before."""
        found = []
        for field in group.layout.fields:
            if field.kind == "reference":
                part = group.numbers(field)
                numbers = [part.value] * len(group.places) if isinstance(part, Same) else part
                if max(numbers) >= len(self._memo):
                    before = self._events_kept + field.kept
                    known = map(operator.lt, numbers, [bases[place] + before for place in group.places])
                    late = next((at for at, fine in enumerate(known) if not fine), None)
                    if late is not None:
                        raise _CutError(group.places[late])
                found.append(part)
        return found

    def _keep(self, groups: list[Alike], kept: list[dict[str, Part]], bases: Sequence[int], order: Order) -> None:
        """Keep what the instructions keep: each event, or none, and some of its values."""
        memo, first, values_from = self._memo, len(self._memo), self._events_kept
        last = max(groups, key=lambda group: group.places[-1])
        memo.extend([ROW] * (bases[-1] + values_from + last.layout.keeps - first))
        if isinstance(bases, range) and len({(*values,) for values in kept}) == 1:
            for offset, key in enumerate(kept[0], values_from):
                memo[first + offset :: bases.step] = order.column([values[key] for values in kept])
            return
        for group, values in zip(groups, kept, strict=True):
            for offset, part in enumerate(values.values(), values_from):
                for place, value in zip(group.places, column(part, len(group.places)), strict=True):
                    memo[bases[place] + offset] = value

    def _values(self, group: Alike, references: list[array[int] | Same]) -> dict[str, Part]:
        """The values of the other keys."""
        found: dict[str, Part] = {}
        numbers = iter(references)
        for field in group.layout.fields:
            if field.kind == "constant":
                found[field.key] = Same(field.value)
            elif field.kind in ("number", "signed"):
                found[field.key] = group.numbers(field)
            elif field.kind == "reference":
                part = next(numbers)
                known = {place: self._memo[place] for place in ({part.value} if isinstance(part, Same) else {*part})}
                check_shared(known.values())
                if isinstance(part, Same):
                    found[field.key] = Same(known[part.value])
                else:
                    found[field.key] = [*map(known.__getitem__, part)]
        return found


def _split(stretch: bytes, begin: bytes) -> tuple[list[bytes], list[int]]:
    """The instructions of each event that begins alike, and after how many of them a new batch of the list begins.

    What follows the last separator is left out.
    """
    pieces: list[bytes] = []
    batches: list[int] = []
    for batch in stretch.split(_END_BATCH + begin):
        pieces += batch.split(_END + begin)
        batches.append(len(pieces))
    del pieces[-1], batches[-1]
    return pieces, batches
