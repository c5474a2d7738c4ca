r"""Makes text from outside safe to show: names of files, functions and tests, source lines, notes, file contents.

A terminal obeys control characters (ECMA-48, "Control functions for coded character sets"), a carriage return
overwrites a line, a line break forges the next one, bidirectional overrides reorder what is read (Unicode Technical
Report 36), and a lone surrogate cannot be encoded: ``print`` raises. All of them are escaped here as in Python
literals: ``\x1b``, ``\r``, ``\u202e``, ``\ud800``. So are other invisible characters, such as
no-break spaces. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

#: Longest line of a finding, in characters.
LONGEST_LINE = 300


def one_line(text: str) -> str:
    """``text`` on one line, with control and unprintable characters escaped."""
    return text if text.isprintable() else "".join(map(spelled_out, text))


def printable(text: str) -> str:
    """``text`` of several lines: like :func:`one_line`, but keeps tabs and line feeds."""
    if text.isprintable():
        return text
    return "".join(char if char in "\n\t" else spelled_out(char) for char in text)


def short_lines(text: str, longest: int = LONGEST_LINE) -> str:
    """``text`` of several lines, printable, each line at most ``longest`` characters: the middle is left out."""
    return "\n".join(elide(line, longest) for line in printable(text).split("\n"))


def elide(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters: the middle is left out, the end keeps most of the room."""
    if len(text) <= width:
        return text
    if width <= 3:
        return text[:width]
    tail = (width - 3) * 2 // 3
    return f"{text[: width - 3 - tail]}...{text[len(text) - tail :]}"


def say(words: object, stream: TextIO | None = None) -> None:
    """Print the text of ``words`` to ``stream`` (default: standard output), in any encoding.

    If the reader has closed the pipe (``head``), the rest is dropped without an error.
    """
    stream = stream or sys.stdout
    text, encoding = printable(str(words)), stream.encoding
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding) if encoding else text, file=stream, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # later flushes go there, also at exit
        os.close(nowhere)


def spelled_out(text: str) -> str:
    """A text with all escapes spelled out if it has a character that does not print."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def width() -> int:
    """Columns for tables on this terminal."""
    return min(shutil.get_terminal_size().columns, 120)


def room() -> int | None:
    """The width of the terminal; ``None`` where the output is no terminal, for there nothing is cut."""
    return width() if sys.stdout.isatty() else None
