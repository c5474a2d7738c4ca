"""Files that are replaced: whole or not at all."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudamem_testing.show import atomic_files
from cudamem_testing.show.atomic_files import replace_file, why_not

ROOT = Path(__file__).parents[2]


def test_a_full_disk_is_named_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    real = Path.open

    class Full(io.BytesIO):
        def writelines(self, lines: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opened(self: Path, *given: object, **named: object) -> object:
        return Full() if real(self, *given, **named).close() is None else None  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(OSError) as caught:
        replace_file(path, b"new")
    assert str(caught.value) == f"[Errno {errno.ENOSPC}] No space left on device: {str(path)!r}"
    monkeypatch.undo()
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the temporary one beside it."""

    def refuse(self: Path, *given: object) -> None:
        raise OSError(errno.EDQUOT, "Quota exceeded", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(OSError) as caught:
        replace_file(tmp_path / "file", b"new")
    assert caught.value.filename == str(tmp_path / "file")


def test_pieces_are_written_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, iter([b"a", b"", b"bc"]))
    assert path.read_bytes() == b"abc"

    def broken() -> Iterator[bytes]:
        yield b"new"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        replace_file(path, broken())
    assert (path.read_bytes(), [one.name for one in tmp_path.iterdir()]) == (b"abc", ["file"])


def test_a_name_that_is_too_long_is_a_reason(tmp_path: Path) -> None:
    name = "x" * 300 + ".py"
    assert why_not(tmp_path, name) == "File name too long"
    assert why_not(tmp_path, "none.py") == f"there is no such file in {tmp_path}"


def test_what_is_no_file_takes_the_content_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        replace_file(pipe, b"report")
        assert os.read(reader, 100) == b"report"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


def test_the_output_of_this_process_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    with log.open("wb", buffering=0) as output:
        monkeypatch.setattr(atomic_files, "_OUTPUT", (output.fileno(),))
        output.write(b"before ")
        replace_file(Path(f"/dev/fd/{output.fileno()}"), b"report")
        output.write(b" after")
    assert log.read_bytes() == b"before report after"
