"""Put new texts into a source file: pure, from the old content to the new one.

PYTEST_DONT_REWRITE
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import replace

from .literal import Style, spell
from .source import Entry, Literal, Source

_COLUMNS = 100  # a short literal may reach this far


def rewrite(source: Source, texts: Mapping[Literal | Entry, str]) -> bytes:
    """Return the content of the file with each text in its place.

    Raises:
        SyntaxError: the result would not be Python any more, or a literal would not have its text.
    """
    pieces = [(place.start, place.end, _replaced(source, place, text)) for place, text in _literals(texts)]
    entries: dict[tuple[int, int], list[tuple[Entry, str]]] = {}
    for place, text in texts.items():
        if isinstance(place, Entry):
            entries.setdefault((place.start, place.end), []).append((place, text))
    for added in entries.values():
        pieces += _added(source, added)
    content = source.text
    for start, end, piece in sorted(pieces, reverse=True):
        content = content[:start] + piece + content[end:]
    ast.parse(content)
    return content.encode(source.encoding)


def _literals(texts: Mapping[Literal | Entry, str]) -> Iterator[tuple[Literal, str]]:
    return ((place, text) for place, text in texts.items() if isinstance(place, Literal))


def _replaced(source: Source, place: Literal, text: str) -> str:
    old = re.match(r"([A-Za-z]*)(['\"])", source.text[place.start : place.end])
    taken = source.column(place.start) + len(source.after(place.end))
    style = replace(_style(source, place), room=_COLUMNS - taken)
    if old is not None:
        style = replace(style, raw="r" in old[1].lower(), quote=old[2])
    return spell(text, style)


def _style(source: Source, place: Literal | Entry) -> Style:
    return Style(indent=place.indent, newline=source.newline, encoding=source.encoding)


def _added(source: Source, entries: list[tuple[Entry, str]]) -> Iterator[tuple[int, int, str]]:
    """Yield the insertions that add entries at the end of one dict display."""
    place, _ = entries[0]
    display = source.text[place.start : place.end]
    last, comma = _last_token(display)
    brace = place.end - 1
    before_brace = source.text[brace - source.column(brace) : brace]
    if last is None or before_brace.strip():
        # In one line with the brace.
        texts = [_entry(source, one, text, place.indent) for one, text in entries]
        at = place.start + (last or 1)
        lead = "" if last is None else (" " if comma else ", ")
        yield at, at, lead + ", ".join(texts) + ("," if comma else "")
        return
    indent = _first_key_indentation(source, place) or before_brace + "    "
    if not comma:
        yield place.start + last, place.start + last, ","
    start = brace - len(before_brace)
    lines = [f"{indent}{_entry(source, one, text, indent + '    ')},{source.newline}" for one, text in entries]
    yield start, start, "".join(lines)


def _entry(source: Source, place: Entry, text: str, indent: str) -> str:
    style = replace(_style(source, place), indent=indent)
    key = spell(place.key, replace(style, room=_COLUMNS)) if place.key == place.key.strip() else ascii(place.key)
    return f"{key}: {spell(text, replace(style, room=_COLUMNS - len(indent) - len(key)))}"


def _first_key_indentation(source: Source, place: Entry) -> str | None:
    found = re.match(r"\{[^\S\r\n]*(?:#[^\r\n]*)?(?:\r\n|\r|\n)([ \t]+)\S", source.text[place.start : place.end])
    return found[1] if found else None


def _last_token(display: str) -> tuple[int | None, bool]:
    """Return where the last token before the closing brace ends, None if there is none, and if it is a comma."""
    starts = [0, *(end.end() for end in re.finditer(r"\r\n|\n", display))]
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(display, newline="").readline)
        if token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENDMARKER)
    ]
    if len(tokens) <= 2:
        return None, False
    line, column = tokens[-2].end
    return starts[line - 1] + column, tokens[-2].string == ","
