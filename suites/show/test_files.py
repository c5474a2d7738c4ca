"""Files that are changed: one process after the other, whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudamem_testing.show import files
from cudamem_testing.show.files import change_file, replace_file, why_not

ROOT = Path(__file__).parents[2]


def test_a_file_is_made_changed_and_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    given: list[bytes | None] = []

    def change(old: bytes | None) -> bytes | None:
        given.append(old)
        return None if old is None and len(given) == 1 else (old or b"") + b"x" if len(given) < 4 else old

    assert [change_file(path, change) for _ in range(5)] == [False, True, True, False, False]
    assert given == [None, None, b"x", b"xx", b"xx"]
    assert path.read_bytes() == b"xx"
    assert [one.name for one in path.parent.iterdir()] == ["file"]


def test_the_target_of_a_link_is_changed(tmp_path: Path) -> None:
    real, link = tmp_path / "real" / "file", tmp_path / "link"
    link.symlink_to(real)
    change_file(link, lambda old: b"1")
    assert (link.is_symlink(), real.read_bytes()) == (True, b"1")


def test_an_error_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match=r"^broken$"):
        change_file(path, lambda old: (_ for _ in ()).throw(ValueError("broken")))
    assert path.read_bytes() == b"old"
    assert change_file(path, lambda old: b"new")  # the lock is free again


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
    for write in (lambda: replace_file(path, b"new"), lambda: change_file(path, lambda old: b"new")):
        with pytest.raises(OSError) as caught:
            write()
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
        monkeypatch.setattr(files, "_OUTPUT", (output.fileno(),))
        output.write(b"before ")
        replace_file(Path(f"/dev/fd/{output.fileno()}"), b"report")
        output.write(b" after")
    assert log.read_bytes() == b"before report after"


ADD = """
import sys, time
from pathlib import Path
from cudamem_testing.show.files import change_file

for number in range(int(sys.argv[3])):
    change_file(Path(sys.argv[1]), lambda old: (old or b"") + f"{sys.argv[2]} {number}\\n".encode())
"""


def start(path: Path, name: str, times: int) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", ADD, str(path), name, str(times)], env=environ)


@pytest.mark.subprocess
@pytest.mark.skipif(sys.platform == "win32", reason="folders have no locks there")
def test_several_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for process in [start(path, name, 200) for name in "abc"]:
        assert process.wait(60) == 0
    lines = path.read_text().splitlines()
    assert sorted(lines) == sorted(f"{name} {number}" for name in "abc" for number in range(200))


@pytest.mark.subprocess
@pytest.mark.skipif(sys.platform == "win32", reason="processes end another way there")
def test_a_process_that_is_killed_leaves_whole_lines_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for wanted in range(100, 600, 100):
        process = start(path, "a", 100_000)
        while not path.exists() or path.stat().st_size < wanted:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        numbers = [int(line.partition(" ")[2]) for line in path.read_text().splitlines()]
        assert path.read_bytes().endswith(b"\n")
        assert numbers == [*range(len(numbers))]
        change_file(path, lambda old: b"")
