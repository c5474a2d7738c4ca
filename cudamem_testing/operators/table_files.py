"""Writes tables to files and reads them: versioned JSON, by columns, each text written once.

.. code-block:: json

    {"kind": "operators", "schema": 1, "torch": "2.13.0",
     "levels": [["cpu", 4096, 9216, 5120]], "markers": [["fw_start", 0]], "notes": [],
     "texts": ["aten::addmm", "layer.0", "forward", "cpu", ""],
     "rows": {"call": [0], "operator": [0], "module": [1], "phase": [2], "device": [3], "allocated": [1024], "...": []}}

Levels are device, start, peak and end in bytes. Columns are those of
:class:`~cudamem_testing.operators.rows.OperatorRow`; columns of texts hold indices into ``texts``; ``null`` is unknown,
in ``module`` no module. Files are untrusted: a broken one gives one error that names the position. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cudamem_testing.operators.record import Record
from cudamem_testing.operators.rows import Levels, Marker, OperatorRow, Phase
from cudamem_testing.show.atomic_files import replace_file
from cudamem_testing.torch_api import version

SCHEMA, KIND = 1, "operators"
TEXTS = ("operator", "module", "phase", "device", "region")
NULLABLE = frozenset({"module", "peak", "active", "reserved", "retries"})


class OperatorFileError(ValueError):
    """A file that is not a table of operators, or is damaged; the message names the file and the position."""


def save(table: Record, path: str | Path) -> Path:
    """Write a table atomically; returns the path.

    Raises:
        OSError: if it cannot be written.
    """
    texts: dict[str, int] = {}
    columns: dict[str, list[int | None]] = {}
    for name in OperatorRow._fields:
        column = [getattr(row, name) for row in table.rows]
        if name in TEXTS:
            plain = (text.value if isinstance(text, Phase) else text for text in column)
            column = [None if text is None else texts.setdefault(text, len(texts)) for text in plain]
        columns[name] = column
    document = {
        "kind": KIND,
        "schema": SCHEMA,
        "torch": version(),
        "levels": table.levels,
        "markers": table.markers,
        "notes": table.notes,
        "texts": [*texts],
        "rows": columns,
    }
    path = Path(path)
    replace_file(path, (json.dumps(document, separators=(",", ":")) + "\n").encode())
    return path


def load(path: str | Path) -> Record:
    """Read a record that was saved.

    Raises:
        OperatorFileError: if the file cannot be read or holds no table.
    """
    file = Path(path)
    try:
        document = json.loads(file.read_bytes())
        return _table(document)
    except OSError as error:
        raise OperatorFileError(f"{file.name} cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise OperatorFileError(f"{file.name}: nested too deeply") from None
    except ValueError as error:
        raise OperatorFileError(f"{file.name}: {error}") from None


def _table(document: Any) -> Record:
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ValueError('not a table of operators: "kind" is not "operators"')
    if document.get("schema") != SCHEMA:
        raise ValueError(f"schema {document.get('schema')!r} is unknown; this version reads schema {SCHEMA}")
    levels = tuple(_level(one, f"levels[{place}]") for place, one in enumerate(_list(document, "levels")))
    if not levels:
        raise ValueError("levels is empty")
    markers = tuple(_marker(one, f"markers[{place}]") for place, one in enumerate(_list(document, "markers")))
    notes = tuple(_text(note, f"notes[{place}]") for place, note in enumerate(_list(document, "notes")))
    rows = tuple(_rows(document, {level.device for level in levels}))
    return Record(rows, levels, markers, notes)


def _rows(document: Mapping[str, Any], devices: set[str]) -> Iterator[OperatorRow]:
    found = document.get("rows")
    if not isinstance(found, dict):
        raise ValueError("rows is not an object")
    texts = [_text(text, f"texts[{place}]") for place, text in enumerate(_list(document, "texts"))]
    columns = [_column(found, name, texts) for name in OperatorRow._fields]
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise ValueError("the columns of rows differ in length")
    for place, values in enumerate(zip(*columns, strict=True)):
        row = OperatorRow._make(values)
        if row.device not in devices:
            raise ValueError(f"rows.device[{place}]: {row.device!r} has no levels")
        yield row._replace(phase=_phase(row.phase, f"rows.phase[{place}]"))


def _column(rows: Mapping[str, Any], name: str, texts: Sequence[str]) -> Sequence[Any]:
    column = _list(rows, name, "rows.")
    for place, value in enumerate(column):
        if value is None and name in NULLABLE:
            continue
        if type(value) is not int:
            raise ValueError(f"rows.{name}[{place}] is not a whole number")
        if name in TEXTS and not 0 <= value < len(texts):
            raise ValueError(f"rows.{name}[{place}]: there is no text {value}")
    return [None if value is None else texts[value] for value in column] if name in TEXTS else column


def _level(value: object, place: str) -> Levels:
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError(f"{place} is not [device, start, peak, end]")
    device, start, peak, end = value
    if not isinstance(device, str) or type(start) is not int or type(end) is not int:
        raise ValueError(f"{place} is not [device, start, peak, end]")
    if peak is not None and type(peak) is not int:
        raise ValueError(f"{place} is not [device, start, peak, end]")
    return Levels(device, start, peak, end)


def _marker(value: object, place: str) -> Marker:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str) or type(value[1]) is not int:
        raise ValueError(f"{place} is not [name, index]")
    return Marker(value[0], value[1])


def _phase(value: str, place: str) -> Phase:
    try:
        return Phase(value)
    except ValueError:
        raise ValueError(f"{place}: {value!r} is not a phase") from None


def _list(found: Mapping[str, Any], name: str, prefix: str = "") -> list[Any]:
    value = found.get(name)
    if not isinstance(value, list):
        raise ValueError(f"{prefix}{name} is {'missing' if value is None else 'not a list'}")
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{place} is not a text")
    return value
