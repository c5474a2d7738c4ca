"""Text of others in what a run prints: names of code, lines of source, ids. Nothing of it is obeyed by a terminal."""

from __future__ import annotations

from collections.abc import Callable

from cudamem_testing.show.printable import LONGEST_LINE
from cudamem_testing.wording.findings import details, text
from suites.plugin.inner import Inner

Run = Callable[..., Inner]

NAMES = """
    import pytest, torch

    KEEP, names = [], {{}}
    exec(compile("def f():\\n  return torch.ones(50000)", {file!r}, "exec"), {{"torch": torch}}, names)
    f = names["f"]
    f.__code__ = f.__code__.replace(co_name={name!r}, co_qualname={name!r})

    @pytest.mark.memory_budget(peak="1KiB")
    def test_source_line():
        x = torch.ones(2**16)  # {comment}

    @pytest.mark.memory_budget(peak="1KiB")
    def test_function_name():
        x = f()

    def test_leak():
        KEEP.append(f())

    def test_cycle():
        node = [f()]
        node.append(node)
"""
HOSTILE = NAMES.format(
    file="\x1b]0;PWNED\x07evil.py", name="g\x1b[31m\rFAKE\nline", comment="\x1b[31mred\x1b]0;P\x07 \u202e"
)
PLAIN = NAMES.format(file="größe.py", name="g東", comment="rot\tgrün")

MERGED = """
    import torch

    class Stat:
        def __init__(self):
            self.me = [self]
            self.value = torch.zeros(64)
            self.other = torch.ones(63)

    def test_it():
        for _ in range(500):
            Stat()
"""


def control(text: str) -> set[str]:
    return {char for char in text if not char.isprintable()} - {"\n"}


def test_a_terminal_obeys_nothing(run_inner: Run) -> None:
    result = run_inner(HOSTILE, "--cudamem", "--cudamem-cycles=fail", "--cudamem-ignore-below=0")
    assert result.last == "2 failed, 2 passed, 2 errors"
    ours = "\n".join(line for line in result.out.split("\n") if "torch.ones(2**16)" not in line or "|" in line)
    assert control(ours) == set()
    assert r"\x1b]0;PWNED\x07evil.py:2 in g\x1b[31m\rFAKE\nline" in ours
    assert r"| x = torch.ones(2**16)  # \x1b[31mred\x1b]0;P\x07 \u202e" in ours


def test_plain_names_are_shown_as_they_are(run_inner: Run) -> None:
    result = run_inner(PLAIN, "--cudamem", "--cudamem-cycles=fail", "--cudamem-ignore-below=0")
    assert result.last == "2 failed, 2 passed, 2 errors"
    assert "größe.py:2 in g東" in result.out
    assert "| x = torch.ones(2**16)  # rot grün" in result.out


def test_no_line_of_a_finding_is_long(run_inner: Run) -> None:
    result = run_inner(MERGED, "--cudamem", "--cudamem-cycles=fail", "--cudamem-ignore-below=0")
    assert result.last == "1 passed, 1 error"
    (finding,) = result.test("test_it").findings
    assert max(map(len, text(finding).split("\n"))) <= LONGEST_LINE
    assert "   allocated  test_it.py:6 in Stat.__init__ (value)" in details(finding)
    assert "   found 500 times" in details(finding)
