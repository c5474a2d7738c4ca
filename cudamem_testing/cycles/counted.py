"""Turns blocks that were only counted into cycles of the kind that was examined before.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from cudamem_testing.cycles.memory import by_place
from cudamem_testing.cycles.native import device_name
from cudamem_testing.cycles.results import UNREAD, Cycle, KeptTensor
from cudamem_testing.model.stacks import Stack
from cudamem_testing.unfinalized import Count

_Kind = tuple[int, str, "Stack | None"]


def with_counted(
    found: Sequence[tuple[int, list[Cycle]]],
    counts: Iterable[Count],
    earlier: Mapping[tuple[int, int], tuple[Cycle, KeptTensor]],
    every: Sequence[tuple[int, list[Cycle]]] | None = None,
) -> list[list[Cycle]]:
    """Cycles by collection, including those known only by the blocks that they kept.

    ``found`` are the cycles that were looked at, by the number of the collection, ``every`` also those that do not
    count; ``earlier`` is what was looked at in tests before, with the names of its tensors. How many cycles were
    counted follows from how many blocks of the kind one keeps. Blocks are of a cycle that was not read where nothing
    was looked at in their place, or that was saved by a finalizer.
    """
    together: defaultdict[int, list[Cycle]] = defaultdict(list)
    shown = by_place(found if every is None else every)
    for number, cycles in found:
        together[number] += cycles
    unread = Cycle((UNREAD,), (), UNREAD)
    groups: dict[tuple[int, str], list[tuple[Count, Cycle, KeptTensor]]] = {}
    for count in counts:
        unknown = unread, KeptTensor("", "", count.size, device_name(count.device), 0)
        place = count.shown_in, count.address
        cycle, tensor = shown.get(place) or earlier.get(place) or unknown
        groups.setdefault((count.collection, cycle.signature), []).append((count, cycle, tensor))
    named = {cycle.signature for _, cycles in found for cycle in cycles}
    for (number, signature), group in groups.items():
        together[number].append(_counted(group, names=signature not in named))
        named.add(signature)
    return [*together.values()]


def _counted(group: Sequence[tuple[Count, Cycle, KeptTensor]], *, names: bool) -> Cycle:
    """One cycle for all that was counted in its place, with the names of its tensors if it has not been read here.

    How many there were is estimated where its kinds of blocks do not agree on it: it has become larger or smaller.
    """
    cycle = group[0][1]
    blocks = Counter[_Kind]()
    said: list[tuple[int, int]] = []
    for count, one, shown in group:
        if not count.saved:
            alike = sum(_kind(tensor) == _kind(shown) for tensor in one.tensors) or 1
            said.append(divmod(count.blocks * one.count, alike))
            blocks[_kind(shown)] += count.blocks
    others = [tensor for tensor in cycle.tensors if _kind(tensor) not in blocks]
    tensors: list[KeptTensor] = []
    for count, _, _ in group:
        if count.saved:
            tensors += _saved(count, others, blocks)
    first = []
    for tensor in cycle.tensors if names else ():
        if blocks[_kind(tensor)] > 0:
            blocks[_kind(tensor)] -= 1
            first.append(tensor._replace(address=0))
    rest = [KeptTensor("", "", size, device, 0, stack) for size, device, stack in blocks.elements()]
    times = max((whole + (part > 0) for whole, part in said), default=1)
    agreed = all(one == (times, 0) for one in said)
    return replace(cycle, tensors=(*first, *rest, *tensors), count=times, estimated=not agreed)


def _saved(count: Count, others: Sequence[KeptTensor], blocks: Counter[_Kind]) -> Iterator[KeptTensor]:
    """What autograd saved: the tensors that are not counted one by one, where they are as large; else as many blocks.

    Tensors are added to the blocks.
    """
    times, rest = divmod(count.blocks, len(others) or 1)
    if not rest and sum(tensor.bytes for tensor in others) * times == count.size:
        for tensor in others:
            blocks[_kind(tensor)] += times
        return
    size, larger = divmod(count.size, count.blocks)
    for place in range(count.blocks):
        yield KeptTensor("", "", size + (place < larger), device_name(count.device), 0)


def _kind(tensor: KeptTensor) -> _Kind:
    return tensor.bytes, tensor.device, tensor.stack
