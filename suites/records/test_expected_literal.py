"""Texts spelled as Python literals: exact spellings, and random texts against Python's own parser."""

import ast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cudamem_testing.records.expected.literal import Style, spell
from cudamem_testing.records.expected.text import canonical

NASTY = st.text(st.sampled_from("ab \t\r\n\0\x1b\x85\u2028\ud800\udc00'\"\\é本😀\u202e") | st.characters(), max_size=25)
STYLES = st.builds(
    Style,
    raw=st.booleans(),
    quote=st.sampled_from("'\""),
    indent=st.sampled_from(["", "    ", "\t", "        "]),
    room=st.integers(-5, 40),
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    encoding=st.sampled_from(["utf-8", "latin-1", "ascii", "cp1252", "shift_jis"]),
)


@pytest.mark.parametrize(
    ("text", "style", "literal"),
    [
        ("", Style(), '""'),
        ("", Style(raw=True), 'r""'),
        ("", Style(room=-3), '""'),
        ("a 'b'", Style(), "\"a 'b'\""),
        ('a "b"', Style(), "'a \"b\"'"),
        ("a 'b' \"c\"", Style(), '"a \'b\' \\"c\\""'),
        ("a", Style(quote="'"), "'a'"),
        ("it's", Style(quote="'"), '"it\'s"'),
        ("a\\b", Style(), '"a\\\\b"'),
        ("a\\b", Style(raw=True), 'r"a\\b"'),
        ("a\\", Style(raw=True), '"a\\\\"'),
        ('"\\', Style(raw=True), "'\"\\\\'"),
        ("tab\tend", Style(), '"tab\\tend"'),
        ("\0\x1b\x85\ud800", Style(), '"\\x00\\x1b\\x85\\ud800"'),
        ("é本", Style(), '"é本"'),
        ("é本", Style(encoding="latin-1"), '"é\\u672c"'),
        ("a\n  b\n\nc", Style(), '"""\n    a\n      b\n\n    c\n    """'),
        ("a\nb", Style(newline="\r\n", indent="\t"), '"""\r\n\ta\r\n\tb\r\n\t"""'),
        ("a\nb\\", Style(raw=True), 'r"""\n    a\n    b\\\n    """'),
        ('a\n"""b', Style(), "'''\n    a\n    \"\"\"b\n    '''"),
        ('a\n"""b', Style(raw=True), "r'''\n    a\n    \"\"\"b\n    '''"),
        ('\'\'\'\n""""b"', Style(raw=True), '"""\n    \'\'\'\n    \\"\\"\\"\\"b"\n    """'),
        ("'a\" \"b'", Style(raw=True), '"\'a\\" \\"b\'"'),  # as a raw literal it would be two
        ("x" * 30, Style(room=25), '"""\n    ' + "x" * 30 + '\n    """'),
    ],
)
def test_spelling(text, style, literal):
    assert spell(text, style) == literal


@given(NASTY.map(canonical), STYLES)
@example("a\n'''\n\"\"\"", Style(raw=True))
@example("¥", Style(encoding="shift_jis"))
@example("\\N{DASH}\\u1234\n\\", Style(raw=True))
def test_a_literal_denotes_exactly_its_text(text, style):
    literal = spell(text, style)
    value = ast.literal_eval(literal)
    assert canonical(value) == text
    if "\n" not in literal and "\r" not in literal:
        assert value == text
    # It survives the file, and holds nothing an editor or a terminal would hide.
    assert literal.encode(style.encoding).decode(style.encoding) == literal
    assert all(char.isprintable() or char in "\r\n\t" for char in literal)


def test_a_text_that_is_not_canonical_is_refused():
    with pytest.raises(ValueError, match="only a canonical text can be spelled, got ' a'"):
        spell(" a", Style())
