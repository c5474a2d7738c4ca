"""What is known of cycles that were met before, so that garbage alike need not be read again.

Nothing here refers to an object of the user. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cudamem_testing.cycles.origins import Origins
from cudamem_testing.cycles.results import Cycle, KeptTensor
from cudamem_testing.cycles.words import hops, signature
from cudamem_testing.model.stacks import Locator

#: Tensors and parts that stay known; then all of them are read again.
MOST = 20_000


class Chain(NamedTuple):
    """A cycle in a part of the garbage: the places of its objects, the first also at the end, and its signature."""

    places: tuple[int, ...]
    signature: str


class Memory:
    """What is known of cycles that were met before.

    ``known`` has the first cycle of each signature. ``kinds`` has the first one of each kind: the classes along it, its
    signature, and of its largest tensors the sizes and the lines of the project that allocated them. ``parts`` has the
    cycles of garbage by its fingerprint, ``shown`` what was read by the number of the collection and the address.
    """

    def __init__(self, locator: Locator) -> None:
        self.origins = Origins(locator)
        self.known: dict[str, Cycle] = {}
        self.kinds: dict[tuple[object, ...], Cycle] = {}
        self.parts: dict[int, tuple[Chain, ...]] = {}
        self.shown: dict[tuple[int, int], tuple[Cycle, KeptTensor]] = {}

    def recognises(self, objects: Sequence[object], fingerprint: int) -> bool:
        """Whether objects with the fingerprint of others that were read have the same cycles in the same places.

        As many objects of the same classes may refer to each other by other names: so the references along each cycle
        are read, and nothing else is.
        """
        chains = self.parts.get(fingerprint)
        return chains is not None and all(self._is_there(objects, chain) for chain in chains)

    def _is_there(self, objects: Sequence[object], chain: Chain) -> bool:
        if max(chain.places) >= len(objects):
            return False
        steps = hops([objects[place] for place in chain.places])
        return signature(steps, self.origins.storing_class) == chain.signature

    def keep(self, found: Iterable[tuple[int, list[Cycle]]]) -> None:
        """Keep what a test found for later ones: its cycles by the number of their collection."""
        if len(self.shown) > MOST or len(self.parts) > MOST:
            self.shown.clear()
            self.parts.clear()
            return
        self.shown.update(by_place(found))


def by_place(found: Iterable[tuple[int, list[Cycle]]]) -> dict[tuple[int, int], tuple[Cycle, KeptTensor]]:
    """What cycles kept, by the number of the collection that found them and its address."""
    return {
        (number, tensor.address): (cycle, tensor)
        for number, cycles in found
        for cycle in cycles
        for tensor in cycle.tensors
    }
