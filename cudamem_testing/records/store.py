"""The store of recorded files, which are committed: one entry a line, read strictly and changed in one step.

A line is a JSON object, and errors name it: after a merge any line can be kept or dropped by itself. Lines are sorted,
so that branches that add entries meet in few places. A file that cannot be understood is never overwritten.
Processes that change files of a folder wait for each other, so none loses what another added. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from cudamem_testing.show.atomic_files import replace_file, shown
from cudamem_testing.show.places import content_of, mode_of

K = TypeVar("K")
V = TypeVar("V")
_CONFLICT = ("<<<<<<<", "=======", ">>>>>>>", "|||||||")


class RecordError(ValueError):
    """A recorded file that cannot be understood: its name, the line and the ``reason``."""

    def __init__(self, name: str, line: int, reason: str) -> None:
        super().__init__(f"{name}:{line}: {reason}")
        self.reason = reason


class Store(Generic[K, V]):
    """One kind of recorded file.

    ``parse`` reads the content of a file, whose name is for errors; ``render`` writes it. Where ``keeps_empty``, a
    file stays when its last entry is dropped; otherwise it is removed.
    """

    def __init__(
        self,
        parse: Callable[[str, bytes], dict[K, V]],
        render: Callable[[Mapping[K, V]], bytes],
        *,
        keeps_empty: bool = False,
    ) -> None:
        self._parse, self._render, self._keeps_empty = parse, render, keeps_empty

    def read(self, path: Path, name: str = "") -> dict[K, V]:
        """The entries of a file; none if it does not exist.

        Raises:
            RecordError: when it cannot be understood.
            OSError: when it cannot be read.
        """
        content = content_of(path)
        return {} if content is None else self._parse(name or shown(path), content)

    def change(self, path: Path, make: Callable[[dict[K, V]], Mapping[K, V]], name: str = "") -> bool:
        """Replace a file by what ``make`` makes of its entries; returns whether that was something else.

        ``make`` may be called twice. A file whose entries stay keeps its text, even in another order or format.

        Raises:
            RecordError: when it cannot be understood; it is then untouched.
            OSError: when it cannot be read or written; it names the file.
        """
        if not mode_of(path) and not make({}):
            return False  # and no folder is made

        def changed(content: bytes | None) -> bytes | None:
            old = {} if content is None else self._parse(name or shown(path), content)
            new = make(dict(old))
            if new == old:
                return content
            return self._render(new) if new or self._keeps_empty else None

        return change_file(path, changed)


def change_file(path: Path, change: Callable[[bytes | None], bytes | None]) -> bool:
    """Replace a file's content by a function of it; returns whether it changed. ``None`` means no file.

    Raises:
        OSError: it cannot be read or written; the old file is untouched. Exceptions of the function are raised too.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent):
        old = content_of(target)
        new = change(old)
        if new == old:
            return False
        if new is None:
            target.unlink()
        else:
            replace_file(target, new)
        return True


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock between processes; does nothing without locks (Windows, some network file systems)."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class FileLine(NamedTuple):
    """A line of a file that is not empty, without the space around it."""

    number: int
    text: str


Row: TypeAlias = tuple[int, dict[str, Any]]
"""The number of a line, and the object that it holds."""


def lines(name: str, content: bytes) -> list[FileLine]:
    """The lines of a file.

    Raises:
        RecordError: for one that is no text, or that a merge left for people.
    """
    found = []
    for number, raw in enumerate(content.split(b"\n"), 1):
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise RecordError(name, number, "is not UTF-8 text") from None
        if text.startswith(_CONFLICT):
            raise RecordError(name, number, "an unresolved merge conflict: keep one line of each entry")
        if text:
            found.append(FileLine(number, text))
    return found


def rows(name: str, some: Iterable[FileLine]) -> list[Row]:
    """The objects of some lines; a comma may follow each.

    Raises:
        RecordError: for a line that is no JSON object, or has a key twice.
    """
    found = []
    for number, text in some:
        try:
            data = json.loads(text.removesuffix(","), object_pairs_hook=_object)
            if not isinstance(data, dict):
                raise ValueError("is no object")
        except json.JSONDecodeError as error:
            raise RecordError(name, number, f"is no JSON: {error.msg} (column {error.colno})") from None
        except RecursionError:
            raise RecordError(name, number, "is nested too deeply") from None
        except ValueError as error:
            raise RecordError(name, number, str(error)) from None
        found.append((number, data))
    return found


def entries(name: str, some: Iterable[Row], read: Callable[[Row], tuple[K, V]], key: str) -> dict[K, V]:
    """What rows say; ``read`` raises ``ValueError`` with what is wrong, and ``key`` says what an entry is found by.

    Raises:
        RecordError: for a row that is no entry, or has the same key as another.
    """
    found: dict[K, V] = {}
    written: dict[K, int] = {}
    for row in some:
        try:
            one, value = read(row)
            if one in found:
                raise ValueError(f"the same {key} as in line {written[one]}: keep one of them")
        except ValueError as error:
            raise RecordError(name, row[0], str(error)) from None
        found[one], written[one] = value, row[0]
    return found


def has_conflict(text: str) -> bool:
    """Whether a merge left both sides of a text for people."""
    starts = [line[:7] for line in text.split("\n")]
    return _CONFLICT[0] in starts and _CONFLICT[2] in starts


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("has a key twice")
    return data


def check_keys(data: Iterable[str], required: Collection[str], optional: Collection[str] = ()) -> None:
    """Refuse an object with a key too many or too few.

    Raises:
        ValueError: naming the first one.
    """
    given = [*data]
    unknown = [key for key in given if key not in required and key not in optional]
    missing = [key for key in required if key not in given]
    if unknown or missing:
        raise ValueError(f"has the unknown key {unknown[0]!r}" if unknown else f"has no {missing[0]!r}")


def text_of(name: str, value: object) -> str:
    """A value that must be text.

    Raises:
        ValueError: when it is not.
    """
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value
