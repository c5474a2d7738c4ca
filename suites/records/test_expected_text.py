"""When texts are the same, and how a difference is shown."""

from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.records.expected.difference import difference
from cudamem_testing.records.expected.text import canonical
from cudamem_testing.show.printable import spelled_out

TEXTS = st.text(st.sampled_from("ab \t\r\n\x0c'\"\\é"), max_size=30)


def test_margins_and_blank_lines_around_do_not_matter():
    assert canonical("\n        a  \n          b\t\n\n        c\r\n    ") == "a\n  b\n\nc"


def test_everything_else_matters():
    assert canonical("a  b") == "a  b"
    assert canonical("a\rb") == "a\rb"
    assert canonical("a\x0c") == "a\x0c"
    assert canonical("\x0ba\u2028b") == "\x0ba\u2028b"
    assert canonical("\ta\n    b") == "\ta\n    b"  # no margin in common
    assert canonical("  \ta\n    b") == "\ta\n  b"


def test_texts_without_a_character():
    assert [canonical(text) for text in ("", "\n", "  \n\t\r\n ")] == ["", "", ""]


@given(TEXTS)
def test_canonical_twice_is_canonical_once(text):
    assert canonical(canonical(text)) == canonical(text)


@given(TEXTS, st.sampled_from(["", " ", "    ", "\t", " \t"]), st.sampled_from(["", " ", "\t\r"]))
def test_indenting_a_text_and_padding_its_lines_changes_nothing(text, margin, trailing):
    block = "\n" + "".join(f"{margin}{line}{trailing}\n" for line in canonical(text).split("\n")) + margin
    assert canonical(block) == canonical(text)


def test_a_small_change_is_pointed_at():
    expected = "one\ntwo\nthree 1.0 MiB\nfour\nfive\nsix\nseven"
    actual = "one\ntwo\nthree 12.0 KiB\nfour\nfive\nsix\nseven"
    assert difference(expected, actual) == "\n".join(
        [
            "--- expected",
            "+++ actual",
            "@@ -1,6 +1,6 @@",
            " one",
            " two",
            "-three 1.0 MiB",
            "?          ^",
            "+three 12.0 KiB",
            "?       +   ^",
            " four",
            " five",
            " six",
        ]
    )


def test_added_and_removed_lines():
    assert difference("a\nb", "b\nc") == "--- expected\n+++ actual\n@@ -1,2 +1,2 @@\n-a\n b\n+c"


def test_lines_that_have_little_in_common_get_no_marks():
    assert difference("abcdef", "uvwxyz") == "--- expected\n+++ actual\n@@ -1,1 +1,1 @@\n-abcdef\n+uvwxyz"


def test_control_characters_are_shown_escaped():
    assert spelled_out("tab\there \x1b[31m \\") == "tab\\there \\x1b[31m \\\\"
    assert spelled_out("plain \\ é") == "plain \\ é"
    assert "\x1b" not in difference("a", "\x1b[2J")


def test_a_long_difference_is_cut():
    text = difference("\n".join(f"{n}" for n in range(50)), "\n".join(f"x{n * n}" for n in range(90)), limit=10)
    lines = text.split("\n")
    assert len(lines) == 11
    assert lines[-1] == "... the diff is cut here; the texts have 50 and 90 lines (-vv: all)"


def test_long_texts_are_compared_from_their_first_difference_on():
    expected = [f"row {n}" for n in range(100_000)]
    actual = [f"{row} changed" if n >= 50_000 and n % 3 == 0 else row for n, row in enumerate(expected)]
    lines = difference("\n".join(expected), "\n".join(actual), limit=8).split("\n")
    assert lines == [
        "--- expected",
        "+++ actual",
        "@@ -49999,1000 +49999,1000 @@",
        " row 49998",
        " row 49999",
        " row 50000",
        "-row 50001",
        "+row 50001 changed",
        "... the diff is cut here; the texts have 100000 and 100000 lines (-vv: all)",
    ]
    cut = difference("\n".join(expected), "\n".join(["first", *expected[1:]]))
    assert cut.split("\n")[-1] == "... the diff is cut here; the texts have 100000 and 100000 lines (-vv: all)"
