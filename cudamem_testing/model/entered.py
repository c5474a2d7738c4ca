"""Finds blocks made for a ``with`` statement that were not entered or not left, and the lines that made them.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

from cudamem_testing.show.files import shown

PACKAGE = str(Path(__file__).parents[1])


class Block(Protocol):
    """An object that measures or checks a ``with`` block."""

    @property
    def entered(self) -> bool:
        """Whether the block has been entered."""
        ...

    @property
    def left(self) -> bool:
        """Whether the block has ended."""
        ...


class NotEnteredError(RuntimeError):
    """A block was made and never entered, or entered and never left, so it checked nothing."""


class Blocks:
    """The blocks that one test made."""

    def __init__(self) -> None:
        self._made: list[tuple[Block, str, str, int]] = []

    def add(self, block: Block, call: str) -> None:
        """Record a block, and the line outside this package that makes it; ``call`` is the source text there."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        if len(self._made) > 100:  # a test may make thousands
            self._made = [one for one in self._made if not one[0].left]
        self._made.append((block, call, frame.f_code.co_filename, frame.f_lineno))

    @property
    def problems(self) -> list[str]:
        """One line for each block that was not entered, or not left; call it before such blocks are ended."""
        return [
            f"{call} at {shown(Path(file))}:{line} {'was never left and ' if block.entered else ''}checks nothing: "
            f"write `with {call}:`"
            for block, call, file, line in self._made
            if not block.left
        ]

    def clear(self) -> None:
        """Discard the recorded blocks."""
        self._made.clear()
