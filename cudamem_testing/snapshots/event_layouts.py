"""How the instructions of an event of a pickled history are laid out: what is the same in all that are like it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from cudamem_testing.snapshots.rows import ACTION

#: Widths of instructions for integers and for values that were kept; the constants, by instruction.
NUMBERS: Final = {0x4B: 1, 0x4D: 2, 0x4A: 4}
REFERENCES: Final = {0x68: 1, 0x6A: 4}
CONSTANTS: Final = {0x4E: None, 0x88: True, 0x89: False}
#: For each byte, a table that makes it 0 and all others 1.
DIFFERS: Final = [bytes(int(code != byte) for code in range(256)) for byte in range(256)]

FieldKind = Literal["constant", "number", "signed", "reference", "raw"]


@dataclass(frozen=True, slots=True)
class Field:
    """The value of a key: where it begins in the instructions of an event, and its bytes.

    ``raw`` values are texts, pairs and short lists, which a pickle keeps under a number; ``kept`` is how many values of
    the event are kept before it. ``value`` is that of a constant.
    """

    key: str
    kind: FieldKind
    at: int
    width: int
    kept: int
    value: bool | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Instructions of one length: the bytes that are the same in all such events, and the values between them.

    ``list_key`` is the key of a list at the end, whose items are not part of it.
    """

    fixed: tuple[tuple[int, int], ...]
    fields: tuple[Field, ...]
    list_key: str | None

    @property
    def keeps(self) -> int:
        """How many values of an event are kept under a number."""
        return sum(field.kind == "raw" for field in self.fields) + (self.list_key is not None)

    def differing(self, joined: bytes, number: int) -> bytes | None:
        """1 for each of ``number`` events whose instructions are not of this layout; ``None`` if all are.

        ``joined`` are their instructions side by side, all of one length.
        """
        step = len(joined) // number
        found = 0
        for at, byte in self.fixed:
            column = joined[at::step]
            if column.count(byte) != number:
                found |= int.from_bytes(column.translate(DIFFERS[byte]), "little")
        return found.to_bytes(number, "little") if found else None


def layout_of(head: bytes, memo: list[Any], *, opens: bool) -> Layout | None:
    """The layout of the instructions of an event up to a list at its end, if it ``opens`` one."""
    try:
        return _Parser(head, memo).layout(opens=opens)
    except (IndexError, KeyError):  # they end too early, or are of a kind that is not read by column
        return None


class _Parser:
    """Walks through the instructions of an event, and notes which bytes are the same in all that are like it."""

    def __init__(self, head: bytes, memo: list[Any]) -> None:
        self._head = head
        self._memo = memo
        self._at = 0
        self._fixed: list[tuple[int, int]] = []
        self._fields: list[Field] = []
        self._kept = 0

    def layout(self, *, opens: bool) -> Layout | None:
        keys: list[object] = []
        while self._at < len(self._head):
            first = self._at + 1
            self._fix(1 + REFERENCES[self._head[self._at]])
            keys.append(self._memo[int.from_bytes(self._head[first : self._at], "little")])
            if opens and self._at == len(self._head):
                break
            self._value(str(keys[-1]))
        texts = {key for key in keys if type(key) is str}
        if ACTION not in texts or len(texts) != len(keys) or len(self._fields) + opens != len(keys):
            return None
        return Layout((*self._fixed,), (*self._fields,), str(keys[-1]) if opens else None)

    def _fix(self, width: int, *wanted: int) -> None:
        """The next bytes are the same in all events; some have to be those that are ``wanted``."""
        found = self._head[self._at : self._at + width]
        if len(found) < width or (wanted and (*found,) != wanted):
            raise KeyError
        self._fixed += enumerate(found, self._at)
        self._at += width

    def _add(self, key: str, kind: FieldKind, width: int, value: bool | None = None) -> None:
        if self._at + width > len(self._head):
            raise IndexError
        self._fields.append(Field(key, kind, self._at, width, self._kept, value))
        self._at += width

    def _value(self, key: str) -> None:
        code = self._head[self._at]
        if code in (0x8C, 0x5D) or (code in NUMBERS and self._is_pair()):
            first = self._at
            if code == 0x8C:
                self._fix(2)
                self._at += self._head[self._at - 1]
                self._fix(1, 0x94)
            elif code == 0x5D:
                self._short_list()
            else:
                self._pair()
            self._at, end = first, self._at
            self._add(key, "raw", end - first)
            self._kept += 1
        elif code == 0x8A:
            self._fix(2)
            if not 0 < self._head[self._at - 1] <= 8:
                raise KeyError
            self._add(key, "signed", self._head[self._at - 1])
        else:
            self._fix(1)
            if code in CONSTANTS:
                self._add(key, "constant", 0, CONSTANTS[code])
            elif code in REFERENCES:
                self._add(key, "reference", REFERENCES[code])
            else:
                self._add(key, "signed" if code == 0x4A else "number", NUMBERS[code])

    def _short_list(self) -> None:
        """An empty list, or one with one item."""
        self._fix(2, 0x5D, 0x94)
        width = 1 + REFERENCES.get(self._head[self._at], 0) if self._at < len(self._head) else 1
        if width > 1 and self._head[self._at + width : self._at + width + 1] == b"a":
            self._fix(1)
            self._at += width - 1
            self._fix(1, 0x61)

    def _is_pair(self) -> bool:
        end = self._at + 1 + NUMBERS[self._head[self._at]]
        return end < len(self._head) and self._head[end] in NUMBERS

    def _pair(self) -> None:
        """Two integers in a tuple, as the number of a pool is."""
        for _ in range(2):
            width = NUMBERS[self._head[self._at]]
            self._fix(1)
            self._at += width
        self._fix(2, 0x86, 0x94)


def integers(raw: bytes) -> Iterable[int]:
    """Those of ``BININT1``, ``BININT2`` and ``BININT`` one after the other."""
    at = 0
    while at < len(raw):
        end = at + 1 + NUMBERS[raw[at]]
        yield int.from_bytes(raw[at + 1 : end], "little", signed=raw[at] == 0x4A)
        at = end
