"""What has changed between two lists of lines."""

from __future__ import annotations

from cudamem_testing.records.expected.lines import compare_lines


def test_lines_more_and_fewer_are_statements() -> None:
    found, diff = compare_lines("kernel x2\ncopy\nkernel", "kernel x2\nkernel\nmemset\nmemset\x1b\n\nkernel")
    assert found == ["1 line more: kernel", "1 line more: memset", "1 line more: memset\\x1b", "1 line fewer: copy"]
    assert diff.splitlines()[:2] == ["--- expected", "+++ actual"]


def test_lines_in_another_order() -> None:
    assert compare_lines("a\nb", "b\na")[0] == ["the same lines in another order, or with other blanks"]


def test_many_lines_are_counted() -> None:
    found, _ = compare_lines("", "\n".join(map(str, range(20))))
    assert found[11:] == ["1 line more: 11", "and 8 more changes"]
