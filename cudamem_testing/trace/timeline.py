"""Timeline: the memory in use at every moment, in bytes by category.

The timeline has the allocator's events and the writes of the data flow, which may change a category, in order of time.
There are four kinds of changes:

* ``PREEXISTING``: memory existed when the recording began. Time is -1.
* ``CREATE``: it is allocated.
* ``INCREMENT_VERSION``: its contents change, and perhaps its category. Nothing is allocated or freed.
* ``DESTROY``: it is freed.

A profile shows earlier memory only where the program touches its tensors. A recorder has all of it, and what the
profiler misses: frees of older blocks on the CPU, and the memory of other threads (:mod:`.measured`).

The timeline never contradicts itself, even if the profile does: what is freed existed, with the same size. An address
that is allocated twice was freed in between, without an event; it counts as freed when it is allocated again.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.devices import Device
from cudamem_testing.show.notebook import InNotebook
from cudamem_testing.show.plots.area import draw
from cudamem_testing.show.plots.style import save
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.trace.categories import BY_BIT, Categories
from cudamem_testing.trace.changes import BEFORE, Action, MemoryChange
from cudamem_testing.trace.contents import MOST_VERSIONS
from cudamem_testing.trace.measured import Measured, Move, merge
from cudamem_testing.trace.records import Allocation, Storage
from cudamem_testing.trace.series import Series, series

__tracebackhide__ = hide_wrong_arguments


@dataclass(frozen=True, slots=True, eq=False)
class Timeline(InNotebook):
    """Every change, in order of time."""

    categories: Categories = field(repr=False)
    changes: tuple[MemoryChange, ...]
    measured: tuple[Measured, ...] = ()
    notes: tuple[str, ...] = ()
    """What cannot be known."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices with changes, in order of first appearance."""
        return tuple(dict.fromkeys(change.device for change in self.changes))

    @property
    def start(self) -> int:
        """When the recording shows its first change or region, in nanoseconds on the profiler's clock."""
        first = next((change.time for change in self.changes if change.time >= 0), 0)
        return min([first, *(region.start for region in self.categories.flow.trace.regions)])

    def maximum(self, device: str) -> tuple[int, int]:
        """The index of the first change after which a device has most memory in use, and how many bytes."""
        total = highest = 0
        found = -1
        for place, (_, action, here, nbytes, *_) in enumerate(self.changes):
            if here == device and action is not Action.INCREMENT_VERSION:
                total += -nbytes if action is Action.DESTROY else nbytes
                if total > highest or found < 0:
                    highest, found = total, place
        return found, highest

    def choose(self, device: str | None = None) -> str:
        """The selected device; by default the accelerator with the highest peak, else the CPU.

        Raises:
            ValueError: when nothing happened on the device.
        """
        found = [name for name in self.devices if device is None or Device.parse(device).covers(Device.parse(name))]
        if not found:
            there = ", ".join(self.devices) or "none"
            raise ValueError(f"no memory of {device or 'any device'} is in the trace (devices: {there})")
        if len(found) == 1:
            return found[0]
        return max(found, key=lambda name: (name != "cpu", self.maximum(name)[1]))

    def series(self, device: str | None = None) -> Series:
        """Bytes by category on a device after every change, as columns.

        Raises:
            ValueError: when nothing happened on the device.
        """
        return self._series(self.choose(device))

    def touched(self) -> Timeline:
        """The same without memory that existed before and in which no operator of the recording saw a tensor.

        Much of it is what other tests and their fixtures keep, so it depends on which of them ran.
        """
        older: set[tuple[str, int]] = set()
        kept = []
        for change in self.changes:
            place = change.device, change.pointer
            if change.storage is None and change.action is Action.PREEXISTING:
                older.add(place)
            elif place in older and change.action is Action.DESTROY and change.storage is None:
                older.discard(place)
            else:
                kept.append(change)
        return replace(self, changes=tuple(kept))

    def to_dict(self, most: int = 2000) -> dict[str, Any]:
        """Bytes by category over time on every device, at most about so many samples each, as plain JSON types."""
        return {"devices": [self._series(name).to_dict(most) for name in self.devices], "notes": list(self.notes)}

    def _series(self, device: str) -> Series:
        return series(self.changes, self.categories.flow.trace, self.start, device)

    def text(self, **options: Any) -> str:
        """A coarse table; options as in ``render_timeline``."""
        from .timeline_text import render_timeline

        return render_timeline(self, **options)

    def plot(self, path: str | Path, device: str | None = None, title: str = "") -> Path:
        """Draw bytes by category over time into a PNG or SVG file.

        Raises:
            ModuleNotFoundError: matplotlib is not installed (extra ``plot``).
            ValueError: for another ending, or a device on which nothing happened.
        """
        from .picture import picture

        return save(draw(picture(self.series(device), title)), path)

    def __str__(self) -> str:
        return self.text()


def timeline(categories: Categories, measured: Iterable[Measured] = ()) -> Timeline:
    """The timeline of a trace.

    Args:
        categories: of its data flow.
        measured: what a recorder saw, by device; without it, earlier memory that was never touched is unknown.
    """
    measured = tuple(measured)
    with CollectorPaused():
        changes = _Ledger(categories, measured).changes()
    notes = tuple(f"{one.device}: {note}" for one in measured for note in one.notes)
    return Timeline(categories, tuple(changes), measured, categories.notes + notes)


