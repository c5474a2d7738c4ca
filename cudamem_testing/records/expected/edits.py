"""The texts accepted during a run, written once at its end.

Nothing is written while tests run, so every position stays what it was when the modules were imported. Each file's
content is hashed when it is first read; a file that changed since is refused, not patched.

PYTEST_DONT_REWRITE
"""

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cudamem_testing.records.store import change_file, has_conflict
from cudamem_testing.show.atomic_files import shown
from cudamem_testing.show.printable import one_line

from .errors import NotLocatedError, NotWrittenError
from .rewrite import rewrite
from .side import read_side_file, side_content
from .source import CHANGED, Entry, Literal, Source, digest
from .text import canonical


@dataclass(frozen=True, slots=True)
class SideFile:
    """A whole file that keeps one text."""

    file: Path
    line: int = 1


Place = Literal | Entry | SideFile


@dataclass(frozen=True, slots=True)
class Wish:
    """The text that a test wants in a place, and the current one (None: nothing yet)."""

    text: str
    test: str
    current: str | None


@dataclass(frozen=True, slots=True)
class Refused:
    """Texts of a file that were not written, as (line, test, text), and why; others of that file may have been."""

    file: Path
    reason: str
    texts: tuple[tuple[int, str, str], ...]

    def __str__(self) -> str:
        texts = "1 text was" if len(self.texts) == 1 else f"{len(self.texts)} texts were"
        lines = [one_line(f"{shown(self.file)}: {texts} not written: {self.reason}")]
        for line, test, text in self.texts:
            lines.append(f"    line {line}, {one_line(test)}:")
            lines += [f"        | {one}".rstrip() for one in text.split("\n")]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Written:
    """What `Edits.write` did: files with the number of texts written to each, and refusals."""

    files: tuple[tuple[Path, int], ...]
    refused: tuple[Refused, ...]

    def __str__(self) -> str:
        count = sum(number for _, number in self.files)
        lines = [f"{count} expected text{'' if count == 1 else 's'} written"] if count else []
        lines += [f"    {shown(file)}  {number}" for file, number in self.files]
        return "\n".join([*lines, *map(str, self.refused)]) or "no expected text has changed"

    def raise_if_refused(self) -> None:
        """Raise `NotWrittenError` with all refusals, if there are any."""
        if self.refused:
            raise NotWrittenError("\n".join(map(str, self.refused)))


@dataclass(slots=True)
class Edits:
    """Collects what tests want written; owned by one session."""

    _wishes: dict[Place, Wish] = field(default_factory=dict)
    _conflicts: dict[Place, list[Wish]] = field(default_factory=dict)
    _sources: dict[Path, Source] = field(default_factory=dict)
    _digests: dict[Path, str | None] = field(default_factory=dict)

    def watch(self, path: Path) -> None:
        """Remember the content of `path` now: a later change of it is noticed. The first call counts."""
        path = _real(path)
        if path not in self._digests:
            self._digests[path] = _digest(path)

    def digest(self, path: Path) -> str | None:
        """Return a digest of the content of `path` when it was first read; None for no file.

        Raises:
            NotLocatedError: it cannot be read.
        """
        try:
            self.watch(path)
        except OSError as error:
            raise NotLocatedError(f"{path} cannot be read: {error.strerror or error}") from error
        return self._digests[_real(path)]

    def source(self, path: Path) -> Source:
        """Return the parsed file.

        Raises:
            NotLocatedError: it cannot be read, or changed since it was first read.
        """
        path = _real(path)
        if path not in self._sources:
            source = Source(path)
            if self._digests.setdefault(path, source.digest) != source.digest:
                raise NotLocatedError(CHANGED)
            self._sources[path] = source
        return self._sources[path]

    def side(self, path: Path) -> tuple[SideFile, str | None]:
        """Return the side file at `path` and what it holds, None if it does not exist.

        Raises:
            NotLocatedError: it cannot be read.
        """
        place = SideFile(_real(path))
        self.watch(place.file)
        try:
            text = read_side_file(place.file)
        except (OSError, UnicodeDecodeError) as error:
            raise NotLocatedError(f"{path} cannot be read: {error}") from error
        if text is not None and has_conflict(text):
            raise NotLocatedError(f"{path} has an unresolved merge conflict: keep one of its texts, or delete it")
        return place, text

    def want(self, place: Place, wish: Wish) -> Wish | None:
        """Record a wish, also one for the text that is there; return an earlier wish that it contradicts.

        A place with contradicting wishes is not written.
        """
        earlier = self._wishes.setdefault(place, wish)
        if earlier.text == wish.text:
            return None
        self._conflicts.setdefault(place, [earlier]).append(wish)
        return earlier

    def write(self) -> Written:
        """Write every file once and forget the wishes. Failures are in the result, nothing is raised for them."""
        changes: dict[Path, dict[Place, Wish]] = {}
        for place, wish in self._wishes.items():
            if place not in self._conflicts and (wish.current is None or canonical(wish.current) != wish.text):
                changes.setdefault(place.file, {})[place] = wish
        files: list[tuple[Path, int]] = []
        refused = [
            Refused(place.file, "contradicting texts for one place", _texts([(place, wish) for wish in wishes]))
            for place, wishes in self._conflicts.items()
        ]
        for path, wishes in sorted(changes.items()):
            reason = self._write_file(path, wishes)
            if reason is None:
                files.append((path, len(wishes)))
            else:
                refused.append(Refused(path, reason, _texts(list(wishes.items()))))
        for record in (self._wishes, self._conflicts, self._sources, self._digests):
            record.clear()
        return Written(tuple(files), tuple(refused))

    def _write_file(self, path: Path, wishes: dict[Place, Wish]) -> str | None:
        """Write one file; return why not."""
        try:
            change_file(path, partial(self._content, path, wishes))
        except NotLocatedError as error:
            return str(error)
        except OSError as error:
            return error.strerror or str(error)
        except SyntaxError as error:
            return f"the result would not be valid Python ({error.msg}); please report this"
        return None

    def _content(self, path: Path, wishes: dict[Place, Wish], old: bytes | None) -> bytes:
        """The new content of a file, if it has not changed since it was first read."""
        if (None if old is None else digest(old)) != self._digests.get(path):
            raise NotLocatedError(CHANGED)
        places = {place: wish.text for place, wish in wishes.items() if not isinstance(place, SideFile)}
        if places:
            return rewrite(self._sources[path], places)
        (wish,) = wishes.values()
        return side_content(wish.text)


def _texts(wishes: list[tuple[Place, Wish]]) -> tuple[tuple[int, str, str], ...]:
    return tuple((place.line, wish.test, wish.text) for place, wish in wishes)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _digest(path: Path) -> str | None:
    try:
        return digest(path.read_bytes())
    except FileNotFoundError:
        return None
