"""Tables: aligned, narrowed where they may be, as text and as Markdown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.show.tables import Column, Table, begin, elide, elide_path, in_markdown

TABLE = Table(
    (Column("bytes", "right"), Column("where", elastic=True), Column("note")),
    (("1.0 KiB", "attention.py:88 in forward", "a"), ("12 B", "x.py", "")),
)


def test_lines() -> None:
    assert TABLE.lines() == [
        "  bytes  where                       note",
        "1.0 KiB  attention.py:88 in forward  a",
        "   12 B  x.py",
    ]
    assert str(TABLE) == "\n".join(TABLE.lines())


def test_options() -> None:
    assert TABLE.lines(header=False, gap=1, indent=3) == [
        "   1.0 KiB attention.py:88 in forward a",
        "      12 B x.py",
    ]


def test_an_elastic_column_gives_way() -> None:
    assert TABLE.lines(35) == [
        "  bytes  where                 note",
        "1.0 KiB  attent... in forward  a",
        "   12 B  x.py",
    ]


def test_a_column_is_never_narrowed_to_less_than_can_be_read() -> None:
    assert TABLE.lines(1) == [
        "  bytes  where         note",
        "1.0 KiB  att...orward  a",
        "   12 B  x.py",
    ]


def test_the_last_elastic_column_gives_way_first() -> None:
    table = Table((Column("a", elastic=True), Column("b", elastic=True)), (("x" * 20, "y" * 20),))
    assert table.lines(36, header=False) == ["x" * 20 + "  " + "yyyy...yyyyyyy"]
    assert table.lines(30, header=False) == ["xxxxx...xxxxxxxx  yyy...yyyyyy"]


def test_no_rows() -> None:
    columns = (Column("a"), Column("b"))
    assert Table(columns, ()).lines() == ["a  b"]
    assert Table(columns, ()).lines(header=False) == []


def test_a_cell_is_one_line() -> None:
    table = Table((Column("name"), Column("size", "right")), (("a\nb\x1b[0m\u202e", "1 B"), ("é\U0001f600", "2 B")))
    assert table.lines() == [
        "name               size",
        r"a\nb\x1b[0m\u202e   1 B",
        "é\U0001f600                  2 B",
    ]
    assert table.markdown().splitlines()[2] == r"| a\nb\x1b[0m\u202e | 1 B |"


def test_markdown() -> None:
    table = Table((Column("bytes", "right"), Column("where")), (("1 B", "a|b"),))
    assert table.markdown() == "| bytes | where |\n| ---: | --- |\n| 1 B | a\\|b |"


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefghij", 9, "ab...ghij"),
        ("abcdefghij", 4, "a..."),
        ("abcdefghij", 3, "abc"),
        ("abcdefghij", 0, ""),
    ],
)
def test_elide(text: str, width: int, short: str) -> None:
    assert elide(text, width) == short


@pytest.mark.parametrize(
    ("width", "short"),
    [
        (60, "suites/models/test_decoder.py::TestStep::test_long[a/b::c]"),
        (57, ".../models/test_decoder.py::TestStep::test_long[a/b::c]"),
        (54, ".../test_decoder.py::TestStep::test_long[a/b::c]"),
        (47, "...::TestStep::test_long[a/b::c]"),
        (31, "...::test_long[a/b::c]"),
        (21, "test_long[a/b::c]"),
        (16, "test_long[a/b::c]"),
        (0, "test_long[a/b::c]"),
    ],
)
def test_ids_lose_what_stands_before_the_last_name_alone(width: int, short: str) -> None:
    found = elide_path("suites/models/test_decoder.py::TestStep::test_long[a/b::c]", width)
    assert found == short


@given(st.text("ab/:[.", max_size=60), st.integers(0, 70))
def test_eliding_keeps_what_fits_and_never_more(text: str, width: int) -> None:
    for shorten in (begin, elide):
        short = shorten(text, width)
        assert len(short) <= width
        assert short == text or len(text) > width
    short = elide_path(text, width)
    assert len(short) <= width or text.endswith(short)
    assert short == text or len(text) > width


CELL = st.text("abc é|", max_size=20)


@given(st.lists(st.tuples(CELL, CELL, CELL), max_size=5), st.integers(0, 60), st.integers(0, 4), st.integers(1, 3))
def test_every_cell_stands_under_its_title(rows: list[tuple[str, str, str]], width: int, indent: int, gap: int) -> None:
    columns = (Column("one", "right"), Column("two", elastic=True), Column("three", elastic=True, paths=True))
    lines = Table(columns, tuple(rows)).lines(width, indent=indent, gap=gap)
    assert len(lines) == len(rows) + 1
    assert all(line == line.rstrip() for line in lines)
    narrowest = indent + max([3, *(len(row[0]) for row in rows)]) + 2 * gap + 24
    narrowest += max([5, *(len(row[2]) for row in rows)])  # names stay whole
    assert all(len(line) <= max(width, narrowest) for line in lines)
    first = indent + max([3, *(len(row[0]) for row in rows)])
    for line, row in zip(lines, (("one",), *rows), strict=True):
        assert line.ljust(first)[:first] == " " * indent + row[0].rjust(first - indent)


def test_markdown_holds_no_markup_of_others() -> None:
    table = Table(
        (Column("id", code=True), Column("note")), (("test[$x$|`*a*`\x1b]", "<img> *b* $\\frac{$ &lt; [a](b)"),)
    )
    assert table.markdown().splitlines()[2] == (
        "| `test[$x$\\|'*a*'\\x1b]` | \\<img> \\*b\\* \\$\\frac{\\$ \\&lt; [a]\\(b) |"
    )


def test_plain_words_stay_as_they_are_in_markdown() -> None:
    words = "leak, reachable (47 tests): aten::mm, self_attn.weight [0] +12.0% é"
    assert in_markdown(words) == words
