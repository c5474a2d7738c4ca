"""The ledger: owners of live blocks on devices whose blocks record none.

It is kept by address, from the recordings that were taken anyway, and brought up to date against each later one: an
address that is no longer live has no owner any more. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from cudamem_testing.recorders.base import NOTHING, Owned

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.devices import Device
    from cudamem_testing.snapshots.record import Recording


class Ledger:
    """Owners of live blocks by device and address."""

    def __init__(self) -> None:
        self._labels: dict[str, int] = {}
        self._owners: dict[Device, dict[int, tuple[int, int]]] = {}  # address -> size, label number

    def enter(self, device: Device, label: str, blocks: Iterable[Block]) -> None:
        """Enter blocks that an owner left."""
        number = self._labels.setdefault(label, len(self._labels) + 1)
        entries = self._owners.setdefault(device, {})
        for block in blocks:
            if block.address is not None:
                entries[block.address] = (block.size, number)

    def forget(self, device: Device, blocks: Iterable[tuple[int, int]]) -> None:
        """Remove blocks by address and size that were freed, as far as is known; one that still exists then has no
        owner.
        """
        entries = self._owners.get(device, {})
        for address, size in blocks:
            if entries.get(address, (None,))[0] == size:
                del entries[address]

    def named(self, recording: Recording) -> Recording:
        """The recording with owners at its blocks, where its device does not name them itself.

        Entries of blocks that are gone are dropped.
        """
        entries = self._owners.get(recording.device)
        if not entries:
            return recording
        live = {block.address: block.size for block in recording.blocks}
        kept = {address: entry for address, entry in entries.items() if live.get(address) == entry[0]}
        self._owners[recording.device] = kept
        blocks = tuple(
            replace(block, owner=kept[block.address][1]) if block.address in kept else block
            for block in recording.blocks
        )
        names = {number: label for label, number in self._labels.items()}
        return replace(recording, blocks=blocks, owners=names)

    def entered(self, device: Device) -> set[int]:
        """Addresses of the device's live blocks that have an owner."""
        return set(self._owners.get(device, ()))

    def unknown(self, recording: Recording) -> set[int]:
        """Addresses of live blocks without an owner."""
        entries = self._owners.get(recording.device, {})
        return {block.address for block in recording.blocks if block.address not in entries}

    def totals(self, device: Device) -> dict[str, Owned]:
        """Bytes and blocks on a device by owner, as far as is known."""
        names = {number: label for label, number in self._labels.items()}
        totals: dict[str, Owned] = {}
        for size, number in self._owners.get(device, {}).values():
            before = totals.get(names[number], NOTHING)
            totals[names[number]] = Owned(before.bytes + size, before.blocks + 1)
        return totals
