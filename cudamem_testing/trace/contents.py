"""Contents: every version of every storage by number, and the nodes by the numbers that they take and leave.

The passes that find categories (:mod:`.categories`) go over the data flow many times, forwards and backwards. They ask
three questions about a version of a storage: which number has it in a table, which tensor does it belong to, what
comes before it. So the versions are numbered once, densely, and a node becomes two short tuples of numbers. Nodes that
only allocate or free (``[memory]``) compute nothing and are left out; their versions are numbered all the same.

A tensor here is what the profiler takes for one: all storages that the same tensor object had, one after the other
(``x.data = y``). The profiler is wrong where it missed a free and the address was used again, and about tensors that
begin without memory, which it takes for one tensor. The reader found those, and they are separate tensors.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cudamem_testing.trace.flow import MEMORY, Node
from cudamem_testing.trace.records import Storage, Trace

MOST_VERSIONS = 1 << 32


class Work(NamedTuple):
    """A node that computes: the contents it takes and those it leaves."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    backward: bool


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """All versions of all storages of a data flow, by number."""

    numbers: dict[int, int]
    """The number of a version, by ``storage.index * MOST_VERSIONS + version``."""
    tensors: Sequence[int]
    """The tensor of each content."""
    before: Sequence[int]
    """The number of the version before; -1 for the first."""
    work: tuple[Work, ...]
    intermediates: tuple[int, ...]
    """Contents that live inside one node only."""
    tensor_of: Sequence[int]
    """The tensor of each storage, by ``storage.index``."""

    def number(self, storage: Storage, version: int) -> int:
        """The number of a version; -1 when no node has it."""
        return self.numbers.get(storage.index * MOST_VERSIONS + version, -1)


def find_contents(nodes: Iterable[Node], trace: Trace) -> Contents:
    """Number the contents of a data flow in the order in which the nodes meet them."""
    numbers: dict[int, int] = {}
    owners: list[int] = []
    before: list[int] = []
    work: list[Work] = []
    intermediates: list[int] = []
    for node in nodes:
        reads: list[int] = []
        writes: list[int] = []
        for storage, taken, left in node.uses:
            key = storage.index * MOST_VERSIONS
            if taken is not None:
                number = numbers.get(key + taken)
                if number is None:
                    number = numbers[key + taken] = len(owners)
                    owners.append(storage.index)
                    before.append(-1)
                reads.append(number)
                if left is None or left == taken:
                    continue
                previous = number
            elif left is None:
                number = numbers.setdefault(key, len(owners))
                if number == len(owners):
                    owners.append(storage.index)
                    before.append(-1)
                intermediates.append(number)
                continue
            else:
                previous = -1
            number = numbers.get(key + left)
            if number is None:
                number = numbers[key + left] = len(owners)
                owners.append(storage.index)
                before.append(previous)
            writes.append(number)
        if node.name is not MEMORY:
            work.append(Work(tuple(reads), tuple(writes), node.scope.backward))
    tensor_of = _tensors(trace)
    return Contents(
        numbers, [tensor_of[owner] for owner in owners], before, tuple(work), tuple(intermediates), tensor_of
    )


def _tensors(trace: Trace) -> list[int]:
    """The tensor of each storage: the profiler's number, or a negative one for what the reader distinguished."""
    seen: set[int] = set()
    tensors = []
    for storage in trace.storages:
        apart = storage.allocation in seen or storage.number in trace.shared_numbers
        tensors.append(-1 - storage.index if apart else storage.number)
        seen.add(storage.allocation)
    return tensors
