"""The stack that allocated a block, from a recorder. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from cudamem_testing.cycles.native import Blocks as NativeBlocks
from cudamem_testing.model.stacks import Stack

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.stacks import Locator
    from cudamem_testing.recorders.cpu import CpuRecorder


class Blocks(Protocol):
    """Live blocks of one device."""

    def counts(self, address: int) -> bool:
        """Whether the block at an address counts, as far as this is known in constant time."""

    def stack(self, address: int) -> Stack | None:
        """The stack that allocated the block; ``None`` if the block does not count, empty if the stack is unknown."""


class OwnedBlocks:
    """Blocks of the CPU; those of one owner count, or all without one. ``stacks`` caches stacks by number."""

    def __init__(self, recorder: CpuRecorder, owner: int | None, locator: Locator, stacks: dict[int, Stack]) -> None:
        self._recorder, self._owner = recorder, owner
        self._locator, self._stacks = locator, stacks

    def counts(self, address: int) -> bool:
        """Whether the block belongs to the owner."""
        found = self._recorder.allocation(address)
        return self._owner is None or (found is not None and found[0] == self._owner)

    def stack(self, address: int) -> Stack | None:
        """The calls that allocated the block."""
        found = self._recorder.allocation(address)
        if found is None or (self._owner is not None and found[0] != self._owner):
            return None
        return self.stack_of(found[1])

    def stack_of(self, number: int) -> Stack:
        """A stack by its number."""
        if number not in self._stacks:
            self._stacks[number] = self._locator.stack(self._recorder.frames(number))
        return self._stacks[number]

    @property
    def native(self) -> NativeBlocks:
        """What native code needs to find them."""
        return NativeBlocks(self._recorder.addresses()[0], self._owner)


class ListedBlocks:
    """Blocks of a device whose record is read as a whole: in milliseconds, and only when one is asked for."""

    def __init__(self, read: Callable[[], Sequence[Block] | None]) -> None:
        self._read = read
        self._found: dict[int, Stack] | None = None
        self._unknown = False

    def counts(self, address: int) -> bool:
        """Always false: this takes reading the record."""
        return True

    def stack(self, address: int) -> Stack | None:
        """The calls that allocated the block."""
        if self._found is None:
            blocks = self._read()
            self._unknown = blocks is None
            self._found = {block.address or 0: block.stack for block in blocks or ()}
        return Stack() if self._unknown else self._found.get(address)


class LaterBlocks:
    """Blocks of a device whose record is read after the collection; until then all count."""

    def counts(self, address: int) -> bool:
        """Unknown."""
        return True

    def stack(self, address: int) -> Stack | None:
        """Unknown."""
        return Stack()
