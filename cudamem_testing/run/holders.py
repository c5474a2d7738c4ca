"""Finds the holders of retained blocks, the cheapest way first.

Places where the run found holders before are looked at first; they answer in milliseconds, and only where they explain
every block. Else the whole heap is searched. Both may come before garbage is collected: what a root reaches is none.
What no root reaches is not described then, and searched for once more after the collection.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from cudamem_testing.guards import thawed
from cudamem_testing.model.blocks import Block
from cudamem_testing.model.devices import Device
from cudamem_testing.model.references import Doubt, Path, Reach, RootKind, Unsure
from cudamem_testing.objects.places import KnownPlaces
from cudamem_testing.objects.search import HolderResult
from cudamem_testing.torch_api import capturing, compiler_pools

#: Holders by the address of the block.
Holders = Mapping[int, HolderResult]
SEARCH_SECONDS = 5.0
#: Holders that a collection cannot change.
_FROM_A_ROOT = (Reach.REACHABLE, Reach.HARNESS)
#: Where ``torch.compile(mode="reduce-overhead")`` captures, and keeps what its graphs need in C++.
TREES = "torch/_inductor/cudagraph_trees.py"
OF_TREES = Path("module torch._inductor.cudagraph_trees", RootKind.MODULE, root_name="torch._inductor.cudagraph_trees")


class BlockHolders:
    """The holders of the blocks of one test. ``beside`` are roots that may hold them, such as the test itself."""

    def __init__(self, places: KnownPlaces, beside: Iterable[object] = ()) -> None:
        self._places = places
        self._beside = tuple(beside)
        self._found: dict[Device, dict[int, HolderResult]] = {}
        self._orders: dict[Device, dict[int | None, int | None]] = {}
        """The block that had an address when its holder was found: a thread may have freed it and allocated another
        there."""

    def are_known(self, blocks: Mapping[Device, Sequence[Block]]) -> bool:
        """Whether known places explain every block."""
        for device, some in blocks.items():
            found = self._places.find(_addresses(some), beside=self._beside)
            if found is None:
                return False
            self._note(device, some, found)
        return True

    def are_found(self, blocks: Mapping[Device, Sequence[Block]]) -> bool:
        """Whether a root reaches every block: then none of them is garbage. Known blocks are not searched for."""
        for device, some in blocks.items():
            if missing := self._unexplained(device, some):
                self._search(device, missing, reached_only=True)
        return not any(self._unexplained(device, some) for device, some in blocks.items())

    def _unexplained(self, device: Device, blocks: Sequence[Block]) -> list[Block]:
        return [block for block in blocks if not _is_explained(self._holder(device, block))]

    def _holder(self, device: Device, block: Block) -> HolderResult | None:
        if block.address is None or self._orders.get(device, {}).get(block.address) != block.order:
            return None
        return self._found.get(device, {}).get(block.address)

    def _note(self, device: Device, blocks: Sequence[Block], found: Holders) -> None:
        self._found.setdefault(device, {}).update(found)
        self._orders.setdefault(device, {}).update((block.address, block.order) for block in blocks)

    def of(self, device: Device, blocks: Sequence[Block]) -> Holders:
        """The holder of each block by its address, after garbage was collected where that could change the answer."""
        found = self._found.setdefault(device, {})
        unexplained = self._unexplained(device, blocks)
        if missing := [block for block in unexplained if not _is_settled(self._holder(device, block))]:
            self._search(device, missing)
        pools = compiler_pools()
        for block in blocks:
            holder = self._holder(device, block)
            if holder is not None and holder.reach not in _FROM_A_ROOT and is_of_trees(block, pools):
                found[block.address or 0] = replace(
                    holder, reach=Reach.REACHABLE, path=OF_TREES, complete=True, doubt=None
                )
        if capturing():
            return {address: _uncollected(holder) for address, holder in found.items()}
        return found

    def _search(self, device: Device, blocks: Sequence[Block], *, reached_only: bool = False) -> Holders:
        with thawed():
            found = self._places.search(_addresses(blocks), budget_seconds=SEARCH_SECONDS, reached_only=reached_only)
        self._note(device, blocks, found)
        return found


def is_of_trees(block: Block, pools: Collection[tuple[int, int]]) -> bool:
    """Whether graphs that the compiler captured need the block: it is in their pool, or was allocated by a capture."""
    return block.pool in pools or any(frame.file.endswith(TREES) for frame in block.stack.frames)


def _is_explained(holder: HolderResult | None) -> bool:
    """Whether a root holds it permanently: what the frame of a running thread holds may be freed next."""
    return holder is not None and holder.reach in _FROM_A_ROOT and not _is_in_running_code(holder)


def _is_settled(holder: HolderResult | None) -> bool:
    """Whether another search would find no more, because the first one gave up. A block that nothing held is searched
    for again: another thread may have been handing it over.
    """
    return holder is not None and holder.reach is Reach.UNKNOWN


def _is_in_running_code(holder: HolderResult) -> bool:
    path = holder.path
    return holder.reach is Reach.REACHABLE and path is not None and path.root_kind is RootKind.FRAME


def _addresses(blocks: Sequence[Block]) -> list[int]:
    return [block.address for block in blocks if block.address is not None]


def _uncollected(holder: HolderResult) -> HolderResult:
    """What no root reaches, if garbage was not collected: C++ may hold it, or it is garbage."""
    if holder.reach is not Reach.UNREACHABLE:
        return holder
    return replace(holder, reach=Reach.UNKNOWN, complete=False, doubt=Doubt(Unsure.UNCOLLECTED))
