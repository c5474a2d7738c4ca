"""Blocks and live sets: memory that is allocated at a moment.

Live at the peak, retained, the ledger of owners, the difference of two snapshots, pools and baselines are all a
:class:`LiveSet`. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from cudamem_testing.model.devices import Device
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.show.notebook import InNotebook

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Block:
    """One live allocation and what is known about it.

    ``size`` is the allocated and ``requested`` the requested size, in bytes. ``address`` and
    ``order`` (position in the order of allocation) are ``None`` if not recorded. A block that was
    never seen being allocated is ``preexisting``. ``after`` is all that is known without a stack: the project's
    line that allocated last on the device before this block.
    """

    size: int
    requested: int
    device: Device
    address: int | None = None
    stack: Stack = Stack()
    order: int | None = None
    pool: tuple[int, int] = (0, 0)
    stream: int = 0
    thread: int | None = None
    owner: str | None = None
    preexisting: bool = False
    after: Frame | None = None

    def __str__(self) -> str:
        return f"{format_size(self.size)} on {self.device} allocated {self.stack.line}"


@dataclass(frozen=True, slots=True)
class LiveSet(InNotebook):
    """The blocks that were live at one moment on one device.

    ``rounding`` is the excess of the allocator's counter over the sum of the blocks (remainders that it did not
    split off), so that ``total`` equals the counter to the byte. ``notes`` say what may be missing, ``stackless`` why
    a block may have no stack.
    """

    device: Device
    blocks: tuple[Block, ...] = ()
    rounding: int = 0
    notes: tuple[str, ...] = ()
    stackless: str = "no Python stack"

    @property
    def total(self) -> int:
        """Bytes of all blocks and of the allocator's rounding."""
        return sum(block.size for block in self.blocks) + self.rounding

    def group_by(self, key: Callable[[Block], K]) -> list[Group[K]]:
        """Groups of blocks by key, largest first, ties in order of first appearance."""
        groups: dict[K, list[Block]] = {}
        for block in self.blocks:
            groups.setdefault(key(block), []).append(block)
        found = [Group(name, tuple(blocks)) for name, blocks in groups.items()]
        return sorted(found, key=lambda group: -group.size)

    def fresh(self) -> LiveSet:
        """The blocks that are not pre-existing."""
        kept = tuple(block for block in self.blocks if not block.preexisting)
        return LiveSet(self.device, kept, 0, self.notes, self.stackless)

    def minus(self, other: LiveSet) -> LiveSet:
        """The blocks of this set that are not in the other: by order of allocation, else by address and size."""
        held = Counter(map(_identity, other.blocks))
        kept: list[Block] = []
        for block in self.blocks:
            identity = _identity(block)
            if held[identity]:
                held[identity] -= 1
            else:
                kept.append(block)
        return LiveSet(self.device, tuple(kept), 0, self.notes, self.stackless)

    def flamegraph(self, path: str | Path, title: str = "") -> Path:
        """Draw the blocks by stack into a PNG or SVG file: the outermost call above, each as wide as its bytes.

        Raises:
            ModuleNotFoundError: matplotlib is not installed (extra ``plot``).
            ValueError: for another ending.
        """
        from .flames import flamegraph

        return flamegraph(self, path, title)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def __str__(self) -> str:
        lines = [f"{format_size(self.total)} in {count(len(self.blocks), 'block')} on {self.device}"]
        lines += [f"  {group}" for group in self.group_by(lambda block: block.stack.line)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Group(Generic[K]):
    """Blocks with one key."""

    key: K
    blocks: tuple[Block, ...] = field(default=())

    @property
    def size(self) -> int:
        """Bytes of all blocks."""
        return sum(block.size for block in self.blocks)

    def __str__(self) -> str:
        return f"{format_size(self.size)}  {count(len(self.blocks), 'block')}  {self.key}"


def _identity(block: Block) -> tuple[object, ...]:
    if block.order is not None:
        return ("order", block.order)
    return ("address", block.address, block.size)
