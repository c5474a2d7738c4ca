"""Replaces files atomically: readers see the old content or the new one, never a part. Also shortens paths.

PYTEST_DONT_REWRITE
"""

import errno
import glob
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cudamem_testing.show.places import mode_of

_OUTPUT = (1, 2)
TEMPORARY = ".cudamem.tmp"
"""The end of the name of a file that is being written."""
_FORSAKEN_S = 3600
"""Seconds without a write after which the process that wrote such a file is taken to have been killed."""
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def replace_file(path: Path, content: bytes | Iterable[bytes] | Callable[[BinaryIO], None]) -> None:
    """Write `content`, its pieces as they come, or what a function writes, to `path`, following links and keeping
    permissions; folders are made as needed.

    A device or a pipe, and the output of this process, is written to and not replaced. A process that is killed leaves
    the old file, and perhaps a temporary one, which a later call for the same path removes. Power cuts are left to the
    file system: nothing waits for the disk.

    Raises:
        PermissionError: the file is write-protected, even if the user (root) could write it.
        OSError: it cannot be written, for example on a full disk; it names `path`, the old file is untouched and
            nothing is left behind.
    """
    with _named(path):
        if callable(content):
            _replace(path, content)
        else:
            pieces = (content,) if isinstance(content, bytes) else content
            _replace(path, lambda file: file.writelines(pieces))


def _replace(path: Path, write: Callable[[BinaryIO], None]) -> None:
    stream = _stream(path)
    if stream is not None:
        with open(stream, "wb", closefd=stream is path) as file:
            write(file)
        return
    target = Path(os.path.realpath(path))
    old = target.stat() if mode_of(target) else None
    if old is not None and not (old.st_mode & _WRITABLE and os.access(target, os.W_OK)):
        raise PermissionError(errno.EACCES, "the file is read-only", str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_forsaken(target)
    temporary = target.with_name(f".{target.name[:100]}.{os.urandom(4).hex()}{TEMPORARY}")
    try:
        with temporary.open("xb") as file:
            if old is not None:
                with suppress(OSError, AttributeError):  # keep the owner if the system allows it
                    os.chown(temporary, old.st_uid, old.st_gid)
                shutil.copymode(target, temporary)
            write(file)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _remove_forsaken(target: Path) -> None:
    """Remove what processes left that were killed while they wrote this file."""
    for left in target.parent.glob(f".{glob.escape(target.name[:100])}.????????{TEMPORARY}"):
        with suppress(OSError):
            if is_forsaken(left):
                left.unlink()


def is_forsaken(path: Path, *, named: bool = False) -> bool:
    """Whether nothing has written to a temporary file, or into a folder, for an hour.

    With ``named``, also whether its name is one of those that :func:`replace_file` gives.
    """
    if named and not (path.name.startswith(".") and path.name.endswith(TEMPORARY)):
        return False
    try:
        return time.time() - path.lstat().st_mtime > _FORSAKEN_S
    except OSError:
        return False


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add this file's name to system errors without one, or with a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or not (error.filename is None or str(error.filename).endswith(TEMPORARY)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _stream(path: Path) -> Path | int | None:
    """Where to write directly if the target cannot be replaced; ``None`` for a file, and for a missing one."""
    try:
        there = path.stat()
    except OSError:
        return None
    for handle in _OUTPUT:
        with suppress(OSError):  # it is closed
            if os.path.samestat(there, os.fstat(handle)):
                return handle
    return None if stat.S_ISREG(there.st_mode) else path


def below(root: Path, file: str) -> Path:
    """The resolved path of a file that a document from outside names relative to `root`.

    Raises:
        ValueError: it is not below `root`, or its name cannot be read.
    """
    named = Path(file)
    try:
        top, path = Path(os.path.realpath(root)), Path(os.path.realpath(root / named))
    except (OSError, ValueError) as error:  # such as a null character
        raise ValueError(f"its name cannot be read: {error}") from error
    if named.is_absolute() or named.drive or ".." in named.parts or path == top or not path.is_relative_to(top):
        raise ValueError(f"it does not lie below {root}")
    return path


def why_not(root: Path, file: str) -> str | None:
    """Why nothing is written for a test file that a document from outside names; ``None`` if it exists."""
    try:
        return None if stat.S_ISREG(mode_of(below(root, file))) else f"there is no such file in {root}"
    except OSError as error:  # such as a name that is too long
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)


def shown(path: Path) -> str:
    """The path for messages: relative to the current folder if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
