"""Spell a text as a Python string literal.

One line that fits stays a short literal. All else becomes a triple-quoted block, indented with the code::

    check(actual, \"\"\"
        first line
        second line
        \"\"\")

The quote character and a raw prefix of the literal that is replaced are kept where the text allows it.
Characters that do not print, or that the file's encoding lacks, are escaped.

PYTEST_DONT_REWRITE
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from .text import canonical

_ALWAYS_SHORT = 20  # columns that no block would save


@dataclass(frozen=True, slots=True)
class Style:
    """How the literal is to look.

    Attributes:
        raw: whether an ``r`` prefix is wanted.
        quote: the quote character wanted, ``"`` or ``'``.
        indent: white space that starts each line of a block.
        room: columns a short literal may take.
        newline: the line end of the file.
        encoding: the encoding of the file.
    """

    raw: bool = False
    quote: str = '"'
    indent: str = "    "
    room: int = 80
    newline: str = "\n"
    encoding: str = "utf-8"


def spell(text: str, style: Style) -> str:
    """Return a literal whose value has the canonical form `text`; `text` itself must be canonical.

    Raises:
        ValueError: `text` is not canonical.
    """
    if text != canonical(text):
        raise ValueError(f"only a canonical text can be spelled, got {text!r}")
    for candidate in _candidates(text, style):
        if _denotes(candidate, text, style):
            return candidate
    raise AssertionError(f"no literal found for {text!r}")  # the last candidate escapes everything


def _candidates(text: str, style: Style) -> Iterator[str]:
    """Yield literals from the most to the least wanted; a raw one may turn out not to denote the text."""
    other = "'" if style.quote == '"' else '"'
    if "\n" not in text:
        quotes = (other, style.quote) if style.quote in text and other not in text else (style.quote, other)
        short = [f"r{quote}{text}{quote}" for quote in quotes if style.raw]
        short.append(quotes[0] + _escape(text, quotes[0], style.encoding) + quotes[0])
        yield from (literal for literal in short if len(literal) <= max(style.room, _ALWAYS_SHORT))
    quotes = (other, style.quote) if style.quote * 3 in text and other * 3 not in text else (style.quote, other)
    if style.raw:
        yield from (_block("r", 3 * quote, text, style) for quote in quotes)
    yield _block("", 3 * quotes[0], _escape(text, 3 * quotes[0], style.encoding), style)


def _block(prefix: str, delimiter: str, body: str, style: Style) -> str:
    lines = [style.indent + line if line else "" for line in body.split("\n")]
    return style.newline.join([prefix + delimiter, *lines, style.indent + delimiter])


def _escape(text: str, delimiter: str, encoding: str) -> str:
    """Escape what cannot stand between `delimiter`; in a block only runs of quotes that could close it."""
    quote = delimiter[0]
    closing = re.compile(f"({quote}{{{len(delimiter)},}})")
    return "".join(
        f"\\{quote}" * len(piece) if closing.fullmatch(piece) else "".join(_spelled(char, encoding) for char in piece)
        for piece in closing.split(text)
    )


def _spelled(char: str, encoding: str) -> str:
    if char == "\n":
        return char
    if char != "\\" and char.isprintable() and _encodable(char, encoding):
        return char
    return char.encode("unicode_escape").decode("ascii")


def _encodable(text: str, encoding: str) -> bool:
    """Whether `text` survives the file; Shift JIS, for one, reads a yen sign back as a backslash."""
    try:
        return text.encode(encoding).decode(encoding) == text
    except UnicodeError:
        return False


def _denotes(literal: str, text: str, style: Style) -> bool:
    if not all(char.isprintable() or char in "\r\n\t" for char in literal) or not _encodable(literal, style.encoding):
        return False
    try:
        value = ast.literal_eval(literal)
    except SyntaxError:
        return False
    return isinstance(value, str) and canonical(value) == text
