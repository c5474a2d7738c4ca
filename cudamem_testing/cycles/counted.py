"""Blocks that were counted, and not looked at, as cycles of the kind that was looked at before.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cudamem_testing.cycles.results import Cycle, KeptTensor
from cudamem_testing.unfinalized import Count

UNREAD = "(objects that were not read)"


def with_counted(found: Sequence[tuple[int, list[Cycle]]], counts: Iterable[Count]) -> list[list[Cycle]]:
    """Cycles by collection, with those that are known only by the blocks that they kept.

    ``found`` are the cycles that were looked at, by the number of the collection. How many cycles were counted follows
    from how many blocks of the kind one keeps. Blocks are of a cycle that was not read where nothing was looked at in
    their place, or that was saved by a finalizer.
    """
    together: defaultdict[int, list[Cycle]] = defaultdict(list)
    shown: dict[tuple[int, int], tuple[Cycle, KeptTensor]] = {}
    for number, cycles in found:
        together[number] += cycles
        for cycle in cycles:
            shown.update({(number, tensor.address): (cycle, tensor) for tensor in cycle.tensors})
    unread = Cycle((UNREAD,), (), UNREAD)
    groups: dict[tuple[int, str], list[tuple[Count, Cycle, KeptTensor]]] = {}
    for count in counts:
        unknown = unread, KeptTensor("", "", count.size, "cpu", 0)
        cycle, tensor = shown.get((count.shown_in, count.address), unknown)
        groups.setdefault((count.collection, cycle.signature), []).append((count, cycle, tensor))
    for (number, _), group in groups.items():
        together[number].append(_counted(group))
    return [*together.values()]


def _counted(group: Sequence[tuple[Count, Cycle, KeptTensor]]) -> Cycle:
    tensors: list[KeptTensor] = []
    times = 1
    for count, cycle, shown in group:
        alike = sum(one.bytes == shown.bytes and one.stack == shown.stack for one in cycle.tensors) or 1
        times = max(times, -(-count.blocks * cycle.count // alike))
        tensors += [replace(shown, name="", shape="", address=0)] * count.blocks
    return replace(group[0][1], tensors=tuple(tensors), count=times)
