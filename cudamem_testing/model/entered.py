"""Blocks that are made for a ``with`` statement, and the lines that made one and did not enter or leave it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

from cudamem_testing.show.files import shown

PACKAGE = str(Path(__file__).parents[1])


class Block(Protocol):
    """What measures or checks a ``with`` block."""

    @property
    def entered(self) -> bool:
        """Whether the block has begun, now or before."""
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
        """Note a block, and the line outside of this package that makes it; ``call`` is what is written there."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        if len(self._made) > 100:  # a test may make thousands
            self._made = [one for one in self._made if not one[0].left]
        self._made.append((block, call, frame.f_code.co_filename, frame.f_lineno))

    @property
    def problems(self) -> list[str]:
        """One line for each block that was not entered, or not left; ask before such blocks are ended for it."""
        return [
            f"{call} at {shown(Path(file))}:{line} {'was never left and ' if block.entered else ''}checks nothing: "
            f"write `with {call}:`"
            for block, call, file, line in self._made
            if not block.left
        ]

    def clear(self) -> None:
        """Forget them."""
        self._made.clear()
