"""Finds the folder for compiled libraries, and checks whether a library may be loaded.

A library is code: anyone who can write its file, or its folder, or one above it, can run code in every process that
loads it. So a folder is used only if only this user or root can write there. A file is loaded only if it belongs to
this user and is what the compiler wrote: its checksum is kept beside it, because a truncated library would crash the
process.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

from cudamem_testing.originals import Original

with suppress(ImportError):  # on Windows, where this module is only imported
    import fcntl
    import grp
    import pwd

_NAME = "cudamem_testing"
_TEMPORARY = "/tmp", "/var/tmp"
#: Seconds to wait for another process that compiles the same library.
MOST_WAITED = 120.0


class Refused(Exception):  # noqa: N818 - an outcome to fall back from, not a programming error
    """A folder cannot be used; the message says which and why."""


def places(environ: Mapping[str, str]) -> Iterator[Path]:
    """Folders for compiled libraries, the first choice first; :func:`checked` says which can be used.

    `$CUDAMEM_CACHE`, else below `$XDG_CACHE_HOME`, else below `~/.cache`; then one of this user in the temporary
    folder, which outlives the process.
    """
    if environ.get("CUDAMEM_CACHE"):
        yield Path(environ["CUDAMEM_CACHE"])
    elif environ.get("XDG_CACHE_HOME"):
        yield Path(environ["XDG_CACHE_HOME"]) / _NAME
    elif home := environ.get("HOME") or _home():
        yield Path(home) / ".cache" / _NAME
    for parent in _temporary():
        yield parent / f"{_NAME}-{os.getuid()}"


def usable(environ: Mapping[str, str], faults: list[str]) -> Iterator[Path]:
    """Folders to keep libraries in, created if necessary; adds to `faults` why others cannot be used.

    The last one is new, and removed when the process ends.
    """
    for folder in places(environ):
        try:
            yield checked(folder, make=True)
        except Refused as fault:
            faults.append(str(fault))
    new = _new(os.getpid())
    if new is not None:
        yield new


def checked(folder: Path, *, make: bool = False) -> Path:
    """The resolved folder, if libraries may be kept in it and loaded from it.

    It must belong to this user, and no other user may write to it or to a folder above it: a user who can move a folder
    can replace it. With `make` it is created if it is missing.

    Raises:
        Refused: it may not be used.
    """
    try:
        if make:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.parent in _temporary() and folder.is_symlink():
            raise Refused(f"{folder} is a link")
        real = folder.resolve(strict=True)
        trusted = os.getuid(), 0, Path("/").stat().st_uid  # in a container root may have another number
        for place in (real, *real.parents):
            found = place.stat()
            if found.st_uid not in trusted or (place == real and found.st_uid != os.getuid()):
                raise Refused(f"{place} belongs to another user")
            if _others_write(found) and (place == real or not found.st_mode & stat.S_ISVTX):
                raise Refused(f"other users can write to {place}")
    except OSError as error:
        raise Refused(f"{folder}: {error.strerror}") from error
    if not os.access(real, os.W_OK | os.X_OK):
        raise Refused(f"{folder} cannot be written")
    return real


@cache
def _new(process: int) -> Path | None:
    for parent in _temporary():
        with suppress(OSError, Refused):
            folder = Path(tempfile.mkdtemp(prefix=f"{_NAME}-", dir=parent))
            atexit.register(_remove, folder, process)
            return checked(folder)
    return None


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child leaves it to its parent
        shutil.rmtree(folder, ignore_errors=True)


def is_whole(library: Path) -> bool:
    """Whether a library is a file of this user that others cannot write, and matches its checksum."""
    try:
        found = library.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or _others_write(found):
            return False
        beside = _beside(library)
        return stat.S_ISREG(beside.lstat().st_mode) and beside.read_text() == _checksum(library)
    except (OSError, ValueError):
        return False


def keep(scratch: Path, library: Path) -> None:
    """Move a compiled library into its place atomically, and store its checksum."""
    scratch.chmod(0o700)
    checksum, beside = _checksum(scratch), _beside(library)
    beside.unlink(missing_ok=True)  # so that the old checksum is never used for the new library
    scratch.replace(library)
    handle, path = tempfile.mkstemp(prefix=beside.name, suffix=".tmp", dir=beside.parent)
    with os.fdopen(handle, "w") as file:
        file.write(checksum)
    Path(path).replace(beside)


def forget(library: Path) -> None:
    """Make the next user of a library compile it again."""
    _beside(library).unlink(missing_ok=True)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold a lock between processes. Without one, a library may be compiled twice, which is harmless.

    So nothing waits for ever: neither for a process that was stopped while it compiled, nor for the reader of a pipe.
    """
    try:
        handle = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError:
        yield
        return
    try:
        end = Original.monotonic() + MOST_WAITED
        while not _locked(partial(fcntl.flock, handle, fcntl.LOCK_EX | fcntl.LOCK_NB)):
            if Original.monotonic() > end:
                break
            Original.sleep(0.05)
        yield
    finally:
        os.close(handle)


def _locked(lock: Callable[[], object]) -> bool:
    """Whether no other process has the lock; true where there are no locks."""
    try:
        lock()
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _beside(library: Path) -> Path:
    return library.with_name(f"{library.name}.sha256")


def _checksum(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _home() -> str | None:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None


def _temporary() -> list[Path]:
    chosen: tuple[str, ...] = ()
    with suppress(OSError):  # there is none
        chosen = (tempfile.gettempdir(),)
    return [*map(Path, dict.fromkeys((*chosen, *_TEMPORARY)))]


def _others_write(found: os.stat_result) -> bool:
    """Whether others than the owner may write. A group with only this user, which many systems create, may."""
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_private(found.st_gid)


@cache
def _is_private(group: int) -> bool:
    try:
        user, named = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return group == user.pw_gid and named.gr_name == user.pw_name and set(named.gr_mem) <= {user.pw_name}
