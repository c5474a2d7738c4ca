"""What a rank is asked for, and what it writes: one file, replaced as a whole. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cudamem_testing.model.records import TestRecord
from cudamem_testing.report.schema import TEST
from cudamem_testing.show.atomic_files import TEMPORARY

VARIABLE = "CUDAMEM_RANKS"
"""The environment variable with the folder of a test whose processes ask for themselves."""
ORDER = "order.json"


class Written(NamedTuple):
    """What a process has written: ``record`` is ``None`` if it has only begun."""

    name: str
    devices: tuple[str, ...] = ()
    record: TestRecord | None = None
    notes: tuple[str, ...] = ()


def read_order(folder: Path) -> dict[str, Any] | None:
    """What the folder of a test asks for; ``None`` when the test has ended."""
    try:
        order: dict[str, Any] = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return order


def write(path: Path, written: Written) -> None:
    """Replace the file of a process; a folder that is gone belongs to a test that has ended.

    Raises:
        OSError: it cannot be written; the old file is untouched.
    """
    data = {**written._asdict(), "record": None if written.record is None else TEST.write(written.record)}
    part = path.with_suffix(f".{os.getpid()}{TEMPORARY}")
    with suppress(FileNotFoundError):
        try:
            part.write_text(json.dumps(data), encoding="utf-8")
            os.replace(part, path)
        except OSError:
            with suppress(OSError):
                part.unlink()
            raise


def write_order(folder: Path, order: dict[str, Any]) -> Callable[[], None]:
    """Say what processes are to measure that ask for themselves; returns a function that says it no more."""
    (folder / ORDER).write_text(json.dumps(order), encoding="utf-8")
    return partial((folder / ORDER).unlink, missing_ok=True)


def read(path: Path) -> Written | None:
    """What a process has written; ``None`` for nothing.

    Raises:
        ValueError: if it is something else.
    """
    if not path.exists():
        return None
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    record = None if data["record"] is None else TEST.read(data["record"], "the record of a rank")
    return Written(str(data["name"]), tuple(data["devices"]), record, tuple(data["notes"]))