class _Ledger:
    """The live storages at each address, while the moves are replayed."""

    def __init__(self, categories: Categories, measured: tuple[Measured, ...]) -> None:
        self._categories = categories
        self._trace = categories.flow.trace
        self._measured = {one.device: one for one in measured}
        self._changes: list[MemoryChange] = []
        self._last: dict[Storage, int] = {}
        self._open: dict[tuple[str, int], tuple[Storage | None, int]] = {}
        self._places: set[tuple[str, int]] = set()

    def changes(self) -> list[MemoryChange]:
        """All changes in order."""
        writes = self._writes()
        moves = self._moves()
        self._preexisting(moves)
        self._follow(moves)
        self._changes += writes
        self._changes.sort(key=itemgetter(0))
        return self._changes

    def _moves(self) -> list[Move]:
        """What allocators gave out and took back, in order of time."""
        moves: list[Move] = []
        record = tuple.__new__
        for index, event in enumerate(self._trace.events):
            if type(event) is Allocation:
                start, _, _, storage, pointer, device, nbytes, _, _ = event
                moves.append(record(Move, (start, device, pointer, nbytes, storage, index)))
        moves.sort(key=itemgetter(0))
        for device, measured in self._measured.items():
            here: list[Move] = []
            others: list[Move] = []
            for move in moves:
                (here if move.device == device else others).append(move)
            moves = sorted(others + merge(measured, here), key=itemgetter(0))
        return moves

    def _writes(self) -> list[MemoryChange]:
        """The changes of contents; on the way, the last version of every storage is noted."""
        found: list[MemoryChange] = []
        last, record = self._last, tuple.__new__
        numbers, bits = self._categories.contents.numbers, self._categories.bits
        increment = Action.INCREMENT_VERSION
        for node in self._categories.flow.nodes:
            for storage, before, after in node.uses:
                if before is not None and after is not None and after != before:
                    last[storage] = after
                    category = BY_BIT[bits[numbers[storage.index * MOST_VERSIONS + after]]]
                    fields = (node.start, increment, storage.device, storage.nbytes, storage, before, category)
                    found.append(record(MemoryChange, (*fields, node.event, storage.pointer)))
        return found

    def _preexisting(self, moves: list[Move]) -> None:
        """What existed before: storages without an allocation event, and blocks that a recorder knew."""
        created = {move.storage for move in moves if move.nbytes > 0}
        contents = self._categories.contents
        for storage in self._trace.storages:
            known = (
                storage.index * MOST_VERSIONS in contents.numbers
                or contents.tensor_of[storage.index] in self._categories.whole
            )
            place = (storage.device, storage.pointer)
            if known and storage not in created:
                measured = self._measured.get(storage.device)
                nbytes = storage.nbytes if measured is None else measured.live.get(storage.pointer, storage.nbytes)
                if place in self._open:
                    insort(moves, Move(self._first_use(storage), *place, nbytes, storage, -1), key=itemgetter(0))
                else:
                    self._enter(Action.PREEXISTING, BEFORE, place, nbytes, storage, -1)
        for device, measured in self._measured.items():
            for pointer, nbytes in measured.live.items():
                if (device, pointer) not in self._open:
                    self._enter(Action.PREEXISTING, BEFORE, (device, pointer), nbytes, None, -1)

    def _first_use(self, storage: Storage) -> int:
        """The time of a storage that was given out without an event, at an address where another one had been."""
        nodes = self._categories.flow.nodes
        return next((node.start for node in nodes for use in node.uses if use.storage is storage), BEFORE)

    def _follow(self, moves: list[Move]) -> None:
        open_ = self._open
        for time, device, pointer, nbytes, storage, event in moves:
            place = (device, pointer)
            if nbytes > 0:
                if place in open_:
                    self._leave(time, place, -1)
                self._enter(Action.CREATE, time, place, nbytes, storage, event)
            elif place in open_:
                self._leave(time, place, event)
            elif storage is None:
                older = place not in self._places
                self._enter(
                    *((Action.PREEXISTING, BEFORE) if older else (Action.CREATE, time)), place, -nbytes, None, -1
                )
                self._leave(time, place, event)

    def _enter(
        self, action: Action, time: int, place: tuple[str, int], nbytes: int, storage: Storage | None, event: int
    ) -> None:
        self._open[place] = (storage, nbytes)
        self._places.add(place)
        category = None if storage is None else self._categories.of(storage, 0)
        self._changes.append(
            tuple.__new__(MemoryChange, (time, action, place[0], nbytes, storage, 0, category, event, place[1]))
        )

    def _leave(self, time: int, place: tuple[str, int], event: int) -> None:
        storage, nbytes = self._open.pop(place)
        version = 0 if storage is None else self._last.get(storage, 0)
        category = None if storage is None else self._categories.of(storage, version)
        self._changes.append(
            tuple.__new__(
                MemoryChange, (time, Action.DESTROY, place[0], nbytes, storage, version, category, event, place[1])
            )
        )
