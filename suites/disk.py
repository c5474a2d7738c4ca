"""A disk that fails, for tests of what writes files: full, read-only or forbidden from one step on, or the last step of
a process that is killed.

A step is one call by which code changes files below a folder: open a file to write (it then exists, and is empty),
write (half of the bytes arrive), rename, remove, make a folder, change a permission. The functions of ``os`` and ``io``
that do so are replaced in this process, below the buffers of Python's files; a file that the process does not live to
flush stays short, as on a real disk.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Killed(BaseException):
    """The process ends here: nothing that it does afterwards reaches the disk."""


class Fault(Enum):
    """What happens from a step on; ``error`` is the number of the system error, and ``steps`` which steps fail."""

    FULL = errno.ENOSPC, ("open", "write", "mkdir")
    READ_ONLY = errno.EROFS, ("open", "rename", "remove", "mkdir", "change")
    DENIED = errno.EACCES, ("open", "rename", "remove", "mkdir", "change")
    KILLED = None, ("open", "write", "rename", "remove", "mkdir", "change")

    @property
    def error(self) -> OSError:
        """The system error, without a name of a file."""
        return OSError(self.value[0], os.strerror(self.value[0] or 0))


@dataclass
class Disk:
    """Counts steps below a folder; from step ``first`` on (0 is the first) they meet a fault."""

    folder: Path
    fault: Fault = Fault.FULL
    first: int | None = None
    steps: list[str] = field(default_factory=list)
    met: bool = False
    dead: bool = False
    _handles: set[int] = field(default_factory=set)

    @contextmanager
    def working(self) -> Iterator[Disk]:
        """Code in the block writes to this disk."""
        with pytest.MonkeyPatch.context() as patch:
            for name, kind in _CALLS.items():
                patch.setattr(os, name, self._watched(getattr(os, name), kind))
            patch.setattr(os, "open", self._opened(os.open))
            patch.setattr(os, "close", self._closed(os.close))
            opened = self._file(io.open)
            for module in (io, builtins):
                patch.setattr(module, "open", opened)
            patch.setattr("_io.open", opened)
            yield self

    def step(self, kind: str, path: object) -> bool:
        """Count a step; true if half of it happens before its fault."""
        if self.dead:
            raise Killed
        self.steps.append(f"{kind} {Path(os.fsdecode(path)).name if isinstance(path, str | bytes | Path) else path}")
        if self.first is None or len(self.steps) <= self.first or kind not in self.fault.value[1]:
            return False
        self.met = True
        if kind == "write":
            return True
        self.fail(path)
        raise AssertionError

    def fail(self, path: Any = None) -> None:
        """Raise the fault."""
        if self.fault is Fault.KILLED:
            self.dead = True
            raise Killed
        error = self.fault.error
        if path is not None:
            error.filename = os.fsdecode(path)
        raise error

    def holds(self, path: Any) -> bool:
        """Whether a path or a handle is on this disk."""
        if isinstance(path, int):
            return path in self._handles
        return os.path.abspath(os.fsdecode(path)).startswith(f"{self.folder}{os.sep}")

    def _watched(self, call: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def watched(path: Any, *given: Any, **named: Any) -> Any:
            if self.dead:
                raise Killed
            here = not named.get("dir_fd") and not isinstance(path, int) and self.holds(path)
            if here and os.path.lexists(path) is not (kind == "mkdir"):  # else the system says so first
                self.step(kind, path)
            return call(path, *given, **named)

        return watched

    def _opened(self, call: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, *given: Any, **named: Any) -> int:
            here = bool(flags & _WRITES) and not named.get("dir_fd") and self.holds(path)
            if here:
                self.step("open", path)
            handle = call(path, flags, *given, **named)
            if here:
                self._handles.add(handle)
            return handle

        return opened

    def _closed(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def closed(handle: int) -> None:
            self._handles.discard(handle)
            call(handle)

        return closed

    def _file(self, call: Callable[..., Any]) -> Callable[..., Any]:
        disk = self

        class Raw(io.FileIO):
            def write(self, content: Any) -> int:
                if disk.dead:
                    return len(content)  # of a process that is no more: nothing arrives, nothing complains
                before = disk.met
                if disk.step("write", self.name):
                    super().write(b"" if before else bytes(content)[: len(content) // 2])
                    disk.fail()
                return super().write(content)

        def opened(
            path: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            if not set(mode) & set("wxa+") or not disk.holds(path):
                return call(path, mode, buffering, encoding, errors, newline, closefd, opener)
            if opener is None and not isinstance(path, int):
                disk.step("open", path)
            raw = Raw(path, mode.replace("b", "").replace("t", ""), closefd, opener)
            if buffering == 0:
                return raw
            file = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return file if "b" in mode else io.TextIOWrapper(file, encoding, errors, newline)

        return opened


_CALLS = {
    "replace": "rename",
    "rename": "rename",
    "unlink": "remove",
    "remove": "remove",
    "rmdir": "remove",
    "mkdir": "mkdir",
    "chmod": "change",
    "chown": "change",
}


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder, by their names from there."""
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}
