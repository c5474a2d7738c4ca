"""Baseline files: ``__cudamem__/<test module>.json`` beside the test module, one line an entry.

Such a file is JSON. Every entry's line ends with a comma (a ``null`` closes the list), so that adding the last entry
changes no other line. Each environment has one line, which gives it a short name made of its own text: two branches
that add the same one write the same line. Exact bytes have a readable size beside them, and both must agree. Files of
schema 1 are read too, and become schema 2 when an entry changes.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from cudamem_testing.model.baselines import Entry, PeakLine
from cudamem_testing.model.changes import COUNTS, SIZES, TRACKED, Spread
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.identity import is_real_card_of, without_threads
from cudamem_testing.records import store
from cudamem_testing.records.store import FileLine, RecordError, Row, Store, check_keys, text_of

SCHEMA = 2
READABLE = (1, 2)
_OPENING = '{"kind": "baselines", "schema": '
_HEADER = f'{_OPENING}{SCHEMA}, "entries": ['
_FOOTER = "null]}"
_WHERE = ("in", "device", "environment")
_PLACE = 'top is no list of ["file::qualname", "text", bytes, blocks]'
_MORE: Mapping[str, type] = {"saved": int, "nth": int, "recorded": bool}  # of a place, where they are not 0, and known


class BaselineKey(NamedTuple):
    """What an entry is found by: the test's id inside its module, the device, and what the numbers depend on."""

    test: str
    device: Device
    environment: str


Entries = Mapping[BaselineKey, Entry]


class Recorded:
    """The entries of a file, found by test and device, even if they were recorded with another number of threads.

    The memory of a test seldom depends on that number. If it does, the entries of one test differ, and each is valid
    only for its own number. With ``real_cards`` those of a real card hold for a simulated one of its model, too.
    """

    def __init__(self, entries: Entries, *, real_cards: bool = False) -> None:
        self.entries = entries
        self._real_cards = real_cards

    @cached_property
    def _alike(self) -> dict[BaselineKey, list[BaselineKey]]:
        found: dict[BaselineKey, list[BaselineKey]] = {}
        for key in self.entries:
            found.setdefault(_without_threads(key), []).append(key)
        return found

    def find(self, key: BaselineKey) -> BaselineKey | None:
        """The key of the entry that holds for ``key``; ``None`` where there is none."""
        if key in self.entries:
            return key
        alike: Sequence[BaselineKey] = self._alike.get(_without_threads(key), ())
        same = {tuple(sorted(self.entries[one].values.items())) for one in alike}
        if len(same) == 1:
            return alike[0]
        return self._of_real_card(key) if self._real_cards else None

    def _of_real_card(self, key: BaselineKey) -> BaselineKey | None:
        """The entry of a real card of the model; of several that of the same torch, or else the last by name."""
        found = [
            one for one in self.entries if one[:2] == key[:2] and is_real_card_of(one.environment, key.environment)
        ]
        torch = key.environment.split(", ")[1:2]
        return max(found, key=lambda one: (one.environment.split(", ")[1:2] == torch, one.environment), default=None)

    def get(self, key: BaselineKey) -> Entry | None:
        """The entry that holds for ``key``."""
        found = self.find(key)
        return None if found is None else self.entries[found]

    def __bool__(self) -> bool:
        return bool(self.entries)


def _without_threads(key: BaselineKey) -> BaselineKey:
    return key._replace(environment=without_threads(key.environment))


def module_of(path: Path) -> Path:
    """The test module of a baseline file: the Python file of that name, or a file with exactly that name."""
    named = path.parent.parent / path.stem
    return named if named.is_file() else named.with_name(f"{path.stem}.py")


def render(entries: Entries) -> bytes:
    """The content of a file: a line for each environment, then entries sorted by test, device and environment."""
    labels = {key[1:]: _label(key) for key in entries}
    rows: list[dict[str, Any]] = [
        {"in": label, "device": str(device), "environment": environment}
        for (device, environment), label in sorted(labels.items(), key=lambda pair: pair[1])
    ]
    for key in sorted(entries, key=lambda key: (key.test, str(key.device), key.environment)):
        entry = entries[key]
        row: dict[str, Any] = {"test": key.test, "in": labels[key[1:]], **_readable(entry.values)}
        for name, metrics in (("bytes", SIZES), ("counts", COUNTS)):
            exact = {metric: _ends(entry.values[metric]) for metric in metrics if metric in entry.values}
            row |= {name: exact} if exact else {}
        row["top"] = [_place_row(place) for place in entry.top]
        row |= {name: text for name, text in (("body", entry.body), ("lines", entry.lines)) if text}
        rows.append(row)
    return "\n".join((_HEADER, *(json.dumps(row) + "," for row in rows), _FOOTER, "")).encode()


def _label(key: BaselineKey) -> str:
    """A short name of an environment, the same in every file."""
    return f"{key.device}-{hashlib.sha256(key.environment.encode()).hexdigest()[:6]}"


def _readable(values: Mapping[str, Spread]) -> dict[str, str]:
    """Readable sizes; requested bytes are called peak unless a peak is kept too."""
    return {
        "peak" if metric == "requested" and "peak" not in values else metric: values[metric].text(metric)
        for metric in SIZES
        if metric in values
    }


def _ends(spread: Spread) -> int | list[int]:
    return spread.low if spread.low == spread.high else [spread.low, spread.high]


def _place_row(place: PeakLine) -> list[Any]:
    told = {name: getattr(place, name) for name in _MORE}
    more = {name: value for name, value in told.items() if value or value is False}
    return [place.name, place.text, place.bytes, place.blocks, *([more] if more else [])]


