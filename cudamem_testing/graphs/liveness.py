"""Tracks which tensors a graph reads, and which of them were freed since the capture.

A graph holds addresses, not tensors. During the capture each operator's arguments and results are recorded: a storage
that is read before any operator made it comes from outside, and must live as long as the graph is replayed. Storages
are held weakly; when one is freed, the stack of that moment is kept as text. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from cudamem_testing.graphs.sides import storage_reference
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.stacks import Stack
from cudamem_testing.objects.names import name_of
from cudamem_testing.torch_api.graphs import expired, storages_tell_their_death

#: Shown instead of the line that freed a tensor.
UNTOLD = "unknown: this version of torch does not report when memory is freed"
#: Shown instead of the line that read a tensor.
LEFT = "(left by the last call of the warm-up)"


@dataclass(frozen=True, slots=True)
class Read:
    """A storage that existed before the graph, which the graph reads or writes.

    ``address`` and ``size`` are its memory in bytes, ``tensor`` describes the first tensor on it, ``operator`` is the
    first operator that used it. ``created`` is the stack of its allocation if the allocator's history was on,
    ``died`` the stack that freed it.
    """

    address: int
    size: int
    tensor: str
    operator: str
    read_at: str = ""
    written: bool = False
    dead: bool = False
    created: Stack | None = None
    died: Stack | None = None

    def __str__(self) -> str:
        lines = [f"{self.tensor} ({format_size(self.size)}), read by {self.operator}"]
        lines.append(f"   created   {_told(self.created, 'unknown: the history of the allocator was off')}")
        lines.append(f"   captured  {self.read_at}")
        lines.append(f"   freed     {_told(self.died, 'unknown' if storages_tell_their_death() else UNTOLD)}")
        return "\n".join(lines)


class Reads:
    """Records the storages of a capture. ``here`` returns the running line, ``stack`` all frames."""

    def __init__(self, here: Callable[[], str], stack: Callable[[], Stack]) -> None:
        self._here, self._stack = here, stack
        self._outside: dict[StorageWeakRef, Read] = {}
        self._inside: set[StorageWeakRef] = set()
        self._watching: dict[StorageWeakRef, weakref.ref[Any]] = {}
        self._deaths: dict[StorageWeakRef, Stack] = {}

    def called(self, operator: str, inputs: Iterable[Tensor], written: Iterable[Tensor] = ()) -> None:
        """An operator is about to be called."""
        changed = {reference for tensor in written if (reference := storage_reference(tensor)) is not None}
        for tensor in inputs:
            reference = storage_reference(tensor)
            if reference is None or reference in self._inside:
                continue
            known = self._outside.get(reference)
            if known is None:
                storage = tensor.untyped_storage()
                known = Read(storage.data_ptr(), storage.nbytes(), name_of(tensor), operator, self._here())
                self._watching[reference] = weakref.ref(storage, self._died(reference))
            self._outside[reference] = replace(known, written=True) if reference in changed else known

    def returned(self, operator: str, outputs: Iterable[Tensor]) -> None:
        """An operator has returned."""
        for tensor in outputs:
            reference = storage_reference(tensor)
            if reference is not None and reference not in self._outside:
                self._inside.add(reference)

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Continue from a traced call to the capture: ``tensors`` are those that the function finds outside now.

        Freed tensors that the call read cannot be read again; those that it created and left are outside tensors now.
        """
        for gone in [reference for reference in self._outside if expired(reference)]:
            del self._outside[gone]
            self._deaths.pop(gone, None)
        for tensor in tensors:
            reference = storage_reference(tensor)
            if reference is not None and reference in self._inside:
                self._inside.discard(reference)
                self.called("the capture", [tensor])
                self._outside[reference] = replace(self._outside[reference], read_at=LEFT)

    def outside(self, reference: StorageWeakRef) -> bool:
        """Whether the graph uses an outside storage."""
        return reference in self._outside

    def reads(self) -> tuple[Read, ...]:
        """Every outside storage in its current state, in the order of first use."""
        return tuple(
            replace(read, dead=expired(reference), died=self._deaths.get(reference))
            for reference, read in self._outside.items()
        )

    def some_died(self) -> bool:
        """Whether a storage was freed; costs nothing while all are live, if torch reports frees."""
        return bool(self._deaths) or (not storages_tell_their_death() and any(map(expired, self._outside)))

    def written(self) -> list[StorageWeakRef]:
        """Live outside storages that the graph writes."""
        found = [reference for reference, read in self._outside.items() if read.written]
        return [reference for reference in found if not expired(reference)]

    def created(self, stacks: dict[int, Stack]) -> None:
        """Add the stacks that allocated the storages, by address."""
        for reference, read in self._outside.items():
            self._outside[reference] = replace(read, created=stacks.get(read.address))

    def _died(self, reference: StorageWeakRef) -> Callable[[object], None]:
        deaths, stack = self._deaths, self._stack

        def note(_: object) -> None:
            deaths[reference] = stack()

        return note


def dead(reads: Sequence[Read], of_pool: Callable[[int], bool] = lambda address: False) -> tuple[Read, ...]:
    """The reads whose memory was freed, except memory in the graph's own pool."""
    return tuple(read for read in reads if read.dead and not of_pool(read.address))


def _told(stack: Stack | None, unknown: str) -> str:
    return unknown if stack is None or not stack.frames else stack.line
