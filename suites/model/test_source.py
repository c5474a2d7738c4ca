"""Lines of source: read without calling what a test may have replaced, and safe to show."""

from __future__ import annotations

import ast
import builtins
import io
import linecache
import os
import tokenize
from pathlib import Path
from unittest import mock

import pytest

from cudamem_testing.model import source
from cudamem_testing.model.source import raw_line, source_line, source_lines
from cudamem_testing.model.stacks import Frame, Locator

TEXT = "first = 1\n\tsecond = 2\t# \x1b[31mred\x1b]0;title\x07\nlast"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "module.py"
    path.write_bytes(TEXT.encode())
    return str(path)


def test_lines(file: str) -> None:
    assert source_lines(file) == ["first = 1\n", "\tsecond = 2\t# \x1b[31mred\x1b]0;title\x07\n", "last"]
    assert [raw_line(file, number) for number in (0, 3, 4, -1)] == ["", "last", "", ""]
    assert source_line(file, 2) == r"second = 2 # \x1b[31mred\x1b]0;title\x07"


def test_the_same_as_linecache_shows() -> None:
    for path in (__file__, source.__file__):
        assert source_lines(path) == linecache.getlines(path)


def test_a_file_that_changed_is_read_again(file: str) -> None:
    assert source_line(file, 1) == "first = 1"
    Path(file).write_text("other = 1\n# longer now\n", encoding="utf-8")
    assert source_line(file, 1) == "other = 1"


@pytest.mark.parametrize("name", ["", "<stdin>", "nowhere.py", "a\0b", "\ud800.py", "/dev/null", os.curdir])
def test_what_cannot_be_read_has_no_lines(name: str) -> None:
    assert (source_lines(name), source_line(name, 1)) == ([], "")


@pytest.mark.parametrize("content", [b"# coding: nonsense\n", b"\n# coding: nonsense\n"])
def test_an_unknown_encoding(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.py").write_bytes(content)
    assert source_lines(str(tmp_path / "a.py")) == []


def test_encodings_and_line_breaks(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes("# coding: latin-1\r\nname = 'Größe'\r\n".encode("latin-1"))
    assert source_lines(str(tmp_path / "a.py")) == ["# coding: latin-1\n", "name = 'Größe'\n"]
    (tmp_path / "b.py").write_bytes(b"\n\nx = '\xff'\n")
    assert source_line(str(tmp_path / "b.py"), 3) == "x = '�'"


def test_code_without_a_file_is_what_linecache_keeps() -> None:
    with mock.patch.dict(linecache.cache, {"<typed 1>": (9, None, ["first\n", "second\n"], "<typed 1>")}):
        assert source_line("<typed 1>", 2) == "second"


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (builtins, "open"),
        (io, "open"),
        (os, "stat"),
        (os.path, "exists"),
        (tokenize, "open"),
        (linecache, "getline"),
        (linecache, "getlines"),
        (linecache, "updatecache"),
        (ast, "parse"),
    ],
)
def test_mocks_of_a_test_are_not_called(file: str, owner: object, name: str) -> None:
    with mock.patch.object(owner, name) as replaced:
        line = Locator(os.path.dirname(file)).source(Frame("module.py", 1, "f"))
        called = replaced.call_count
    assert (line, called) == ("first = 1", 0)


def test_names_of_code_are_safe_to_show() -> None:
    frame = Locator("/p").frame(("/p/\x1b]0;PWNED\x07evil.py", 3, "g\x1b[31m\rFAKE"))
    assert str(frame) == r"\x1b]0;PWNED\x07evil.py:3 in g\x1b[31m\rFAKE"
    assert str(Locator("/p").frame(("/p/größe.py", 3, "f"))) == "größe.py:3 in f"
