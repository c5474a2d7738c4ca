"""Report files: written whole or not at all. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from cudamem_testing.model.records import RunRecord
from cudamem_testing.report.schema import run_from_json, run_to_json
from cudamem_testing.show.atomic_files import replace_file


def write_json(run: RunRecord, path: Path) -> None:
    """Write the report to ``path``, through a temporary file beside it; one test after the other becomes text.

    Raises:
        OSError: when it cannot be written; what stood at ``path`` is then untouched.
    """
    replace_file(path, (piece.encode() for piece in chain(json_pieces(run_to_json(run, iter)), "\n")))


def write_reports(run: RunRecord, json_file: Path | None, html_file: Path | None) -> tuple[list[str], list[str]]:
    """Write the report in each form that is asked for; returns lines on what was written, and on what could not be."""
    written, problems = [], []
    for path, write in ((json_file, write_json), (html_file, _write_page)):
        if path is not None:
            try:
                write(run, path)
            except OSError as error:
                problems.append(f"the report was not written to {path}: {error}")
            else:
                written.append(f"report written to {path}")
    return written, problems


def _write_page(run: RunRecord, path: Path) -> None:
    from cudamem_testing.report.page import write_html  # few runs write one

    write_html(run, path)


def json_pieces(value: object, margin: str = "\n") -> Iterator[str]:
    """What ``json.dumps(value, indent=1)`` gives, in pieces; an iterator is written as the list of what it gives.

    ``margin`` is a line break with the indentation of the value.
    """
    parts: Iterator[tuple[str, object]]
    if isinstance(value, Iterator):
        brackets, parts = "[]", (("", one) for one in value)
    elif isinstance(value, dict) and any(isinstance(one, dict | Iterator) for one in value.values()):
        brackets, parts = "{}", ((f"{json.dumps(key)}: ", one) for key, one in value.items())
    else:
        yield json.dumps(value, indent=1).replace("\n", margin)
        return
    lead = first = f"{margin} "
    yield brackets[0]
    for label, one in parts:
        yield lead + label
        yield from json_pieces(one, first)
        lead = f",{first}"
    yield brackets[1] if lead is first else margin + brackets[1]


def read_json(path: Path) -> RunRecord:
    """Read a report.

    Raises:
        ValueError: when the file is no report, with its name and the reason.
        OSError: when it cannot be read.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError("the top level is no object")
        return run_from_json(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply for a report") from None
