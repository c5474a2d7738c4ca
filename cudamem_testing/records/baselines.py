"""Baseline files: ``__cudamem__/<test module>.json`` beside the test module, one line an entry.

Such a file is JSON, and it is read line by line: an error names its line, and after a merge any line can be kept or
dropped by itself. Every entry's line ends with a comma (a ``null`` closes the list), so that adding the last entry
changes no other line. What cannot be read is never overwritten. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from cudamem_testing.model.baselines import Entry, Place
from cudamem_testing.model.changes import TRACKED, Spread
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.identity import without_threads
from cudamem_testing.records.lines import CONFLICT, check_keys, json_of, text_of
from cudamem_testing.show.files import change_file, shown

SCHEMA = 1
_OPENING = '{"kind": "baselines", "schema": '
_HEADER = f'{_OPENING}{SCHEMA}, "entries": ['
_FOOTER = "null]}"
_NAMES = ("test", "device", "environment")


class Key(NamedTuple):
    """What an entry is found by: the test's id inside its module, the device, and what the numbers depend on."""

    test: str
    device: Device
    environment: str


Entries = Mapping[Key, Entry]


class Recorded:
    """The entries of a file, found by test and device, also where another number of threads recorded them.

    What a test takes seldom depends on that number: where it does, the entries of one test differ, and each holds for
    its own number alone.
    """

    def __init__(self, entries: Entries) -> None:
        self.entries = entries

    @cached_property
    def _alike(self) -> dict[Key, list[Key]]:
        found: dict[Key, list[Key]] = {}
        for key in self.entries:
            found.setdefault(_without_threads(key), []).append(key)
        return found

    def find(self, key: Key) -> Key | None:
        """The key of the entry that holds for ``key``; ``None`` where there is none."""
        if key in self.entries:
            return key
        alike: Sequence[Key] = self._alike.get(_without_threads(key), ())
        same = {tuple(sorted(self.entries[one].values.items())) for one in alike}
        return alike[0] if len(same) == 1 else None

    def get(self, key: Key) -> Entry | None:
        """The entry that holds for ``key``."""
        found = self.find(key)
        return None if found is None else self.entries[found]

    def __bool__(self) -> bool:
        return bool(self.entries)


def _without_threads(key: Key) -> Key:
    return key._replace(environment=without_threads(key.environment))


class BaselineError(ValueError):
    """A file that cannot be read, with its name, the line and the reason."""

    def __init__(self, path: Path, line: int | None, reason: str) -> None:
        place = shown(path) if line is None else f"{shown(path)}:{line}"
        super().__init__(f"{place}: {reason}")
        self.reason = reason


def module_of(path: Path) -> Path:
    """The test module of a baseline file: the Python file of that name, or the file that is called so."""
    named = path.parent.parent / path.stem
    return named if named.is_file() else named.with_name(f"{path.stem}.py")


def name_in_module(nodeid: str) -> str:
    """A test's id inside its module: ``TestDecoder::test_step[bf16]``."""
    return nodeid.partition("::")[2]


def read_file(path: Path) -> dict[Key, Entry]:
    """The entries of a file; none where there is no file.

    Raises:
        BaselineError: when it is no such file, or an entry is wrong.
        OSError: when it cannot be read.
    """
    return parse(path, path.read_bytes()) if path.exists() else {}


def change_entries(path: Path, change: Callable[[dict[Key, Entry]], Entries]) -> bool:
    """Replace a file in one step by what a function makes of its entries; whether that was something else.

    A file that would be empty is removed; the function may be called twice. Other processes that change files of the
    folder wait for each other.

    Raises:
        BaselineError: when the file cannot be understood; it is then untouched.
        OSError: when it cannot be read or written.
    """
    if not path.exists() and not change({}):
        return False  # and no folder is made
    removed = False

    def changed(content: bytes | None) -> bytes | None:
        nonlocal removed
        old = {} if content is None else parse(path, content)
        new = change(dict(old))
        if new or content is None:
            return content if new == old else render(new)
        path.unlink()
        removed = True
        return None

    return change_file(path, changed) or removed


def render(entries: Entries) -> bytes:
    """The content of a file: entries sorted by test, device and environment."""
    lines = [_HEADER]
    for key in sorted(entries, key=lambda key: (key.test, str(key.device), key.environment)):
        entry = entries[key]
        values: dict[str, Any] = {"test": key.test, "device": str(key.device), "environment": key.environment}
        for metric in TRACKED:
            if metric in entry.values:
                spread = entry.values[metric]
                values[metric] = spread.low if spread.low == spread.high else [spread.low, spread.high]
        values["top"] = [[place.name, place.bytes] for place in entry.top]
        lines.append(json.dumps(values) + ",")
    return "\n".join((*lines, _FOOTER, "")).encode()


def parse(path: Path, content: bytes) -> dict[Key, Entry]:
    """The entries of a file's content; ``path`` is for errors.

    Raises:
        BaselineError: naming the line and the reason.
    """
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BaselineError(path, content[: error.start].count(b"\n") + 1, "is not UTF-8 text") from None
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    for number, line in numbered:
        if line.startswith(CONFLICT):
            raise BaselineError(path, number, "an unresolved merge conflict")
    _check_frame(path, numbered)
    found: dict[Key, Entry] = {}
    places: dict[Key, int] = {}
    for number, line in numbered[1:-1]:
        try:
            key, entry = _entry(json_of(line.removesuffix(",")))
        except ValueError as error:
            raise BaselineError(path, number, str(error)) from None
        if key in found:
            raise BaselineError(path, number, f"the same test, device and environment as in line {places[key]}")
        found[key], places[key] = entry, number
    return found


def _check_frame(path: Path, numbered: list[tuple[int, str]]) -> None:
    number, header = numbered[0] if numbered else (1, "")
    if header != _HEADER:
        schema = header.removeprefix(_OPENING).partition(",")[0]
        newer = schema.isdecimal() and schema != str(SCHEMA)
        reason = f"schema {schema} is not known here, only {SCHEMA}" if newer else f"does not begin with {_HEADER}"
        raise BaselineError(path, number, reason)
    number, footer = numbered[-1]
    if footer != _FOOTER:
        raise BaselineError(path, number, f"does not end with {_FOOTER}: the file was cut off")


def _entry(data: object) -> tuple[Key, Entry]:
    if not isinstance(data, dict):
        raise ValueError("is no entry: an object is expected")
    check_keys(data, (*_NAMES, "top"), optional=TRACKED)
    test, device, environment = (text_of(name, data[name]) for name in _NAMES)
    values = {metric: _spread(metric, data[metric]) for metric in TRACKED if metric in data}
    return Key(test, Device.parse(device), environment), Entry(values, _top(data["top"]))


def _spread(metric: str, value: object) -> Spread:
    ends = [end for end in (value if isinstance(value, list) else [value]) if type(end) is int]
    given = len(value) if isinstance(value, list) else 1
    if given not in (1, 2) or len(ends) != given or ends[0] > ends[-1]:
        raise ValueError(f"{metric} is neither a whole number nor [lowest, highest]")
    return Spread(ends[0], ends[-1])


def _top(value: object) -> tuple[Place, ...]:
    places = value if isinstance(value, list) else [None]
    pairs = [pair for pair in places if isinstance(pair, list) and len(pair) == 2]
    if len(pairs) < len(places) or any(type(name) is not str or type(size) is not int for name, size in pairs):
        raise ValueError('top is no list of ["file::qualname", bytes]')
    return tuple(Place(name, size) for name, size in pairs)
