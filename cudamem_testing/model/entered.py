"""Finds what a test asked for and then did not use, so that it checks nothing, and the lines that asked for it.

That is a block that was made for a ``with`` statement and not entered, or not left, and a result of which nothing was
read. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from cudamem_testing.show.atomic_files import shown

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


class Readable(Protocol):
    """A result that knows whether anything was read from it."""

    @property
    def is_read(self) -> bool:
        """Whether something was."""
        ...


class Result:
    """A base of results that notice the first read of a public attribute, also by their text, length or comparison."""

    __slots__ = ("_is_read",)

    def __getattribute__(self, name: str) -> Any:
        if name != "is_read" and not name.startswith(("_", "assert")):  # a check that is not called reads nothing
            object.__setattr__(self, "_is_read", True)
        return object.__getattribute__(self, name)

    @property
    def is_read(self) -> bool:
        """Whether something was read since it was handed out."""
        return getattr(self, "_is_read", False)

    def handed_out(self) -> None:
        """Forget what was read while it was made."""
        object.__setattr__(self, "_is_read", False)


class NotEnteredError(RuntimeError):
    """A block was made and never entered, or entered and never left, or a result was not read: nothing was checked."""


class _Made:
    """``call`` is the source text that makes it, ``check`` the method that checks it, if it is a result."""

    __slots__ = ("block", "call", "check", "code", "line", "result")

    def __init__(self, call: str, check: str, block: Block | None, result: Readable | None, frame: FrameType) -> None:
        self.call, self.check = call, check
        self.block, self.result = block, result
        self.code, self.line = frame.f_code, frame.f_lineno

    @property
    def is_over(self) -> bool:
        return (self.block is None or self.block.left) and (self.result is None or self.result.is_read)

    @property
    def problem(self) -> str | None:
        if self.is_over:
            return None
        place = f"{self.call} at {shown(Path(self.code.co_filename))}:{self.line}"
        if self.block is not None and not self.block.left:
            left = "was never left and " if self.block.entered else ""
            return f"{place} {left}checks nothing: write `with {self.call}:`"
        return f"{place} checks nothing, because nothing is read from it: call {self.check} on the result"


class Blocks:
    """The blocks and results that one test asked for."""

    def __init__(self) -> None:
        self._made: list[_Made] = []

    def add(self, call: str, block: Block | None = None, result: Readable | None = None, check: str = "") -> None:
        """Record a block, a result or what is both, and the line outside this package that makes it.

        ``call`` is the source text there, ``check`` a method of the result to recommend.
        """
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        if len(self._made) > 100:  # a test may make thousands
            self._made = [one for one in self._made if not one.is_over]
        self._made.append(_Made(call, check, block, result, frame))

    @property
    def problems(self) -> list[str]:
        """One line for each block that was not entered or not left, and each result that was not read.

        Call it before such blocks are ended.
        """
        return [problem for one in self._made if (problem := one.problem) is not None]

    def clear(self) -> None:
        """Discard what is recorded."""
        self._made.clear()


class ReadableBlock(Block, Readable, Protocol):
    """A block with a result."""

    def __exit__(self, *error: Any) -> Any:
        """Leave the block."""
        ...


T = TypeVar("T", bound=ReadableBlock)


class HandedOut(Generic[T]):
    """The blocks that one fixture made for one test; ``made`` holds them where others need them, too."""

    def __init__(self, call: str, check: str, made: list[T] | None = None) -> None:
        self._call, self._check = call, check
        self._blocks = Blocks()
        self.made: list[T] = [] if made is None else made
        self.problems: list[str] = []
        """A line for each that checked nothing."""

    def add(self, one: T, *, must_be_read: bool = True) -> T:
        """Hand out another one."""
        self.made.append(one)
        self._blocks.add(self._call, one, one if must_be_read else None, self._check)
        return one

    def end(self) -> None:
        """The test or the example has ended: leave blocks that it did not leave."""
        add_new(self.problems, self._blocks.problems)
        for one in reversed(self.made):
            if one.entered and not one.left:
                one.__exit__(None, None, None)
        self._blocks.clear()

    def clear(self) -> None:
        """Drop all."""
        self.made.clear()


def add_new(problems: list[str], found: Iterable[str]) -> None:
    """Add what was not found before: each example has the same problems."""
    before = {*problems}
    problems += [one for one in found if one not in before]
