"""The disk that fails in tests, held to what a real one does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from suites.disk import Disk, Fault, Killed, contents


def save(folder: Path) -> None:
    """Write a file beside, and put it in place."""
    part = folder / "made" / "part"
    part.parent.mkdir(exist_ok=True)
    try:
        with part.open("w") as file:
            file.write("new text")
        part.chmod(0o600)
        part.replace(folder / "made" / "file")
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def test_steps_are_counted(tmp_path: Path) -> None:
    with Disk(tmp_path).working() as disk:
        save(tmp_path)
        (tmp_path / "made" / "file").read_text()
        (tmp_path.parent / "elsewhere").write_text("not counted")
        handle = os.open(tmp_path / "low", os.O_WRONLY | os.O_CREAT)
        with os.fdopen(handle, "wb", buffering=0) as file:
            file.write(b"1")
        os.remove(tmp_path / "low")
    assert disk.steps == [
        *("mkdir made", "open part", "write part", "change part", "rename part"),
        *("open low", f"write {handle}", "remove low"),
    ]


@pytest.mark.parametrize(
    ("fault", "first", "found", "error"),
    [
        (Fault.FULL, 0, {}, "[Errno 28] No space left on device: "),
        (Fault.FULL, 2, {}, "[Errno 28] No space left on device"),
        (Fault.FULL, 3, {"made/file": b"new text"}, ""),  # what is left needs no room
        (Fault.READ_ONLY, 3, {"made/part": b"new text"}, "[Errno 30] Read-only file system: "),
        (Fault.DENIED, 1, {}, "[Errno 13] Permission denied: "),
        (Fault.KILLED, 1, {}, "killed"),
        (Fault.KILLED, 2, {"made/part": b"new "}, "killed"),
        (Fault.KILLED, 3, {"made/part": b"new text"}, "killed"),
        (Fault.KILLED, 4, {"made/part": b"new text"}, "killed"),
        (Fault.KILLED, 5, {"made/file": b"new text"}, ""),
    ],
)
def test_faults(tmp_path: Path, fault: Fault, first: int, found: dict[str, bytes], error: str) -> None:
    said = ""
    with Disk(tmp_path, fault, first).working():
        try:
            save(tmp_path)
        except Killed:
            said = "killed"
        except OSError as raised:
            said = str(raised)
    assert said.startswith(error)
    assert bool(said) is bool(error)
    assert contents(tmp_path) == found
