"""What is looked for in garbage, and what was found in it until it is freed. PYTEST_DONT_REWRITE"""

# Annotations are not postponed here: Python compiles the text of each field of a named tuple.
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from cudamem_testing.cycles.memory import Memory
from cudamem_testing.cycles.native import NONE, Blocks, Item, Storages, items_in
from cudamem_testing.cycles.results import Cycle, KeptTensor, merged
from cudamem_testing.model.stacks import Locator, Stack
from cudamem_testing.torch_api.tensors import StoredMemory

#: Objects outside the garbage, held by it through C++, that are looked at; and if there is little time.
MOST_BEYOND, SOME_BEYOND = 20_000, 100

Allocated = Callable[[str, int], "Stack | None"]


class Question(NamedTuple):
    """What is looked for.

    ``device`` says which devices count. ``blocks`` finds blocks of the CPU, and ``stack_of`` returns a stack by its
    number there. ``allocated`` returns the stack that allocated the block at an address of another device, or for a
    tensor that only Python can read; with ``known_only``, blocks without one do not count. ``counts`` decides some of
    this faster. Without ``blocks`` they are asked for blocks of the CPU, too. ``enough`` says whether so many bytes
    on each device are worth examining. ``kind`` looks for instances of a class instead of tensors. ``memory`` is kept
    between questions. Of objects beyond the garbage ``beyond`` are read, for some ``seconds``; ``cut`` is called if
    there are more. After ``seconds`` no further cycle is read, and ``stopped`` is called if there are some. ``later``
    is whether there are devices whose blocks are found after the collection.
    """

    locator: Locator
    device: Callable[[str], bool] = lambda device: True
    allocated: Allocated = lambda device, address: None
    counts: Callable[[str, int], bool] = lambda device, address: True
    blocks: Blocks | None = Blocks()
    stack_of: Callable[[int], Stack] = lambda number: Stack()
    known_only: bool = False
    kind: type | None = None
    enough: Callable[[Mapping[str, int]], bool] = lambda kept: True
    memory: Memory | None = None
    beyond: int = MOST_BEYOND
    cut: Callable[[], None] = lambda: None
    seconds: float | None = None
    stopped: Callable[[], None] = lambda: None
    draws: bool = True
    later: bool = False

    def asks_for(self, device: str) -> bool:
        """Whether ``allocated`` is asked for the blocks of a device."""
        return device != "cpu" or self.blocks is None


def project_lines(locator: Locator, tensors: Iterable[KeptTensor]) -> Iterator[tuple[str, int]]:
    """Files of the project, with the lines in them that allocated some tensors, innermost first."""
    for tensor in tensors:
        for frame in () if tensor.stack is None else tensor.stack.frames:
            if frame.origin == "project" and frame.line:
                yield locator.path(frame), frame.line


class Found(NamedTuple):
    """A cycle with the tensors that were read, each with its weak reference or its number, and the numbers of further
    storages.
    """

    cycle: Cycle
    kept: list[tuple[KeptTensor, StoredMemory | int]]
    rest: range


class Draft:
    """Cycles of garbage that still exists, with weak references to what they keep."""

    def __init__(self, found: list[Found], storages: Storages | None, question: Question) -> None:
        self._found = found
        self._storages = storages
        self._question = question
        self._needs_tensors = question.kind is None
        self._settled = b"", b""
        self._freed = True
        if not found and storages is not None:
            storages.settle()

    def __len__(self) -> int:
        return len(self._found)

    @property
    def later(self) -> Locator | None:
        """If blocks of cards are found later, what finds the lines of the project."""
        return self._question.locator if self._question.later else None

    def settle(self, *, freed: bool = True) -> bool:
        """Note what was freed together with the garbage; without ``freed``, everything they referred to counts.

        Call it soon after the collection. Returns whether a cycle is left.
        """
        self._freed = freed
        if self._storages is not None:
            self._settled = self._storages.settle()
        gone = 1 in self._settled[1]
        for one in self._found:
            for _, where in one.kept:
                gone |= type(where) is StoredMemory and where.release()
        return bool(self._found) and (gone or not freed or not self._needs_tensors)

    def cycles(self) -> list[Cycle]:
        """The cycles that kept something until then."""
        items, gone = items_in(self._settled[0]), self._settled[1]
        stacks: dict[int, Stack | None] = {NONE: None}
        cycles = []
        for one in self._found:
            kept = [
                tensor
                for tensor, where in one.kept
                if not self._freed or (gone[where] if type(where) is int else where.release())  # type: ignore[union-attr]
            ]
            rest = (number for number in one.rest if gone[number] or not self._freed)
            kept += [self._tensor(items[number], stacks) for number in rest]
            if kept or not self._needs_tensors:
                cycles.append(replace(one.cycle, tensors=tuple(kept)))
        return merged(cycles)

    def settled(self, *, freed: bool = True) -> list[Cycle]:
        """Note what was freed, and return the cycles that kept something: both at once."""
        self.settle(freed=freed)
        return self.cycles()

    def _tensor(self, item: Item, stacks: dict[int, Stack | None]) -> KeptTensor:
        if self._question.asks_for(item.on):
            stack = self._question.allocated(item.on, item.address)
        else:
            if item.stack not in stacks:
                stacks[item.stack] = self._question.stack_of(item.stack)
            stack = stacks[item.stack]
        return KeptTensor("", "", item.bytes, item.on, item.address, stack)
