"""The file of known findings: its name and place, and its updates.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cudamem_testing.model.causes import Cause
from cudamem_testing.model.nodeids import file_of
from cudamem_testing.model.sizes import count
from cudamem_testing.records.known import KNOWN_FILES, Evidence, Lines, Update, recorded
from cudamem_testing.show.atomic_files import why_not
from cudamem_testing.show.places import KNOWN
from cudamem_testing.show.printable import one_line, short_lines

#: The default path below rootdir.
PLACE = Path(KNOWN)


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was recorded of a report, the causes that changed, and why nothing was recorded for missing test files."""

    said: str
    sizes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        return short_lines("\n".join((self.said, *(f"    {line}" for line in self.sizes), *self.refused)))


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """The result of an update of a file, and whether it was written."""

    update: Update
    name: str
    written: bool

    def __str__(self) -> str:
        return f"known findings: {self.update} ({self.name} {'was written' if self.written else 'is unchanged'})"


def change_known(path: Path, name: str, change: Callable[[Lines], Update]) -> ChangedFile:
    """Change the file; returns what was changed. Processes that do so wait for each other.

    Raises:
        RecordError: when it cannot be understood; it is then untouched.
        OSError: when it cannot be read or written.
    """
    update = Update({})

    def changed(lines: Lines) -> Lines:
        nonlocal update
        update = change(lines)
        return update.lines

    written = KNOWN_FILES.change(path, changed, name)
    return ChangedFile(update, name, written)


def accept(path: Path, name: str, root: Path, causes: Iterable[Cause], *, record: bool = True) -> Accepted:
    """Record the causes of a report that are of tests below ``root``, or of no test; or say what would be recorded.

    Nothing is dropped or lowered: a report does not say what it did not look for.

    Raises:
        RecordError: when the file cannot be understood; it is then untouched.
        OSError: when it cannot be read or written.
    """
    found = [(cause, {*map(file_of, cause.tests)}) for cause in causes]
    reasons = {file: why_not(root, file) for _, files in found for file in files}
    here = [cause for cause, files in found if not files or None in map(reasons.get, files)]
    elsewhere = {file for cause, files in found if cause not in here for file in files}
    if not record:
        update = recorded(KNOWN_FILES.read(path, name), here, Evidence())
        sizes = tuple(update.sizes)
        them = "it" if len(sizes) == 1 else "them"
        return Accepted(f"known findings: {count(len(sizes), 'cause')} not recorded (--known records {them}):", sizes)
    changed = change_known(path, name, lambda lines: recorded(lines, here, Evidence()))
    refused = tuple(one_line(f"not recorded for {file}: {reasons[file]}") for file in sorted(elsewhere))
    return Accepted(str(changed), tuple(changed.update.sizes), refused)
