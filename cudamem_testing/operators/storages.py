"""Counts memory without a recorder: from the storages of tensors that operators return.

For fake tensors, which have bytes and no memory, and for devices whose allocator cannot be read. A storage counts once,
when an operator returns it and did not get it as an argument, in any container; so views and in-place
operators count nothing. It counts as freed when it dies, even if only autograd held it: torch keeps a storage's Python
object as long as the storage. Memory that lives only inside an operator is not seen. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.journal import UNKNOWN
from cudamem_testing.recorders.native_journal import Note
from cudamem_testing.safe_access import contents, is_a
from cudamem_testing.snapshots.rounding import SMALLEST
from cudamem_testing.torch_api import tensors
from cudamem_testing.torch_api.running import is_fake

#: Bytes that an allocator rounds up to; other allocators do not round.
GRANULARITY = {"cuda": SMALLEST}
INSIDE = "inner peaks are unknown: only results of operators are seen"


class StorageJournal:
    """Tracks live storages on one device that operators returned."""

    def __init__(self, device: Device, reason: str) -> None:
        self.device = device
        self.remarks: tuple[str, ...] = (f"{INSIDE} ({reason})",)
        self._granularity = GRANULARITY.get(device.kind, 1)
        self._live: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._level = self._total = self._count = 0
        self._notes: list[Note] = []

    def expect(self, found: Iterable[torch.Tensor]) -> None:
        """Count tensors that exist before the recording, so that their frees are seen."""
        for storage, size in self._of(found):
            if id(storage) not in self._live:
                self._add(storage, size)
        self._total = self._count = 0

    def see(self, result: object, arguments: tuple[object, ...]) -> None:
        """Count the new storages of what an operator returned."""
        fresh = [(storage, size) for storage, size in self._of(_tensors(result)) if id(storage) not in self._live]
        if fresh:
            given = {id(storage) for storage, _ in self._of(_tensors(arguments))}
            for storage, size in fresh:
                if id(storage) not in given and id(storage) not in self._live:
                    self._add(storage, size)

    def note(self) -> int:
        """Take a note; returns its number."""
        self._notes.append(Note(self._level, UNKNOWN, self._total, self._count, UNKNOWN, UNKNOWN, UNKNOWN))
        return len(self._notes) - 1

    def notes(self) -> list[Note]:
        """All notes so far."""
        return [*self._notes]

    def close(self) -> None:
        """Stop tracking storages."""
        self._live.clear()

    def _add(self, storage: Any, size: int) -> None:
        identity, live = id(storage), self._live

        def gone(reference: object) -> None:
            if live.pop(identity, None) is not None:
                self._level -= size

        live[identity] = weakref.ref(storage, gone), size
        self._level += size
        self._total += size
        self._count += 1

    def _of(self, found: Iterable[torch.Tensor]) -> Iterator[tuple[Any, int]]:
        for tensor in found:
            if not self.device.covers(Device(tensor.device.type, tensor.device.index)):
                continue
            try:
                storage = tensor.untyped_storage()
                size = storage.nbytes()
            except (NotImplementedError, RuntimeError):  # it has none
                continue
            if size:
                yield storage, -(-size // self._granularity) * self._granularity


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """The tensors with storages in a value: in containers, and inside wrapper tensors."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if is_a(one, torch.Tensor):
            parts = [] if is_fake(one) else _parts(one)
            if parts:
                waiting += parts
            else:
                yield one
        else:
            waiting += contents(one)


def _parts(tensor: torch.Tensor) -> list[object]:
    if tensors.wraps_tensors(type(tensor)):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        return [getattr(tensor, name) for name in names]
    with tensors.quiet():
        return [part for _, part in tensors.parts(tensor)]
