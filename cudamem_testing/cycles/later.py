"""Where blocks of cards were allocated, and whose they are, as found after the collection in the allocator's record.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from cudamem_testing.cycles.draft import project_lines
from cudamem_testing.cycles.native import device_name
from cudamem_testing.cycles.results import NAMED, Cycle, KeptTensor
from cudamem_testing.model.stacks import Locator, Stack
from cudamem_testing.unfinalized import Count


class Place(NamedTuple):
    """The calls that allocated a block, and whether it counts."""

    stack: Stack
    is_own: bool


class Record(Protocol):
    """The record of what was live in the collections of a test."""

    def at(self, collection: int, device: str) -> Mapping[int, Place] | None:
        """The blocks that were live on a device, by address; ``None`` if it has no such record. None that counts if the
        record has lost them.
        """


def placed(record: Record, collection: int, cycles: Iterable[Cycle], locator: Locator) -> list[Cycle]:
    """Cycles with the calls that allocated what they kept."""

    def of(tensor: KeptTensor) -> KeptTensor:
        blocks = record.at(collection, tensor.device)
        place = None if blocks is None else blocks.get(tensor.address)
        return tensor if place is None else tensor._replace(stack=place.stack)

    found = []
    for cycle in cycles:
        tensors = tuple(map(of, cycle.tensors))
        near = tuple(project_lines(locator, tensors[:NAMED]))
        found.append(replace(cycle, tensors=tensors, origin=cycle.origin._replace(near=near)))
    return found


def own(record: Record, collection: int, cycles: Iterable[Cycle]) -> list[Cycle]:
    """Cycles with those tensors that count; without those that kept none."""

    def counts(tensor: KeptTensor) -> bool:
        blocks = record.at(collection, tensor.device)
        return blocks is None or (tensor.address in blocks and blocks[tensor.address].is_own)

    kept = [replace(cycle, tensors=tuple(filter(counts, cycle.tensors))) for cycle in cycles]
    return [cycle for cycle in kept if cycle.tensors]


def own_counts(record: Record, counts: Sequence[Count], addresses: Iterable[tuple[int, int]]) -> Iterator[Count]:
    """Counts of those blocks that count, with the places of counts and their addresses.

    What autograd saved counts with what it was saved for.
    """
    by_count: dict[int, list[int]] = {}
    for place, address in addresses:
        by_count.setdefault(place, []).append(address)
    for place, count in enumerate(counts):
        device = device_name(count.device)
        blocks = record.at(count.shown_in if count.saved else count.collection, device) if count.device else None
        if blocks is None:
            yield count
            continue
        asked = [count.address] if count.saved else by_count.get(place, [])
        number = sum(address in blocks and blocks[address].is_own for address in asked)
        if number:
            yield count if count.saved else count._replace(blocks=number)
