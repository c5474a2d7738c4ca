"""The file of known findings: read as it is, changed in one step, never overwritten when it is broken.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from cudamem_testing.baselines.known import Evidence, Lines, Update, parse, recorded, render
from cudamem_testing.model.causes import Cause
from cudamem_testing.show.files import change_file
from cudamem_testing.show.places import KNOWN

#: Where it lies below rootdir when nothing else is said.
PLACE = Path(KNOWN)


def name_of(path: Path, root: Path) -> str:
    """The path as messages show it, the same in every process: relative to rootdir if it lies there."""
    text = os.path.relpath(path, root) if path.is_relative_to(root) else str(path)
    return text.replace("\\", "/")


def change_known(path: Path, name: str, change: Callable[[Lines], Update]) -> str:
    """Change the file as it is now; what came of it. Processes that do so wait for each other.

    Raises:
        KnownError: when it cannot be understood; it is then untouched.
        OSError: when it cannot be read or written.
    """
    update = Update({})

    def changed(content: bytes | None) -> bytes | None:
        nonlocal update
        update = change(parse(name, content or b""))
        return render(update.lines) if content is not None or update.lines else None

    written = change_file(path, changed)
    return f"known findings: {update} ({name} {'was written' if written else 'is as it was'})"


def accept(path: Path, name: str, causes: Iterable[Cause]) -> str:
    """Record the causes of a report. Nothing is dropped or lowered: a report does not say what it did not look for.

    Raises:
        KnownError: when the file cannot be understood; it is then untouched.
        OSError: when it cannot be read or written.
    """
    found = [*causes]
    return change_known(path, name, lambda lines: recorded(lines, found, Evidence()))
