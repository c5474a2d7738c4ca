"""The stack that allocated a block, from a recorder or from the history of CUDA's allocator.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from cudamem_testing import torch_api
from cudamem_testing.cycles.native import Blocks as NativeBlocks
from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import Locator, Stack
from cudamem_testing.recorders.history import snapshot

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
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


def recorded_allocations() -> Callable[[str, int], Stack | None]:
    """The stack of a block by its device and address. CUDA's history is read when a block of a card is first asked
    for, so garbage without CUDA tensors costs nothing.
    """
    found: dict[tuple[str, int], Stack] | None = None

    def allocated(device: str, address: int) -> Stack | None:
        nonlocal found
        if not Device.parse(device).is_card:
            return None
        if found is None:
            found = _blocks() if torch_api.history_enabled() else {}
        return found.get((device, address))

    return allocated


def _blocks() -> dict[tuple[str, int], Stack]:
    locator = Locator(os.getcwd())
    found: dict[tuple[str, int], Stack] = {}
    for segment in snapshot().get("segments", ()):
        address = segment["address"]
        for block in segment["blocks"]:
            frames = block.get("frames") or ()
            if block["state"] == "active_allocated" and frames:
                found[f"cuda:{segment['device']}", block.get("address", address)] = locator.stack(map(_raw, frames))
            address += block["size"]
    return found


def _raw(frame: Mapping[str, object]) -> tuple[str, int, str]:
    line = frame["line"]
    return str(frame["filename"]), line if isinstance(line, int) else 0, str(frame["name"])
