"""Replace a file in one step: readers see the old content or the new one, never a part. And name one briefly.

PYTEST_DONT_REWRITE
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OUTPUT = (1, 2)
_TEMPORARY = ".cudamem.tmp"
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def replace_file(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write `content`, or its pieces as they come, to `path`, following links and keeping permissions; folders are
    made as needed.

    What is no file (a device, a pipe) takes the content and stays what it is, and so does the output of this process.

    Raises:
        PermissionError: the file is write-protected, also where the user (root) could write all the same.
        OSError: it cannot be written, such as on a full disk; it names `path`, the old file is untouched and nothing
            is left beside it.
    """
    with _named(path):
        _replace(path, (content,) if isinstance(content, bytes) else content)


def _replace(path: Path, pieces: Iterable[bytes]) -> None:
    stream = _stream(path)
    if stream is not None:
        with open(stream, "wb", closefd=stream is path) as file:
            file.writelines(pieces)
        return
    target = Path(os.path.realpath(path))
    old = target.stat() if target.exists() else None
    if old is not None and not (old.st_mode & _WRITABLE and os.access(target, os.W_OK)):
        raise PermissionError(errno.EACCES, "the file is read-only", str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name[:100]}.{os.urandom(4).hex()}{_TEMPORARY}")
    try:
        with temporary.open("xb") as file:
            if old is not None:
                with suppress(OSError, AttributeError):  # the owner: kept where the system lets us
                    os.chown(temporary, old.st_uid, old.st_gid)
                shutil.copymode(target, temporary)
            file.writelines(pieces)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of the system name this file where they name none, or only a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or not (error.filename is None or str(error.filename).endswith(_TEMPORARY)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _stream(path: Path) -> Path | int | None:
    """Where to write at once what cannot be replaced; ``None`` for a file, and for what is not there."""
    try:
        there = path.stat()
    except OSError:
        return None
    for handle in _OUTPUT:
        with suppress(OSError):  # it is closed
            if os.path.samestat(there, os.fstat(handle)):
                return handle
    return None if stat.S_ISREG(there.st_mode) else path


def change_file(path: Path, change: Callable[[bytes | None], bytes | None]) -> bool:
    """Replace a file by what a function makes of its content; whether that was something else.

    The function gets ``None`` for a file that does not exist, and gives ``None`` to leave it so. Other processes of
    this machine that change a file of the same folder wait for each other, so that none loses what another added.

    Raises:
        OSError: it cannot be read or written; the old file is untouched. What the function raises passes as well.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.parent):
        old = target.read_bytes() if target.exists() else None
        new = change(old)
        if new is None or new == old:
            return False
        replace_file(target, new)
        return True


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a folder's lock between processes; where there is none (Windows, some network file systems), nothing."""
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


def below(root: Path, file: str) -> Path:
    """The path, links followed, of a file that a document from outside names relative to `root`.

    Raises:
        ValueError: it does not lie below `root`, or its name cannot be read.
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
    """Why nothing is written for a test file that a document from outside names; ``None`` where it is there."""
    try:
        return None if below(root, file).is_file() else f"there is no such file in {root}"
    except OSError as error:  # such as a name that is too long
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)


def shown(path: Path) -> str:
    """Return the path as messages show it: relative to the working folder if it lies there."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
