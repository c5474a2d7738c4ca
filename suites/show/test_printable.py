"""Text of others on a terminal: nothing of it is obeyed, nothing of it makes printing fail."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.show.printable import LONGEST_LINE, elide, one_line, printable, say, short_lines

HOSTILE = {
    "\x1b[31mred\x1b]0;title\x07": r"\x1b[31mred\x1b]0;title\x07",
    "name\rFORGED": r"name\rFORGED",
    "a\x9b31m\x85b": r"a\x9b31m\x85b",
    "user\u202egpj.exe\u2066\u200f": r"user\u202egpj.exe\u2066\u200f",
    "line\u2028break\x0b\x1c": r"line\u2028break\x0b\x1c",
    "cut \ud800": r"cut \ud800",
    "nul\0": r"nul\x00",
}
HARMLESS = ("", "plain", "Größe 東京 שלום 😀", r"C:\x1b", "a" * 999)


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items())
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert (one_line(text), printable(text)) == (shown, shown)


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert one_line(text) is printable(text) is text


def test_line_breaks_and_tabs_stay_in_texts_of_several_lines() -> None:
    assert printable("a\n\tb\r\nc\x1b") == "a\n\tb\\r\nc\\x1b"
    assert one_line("a\n\tb") == r"a\n\tb"


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_shown(text: str) -> None:
    for shown in (one_line(text), printable(text)):
        kinds = {unicodedata.category(char) for char in shown if char not in "\n\t"}
        assert not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}
        assert shown.encode().decode() == shown
    assert one_line(one_line(text)) == one_line(text)
    assert len(one_line(text).splitlines()) <= 1


def test_long_lines_lose_their_middle() -> None:
    text = "begin " + "x" * 11_505 + " end\nshort"
    first, second = short_lines(text).split("\n")
    assert (len(first), first[:7], first[-5:], second) == (LONGEST_LINE, "begin x", "x end", "short")
    assert short_lines("y" * LONGEST_LINE) == "y" * LONGEST_LINE
    assert short_lines("y" * (LONGEST_LINE + 1)) == elide("y" * (LONGEST_LINE + 1), LONGEST_LINE)


@pytest.mark.parametrize(("encoding", "written"), [("utf-8", "Größe 東 \\x1b\n"), ("latin-1", "Größe \\u6771 \\x1b\n")])
def test_a_narrow_encoding_prints_what_it_can(encoding: str, written: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    say("Größe 東 \x1b", stream)
    stream.flush()
    assert stream.buffer.getvalue().decode(encoding) == written  # type: ignore[attr-defined]


def test_anything_with_a_text_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    say(("a\x1b", 1))
    assert capsys.readouterr().out == "('a\\x1b', 1)\n"
