"""The store of recorded files, for each kind of file: strict to read, changed in one step, by one process at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from cudamem_testing.records import store
from cudamem_testing.records.baselines import BASELINES
from cudamem_testing.records.known import KNOWN_FILES
from cudamem_testing.records.store import RecordError, Row, Store, change_file, has_conflict

ROOT = Path(__file__).parents[2]


def parse(name: str, content: bytes) -> dict[str, int]:
    def read(row: Row) -> tuple[str, int]:
        store.check_keys(row[1], ("name", "size"))
        return store.text_of("name", row[1]["name"]), row[1]["size"]

    return store.entries(name, store.rows(name, store.lines(name, content)), read, "name")


def render(entries: Mapping[str, int]) -> bytes:
    return "".join(json.dumps({"name": key, "size": entries[key]}) + "\n" for key in sorted(entries)).encode()


SIZES = Store(parse, render)
A, B = '{"name": "a", "size": 1}', '{"name": "b", "size": 2}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("<<<<<<< ours", "an unresolved merge conflict: keep one line of each entry"),
        ("||||||| base", "an unresolved merge conflict: keep one line of each entry"),
        ("=======", "an unresolved merge conflict: keep one line of each entry"),
        (">>>>>>> theirs", "an unresolved merge conflict: keep one line of each entry"),
        (A, "the same name as in line 1: keep one of them"),
        ('{"name": "c"', "is no JSON: Expecting ',' delimiter (column 13)"),
        ('{"name": "c"}', "has no 'size'"),
        ('{"name": "c", "size": 1, "age": 2}', "has the unknown key 'age'"),
        ('{"name": "c", "name": "d", "size": 1}', "has a key twice"),
        ('{"name": 1, "size": 1}', "name is no text"),
        ("[1]", "is no object"),
        ("[" * 100_000, "is nested too deeply"),
        ("\udcff", "is not UTF-8 text"),
    ],
)
def test_a_broken_file_is_named_with_its_line_and_stays(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "file"
    content = f"{A}\n\n{line}\n".encode(errors="surrogateescape")
    path.write_bytes(content)
    for attempt in (lambda: SIZES.read(path), lambda: SIZES.change(path, lambda old: {})):
        with pytest.raises(RecordError) as caught:
            attempt()
        assert (str(caught.value), caught.value.reason) == (f"{path}:3: {reason}", reason)
    assert path.read_bytes() == content
    with pytest.raises(RecordError, match=r"^known:3: "):
        SIZES.read(path, "known")


@pytest.mark.parametrize("kind", [BASELINES, KNOWN_FILES])
def test_every_kind_of_file_refuses_conflicts(tmp_path: Path, kind: Store[object, object]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"<<<<<<< ours\n")
    with pytest.raises(RecordError, match=r":1: an unresolved merge conflict: keep one line of each entry$"):
        kind.change(path, lambda old: {})
    assert path.read_bytes() == b"<<<<<<< ours\n"


def test_what_an_editor_or_a_merge_does_is_read() -> None:
    assert parse("f", b"\xef\xbb\xbf" + f"\r\n  {B},  \r\n\r\n{A}".encode()) == {"a": 1, "b": 2}


def test_a_file_is_made_changed_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    assert not SIZES.change(path, lambda old: old)
    assert [*tmp_path.iterdir()] == []  # no folder either
    assert SIZES.change(path, lambda old: {**old, "b": 2, "a": 1})
    assert path.read_text() == f"{A}\n{B}\n"
    path.write_text(f"{B},\n{A}\n")
    assert not SIZES.change(path, lambda old: dict(reversed(old.items())))
    assert path.read_text() == f"{B},\n{A}\n"  # in another order: nothing to write
    assert SIZES.change(path, lambda old: {"a": old["a"]})
    assert SIZES.read(path) == {"a": 1}
    assert SIZES.change(path, lambda old: {})
    assert (path.exists(), SIZES.read(path)) == (False, {})
    keeps = Store(parse, render, keeps_empty=True)
    path.write_text(A)
    assert keeps.change(path, lambda old: {})
    assert path.read_bytes() == b""


def test_the_target_of_a_link_is_changed(tmp_path: Path) -> None:
    real, link = tmp_path / "real" / "file", tmp_path / "link"
    link.symlink_to(real)
    change_file(link, lambda old: b"1")
    assert (link.is_symlink(), real.read_bytes()) == (True, b"1")


def test_an_error_leaves_the_file_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match=r"^broken$"):
        change_file(path, lambda old: (_ for _ in ()).throw(ValueError("broken")))
    assert path.read_bytes() == b"old"
    assert change_file(path, lambda old: b"new")
    path.chmod(0o444)
    with pytest.raises(PermissionError, match=f"the file is read-only: '{path}'"):
        change_file(path, lambda old: b"newer")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a\n<<<<<<< ours\nb\n=======\nc\n>>>>>>> theirs\n", True),
        ("name\n=======\n", False),  # a title may be underlined
        ("a <<<<<<< b >>>>>>> c", False),
    ],
)
def test_a_text_with_a_conflict(text: str, found: bool) -> None:
    assert has_conflict(text) is found


ADD = """
import sys
from pathlib import Path
from suites.records.test_store import SIZES

for number in range(int(sys.argv[3])):
    SIZES.change(Path(sys.argv[1]), lambda old: {**old, f"{sys.argv[2]}{number:06}": number})
"""


def start(path: Path, name: str, times: int) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", ADD, str(path), name, str(times)], env=environ)


@pytest.mark.subprocess
@pytest.mark.skipif(sys.platform == "win32", reason="folders have no locks there")
def test_several_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for process in [start(path, name, 100) for name in "ab"]:
        assert process.wait(60) == 0
    assert SIZES.read(path) == {f"{name}{number:06}": number for name in "ab" for number in range(100)}
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.subprocess
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="processes end another way there")
def test_a_killed_process_leaves_whole_lines_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for wanted in range(100, 400, 100):
        process = start(path, "a", 100_000)
        while not path.exists() or path.stat().st_size < wanted:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert [*SIZES.read(path).values()] == [*range(len(SIZES.read(path)))]
        SIZES.change(path, lambda old: {})