def parse(name: str, content: bytes) -> dict[BaselineKey, Entry]:
    """The entries of a file's content; ``name`` is for errors.

    Raises:
        RecordError: naming the line and the reason.
    """
    lines = store.lines(name, content)
    reader = _Reader(_schema(name, lines))
    rows = store.rows(name, lines[1:-1])
    for number, data in filter(reader.is_place, rows):
        try:
            reader.add(data)
        except ValueError as error:
            raise RecordError(name, number, str(error)) from None
    return store.entries(
        name, (row for row in rows if not reader.is_place(row)), reader.entry, "test, device and environment"
    )


def _schema(name: str, lines: list[FileLine]) -> int:
    """The schema of a file, from its first line; its last line must be there too."""
    number, header = lines[0] if lines else (1, "")
    schema = header.removeprefix(_OPENING).partition(",")[0]
    known = next((one for one in READABLE if header == f'{_OPENING}{one}, "entries": ['), None)
    if known is None:
        newer = header.startswith(_OPENING) and schema.isdecimal() and int(schema) not in READABLE
        reason = f"schema {schema} is not known here, only 1 and 2" if newer else f"does not begin with {_HEADER}"
        raise RecordError(name, number, reason)
    number, footer = lines[-1]
    if footer != _FOOTER:
        raise RecordError(name, number, f"does not end with {_FOOTER}: the file was cut off")
    return known


class _Reader:
    """Reads the rows of one file; each method raises ``ValueError`` with what is wrong."""

    def __init__(self, schema: int) -> None:
        self._schema = schema
        self._environments: dict[str, tuple[Device, str]] = {}

    def is_place(self, row: Row) -> bool:
        """Whether a row is that of an environment."""
        return self._schema > 1 and "test" not in row[1] and "environment" in row[1]

    def add(self, row: dict[str, Any]) -> None:
        """Note an environment."""
        check_keys(row, _WHERE)
        label, device, environment = (text_of(name, row[name]) for name in _WHERE)
        found = Device.parse(device), environment
        if self._environments.setdefault(label, found) != found:
            raise ValueError(f"another line says something else of {label!r}")

    def entry(self, row: Row) -> tuple[BaselineKey, Entry]:
        """A row that is an entry."""
        return self._first(row[1]) if self._schema == 1 else self._second(row[1])

    def _first(self, row: dict[str, Any]) -> tuple[BaselineKey, Entry]:
        check_keys(row, ("test", "device", "environment", "top"), optional=TRACKED)
        test, device, environment = (text_of(name, row[name]) for name in ("test", "device", "environment"))
        values = {metric: _spread(metric, row[metric]) for metric in TRACKED if metric in row}
        return BaselineKey(test, Device.parse(device), environment), Entry(values, _old_top(row["top"]))

    def _second(self, row: dict[str, Any]) -> tuple[BaselineKey, Entry]:
        check_keys(row, ("test", "in", "top"), optional=("bytes", "counts", "body", "lines", *SIZES))
        test, label = text_of("test", row["test"]), text_of("in", row["in"])
        if label not in self._environments:
            raise ValueError(f"no line says what the environment {label!r} is")
        exact: dict[str, Any] = {}
        for name, metrics in (("bytes", SIZES), ("counts", COUNTS)):
            numbers = row.get(name, {})
            if not isinstance(numbers, dict):
                raise ValueError(f"{name} is no object")
            check_keys(numbers, (), optional=metrics)
            exact |= numbers
        values = {metric: _spread(metric, exact[metric]) for metric in TRACKED if metric in exact}
        readable = {name: row[name] for name in SIZES if name in row}
        for name, text in _readable(values).items():
            if readable.pop(name, text) != text:
                raise ValueError(f"{name} is {row[name]!r}, but its bytes are {text}: change both or neither")
        if readable:
            raise ValueError(f"{next(iter(readable))} has no bytes")
        body, lines = (text_of(name, row.get(name, "")) for name in ("body", "lines"))
        return BaselineKey(test, *self._environments[label]), Entry(values, _top(row["top"]), body, lines)


def _spread(metric: str, value: object) -> Spread:
    ends = [end for end in (value if isinstance(value, list) else [value]) if type(end) is int]
    given = len(value) if isinstance(value, list) else 1
    if given not in (1, 2) or len(ends) != given or ends[0] > ends[-1]:
        raise ValueError(f"{metric} is neither a whole number nor [lowest, highest]")
    return Spread(ends[0], ends[-1])


def _top(value: object) -> tuple[PeakLine, ...]:
    places = value if isinstance(value, list) else [None]
    return tuple(map(_place, places))


def _place(row: object) -> PeakLine:
    if not isinstance(row, list) or [*map(type, row[:4])] != [str, str, int, int]:
        raise ValueError(_PLACE)
    name, text, size, blocks, *rest = row
    more = rest[0] if rest else {}
    if len(rest) > 1 or not isinstance(more, dict) or any(type(more[name]) is not _MORE.get(name) for name in more):
        raise ValueError(_PLACE)
    return PeakLine(name, size, text, blocks, **more)


def _old_top(value: object) -> tuple[PeakLine, ...]:
    places = value if isinstance(value, list) else [None]
    pairs = [pair for pair in places if isinstance(pair, list) and len(pair) == 2]
    if len(pairs) < len(places) or any(type(name) is not str or type(size) is not int for name, size in pairs):
        raise ValueError('top is no list of ["file::qualname", bytes]')
    return tuple(PeakLine(name, size) for name, size in pairs)


#: The files of baselines.
BASELINES: Store[BaselineKey, Entry] = Store(parse, render)


def readable(path: Path, *, real_cards: bool) -> Recorded | None:
    """The entries of a file; ``None`` for one that cannot be read, which is reported once, at the end of the run."""
    try:
        return Recorded(BASELINES.read(path), real_cards=real_cards)
    except (RecordError, OSError):
        return None
