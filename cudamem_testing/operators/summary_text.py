"""What has changed between two recorded summaries of operator calls.

One more call shifts the number of every call after it, and mostly the level after each of them, so lines cannot be
compared directly. Calls of one operator, module, phase and device are the same ones in their order, those of equal
sizes first; what is left are calls more and fewer. The diff below has the recorded numbers of calls that are the
same, and the recorded levels after them. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cudamem_testing.model.sizes import count
from cudamem_testing.records.expected.difference import in_brief
from cudamem_testing.show.tables import Column, Table

_WORDS, _SIZES = ("call", "operator", "module", "phase"), ("allocated", "freed", "temporary", "after")
_DEVICE = "device"
_LEVEL = "after"
_GAP = re.compile(" {2,}")


class _Call(NamedTuple):
    """A row: the number of a call, empty for sums; what it is; its sizes by column."""

    call: str
    what: tuple[str, ...]
    sizes: tuple[str, ...]

    def __str__(self) -> str:
        operator, module, *more = self.what
        return ", ".join(filter(None, (f"{operator} of {module}" if module else operator, *more)))


class _Summary(NamedTuple):
    heads: tuple[str, ...]
    rows: list[_Call]


def compare_summaries(before: str, after: str) -> tuple[list[str], str] | None:
    """Statements, and the text diff; ``None`` for a text that is no summary."""
    old, new = _read(before), _read(after)
    if old is None or new is None or old.heads != new.heads:
        return None
    pairs = _pairs(old.rows, new.rows)
    shown = [
        row if place not in pairs else _as_recorded(row, old.rows[pairs[place]]) for place, row in enumerate(new.rows)
    ]
    head, *lines = _laid_out(old.heads, [*old.rows, *shown])
    then, now = ("\n".join((head, *some)) for some in (lines[: len(old.rows)], lines[len(old.rows) :]))
    texts = (then, now) if then != now else (before, after)
    return in_brief(_statements(old.rows, new.rows, pairs), *texts)


def _as_recorded(row: _Call, recorded: _Call) -> _Call:
    """A call with its recorded number, and with the recorded level where it did the same itself."""
    sizes = recorded.sizes if row.call and row.sizes[:-1] == recorded.sizes[:-1] else row.sizes
    return row._replace(call=recorded.call, sizes=sizes)


def _laid_out(heads: Sequence[str], rows: Iterable[_Call]) -> list[str]:
    columns = (Column(name, "right" if name in ("call", *_SIZES) else "left") for name in heads)
    return Table(tuple(columns), tuple((row.call, *row.what, *row.sizes) for row in rows)).lines()


def _statements(old: Sequence[_Call], new: Sequence[_Call], pairs: Mapping[int, int]) -> Iterator[str]:
    matched = {*pairs.values()}
    more = [row for place, row in enumerate(new) if place not in pairs]
    fewer = [row for place, row in enumerate(old) if place not in matched]
    pushed = len(more) == len(fewer) and bool(more)  # as many rows as before: the smaller ones had no room
    yield from _counted(more, "more")
    yield from _counted(fewer, "no longer among the largest" if pushed else "fewer")
    changes: Counter[tuple[str, str]] = Counter()
    levels: list[str] = []
    calls: list[str] = []
    for place, there in sorted(pairs.items()):
        row, recorded = new[place], old[there]
        told = [
            f"{name} {then} -> {now}"
            for name, then, now in zip(_SIZES, recorded.sizes, row.sizes, strict=True)
            if then != now and (name != _LEVEL or not row.call)
        ]
        if told:
            changes[str(row), ", ".join(told)] += 1
        elif row.sizes != recorded.sizes:
            levels.append(f"{row}: {recorded.sizes[-1]} -> {row.sizes[-1]}")
        if row.call != recorded.call:
            calls.append(f"{row}: {recorded.call} -> {row.call}")
    for (name, told_), number in changes.items():
        yield f"{f'{number} calls of ' if number > 1 else ''}{name}: {told_}"
    if levels:
        yield f"another level after {count(len(levels), 'call')} (not shown below), first {levels[0]}"
    if calls and not (more or fewer or changes or levels):
        yield f"{count(len(calls), 'call')} with another number, first {calls[0]}: calls that allocate less came before"


def _counted(rows: Iterable[_Call], word: str) -> Iterator[str]:
    for (name, sizes), number in Counter((str(row), row.sizes[:-1]) for row in rows).items():
        told = ", ".join(f"{column} {size}" for column, size in zip(_SIZES, sizes, strict=False) if size != "-")
        yield f"{count(number, 'call')} {word}: {name}{f', {told}' if told else ''}"


def _pairs(old: Sequence[_Call], new: Sequence[_Call]) -> dict[int, int]:
    """Places of current rows with those of the recorded ones: of equal sizes first, then in order of the calls."""
    left: dict[tuple[str, ...], list[int]] = {}
    for place in sorted(range(len(old)), key=lambda place: int(old[place].call or 0)):
        left.setdefault(old[place].what, []).append(place)
    order = sorted(range(len(new)), key=lambda place: int(new[place].call or 0))
    pairs: dict[int, int] = {}
    for same in (True, False):
        for place in order:
            if place in pairs:
                continue
            row = new[place]
            some = left.get(row.what, [])
            fitting = (there for there in some if not same or old[there].sizes[:-1] == row.sizes[:-1])
            there = next(fitting, None)
            if there is not None:
                some.remove(there)
                pairs[place] = there
    return pairs


def _read(text: str) -> _Summary | None:
    """The rows of a text; ``None`` where it is no summary."""
    head, *lines = [line for line in text.split("\n") if line.strip()] or [""]
    heads = tuple(_GAP.split(head.strip()))
    several = heads[4:5] == (_DEVICE,)
    if heads != (*_WORDS, *((_DEVICE,) if several else ()), *_SIZES):
        return None
    starts = [head.index(name) for name in _WORDS[1:]]
    rows = []
    for line in lines:
        call, *names = (line[start:end].strip() for start, end in zip((0, *starts[:2]), starts, strict=True))
        sizes = _GAP.split(line[starts[2] :].strip())
        more = [*([sizes.pop(0)] if len(sizes) > len(_SIZES) + several else [""]), *([sizes.pop(0)] if several else [])]
        if len(sizes) != len(_SIZES) or (call and not call.isdecimal()) or len(names) != 2:
            return None
        rows.append(_Call(call, (*names, *more), tuple(sizes)))
    return _Summary(heads, rows)
