"""Measured spans. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from operator import itemgetter
from typing import NamedTuple

from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.model.sizes import format_size

#: Bytes of one segment for small requests and one for large ones.
UNAVOIDABLE = 22 * 2**20


class Window(NamedTuple):
    """One span on one device, in bytes and counts (a tuple: several are created for every test).

    ``start``, ``peak`` and ``end`` are allocated bytes. ``retained`` is ``end - start``, and negative if memory from
    before was freed inside. Memory that a wider fixture allocated or freed inside belongs to the fixture: ``start``
    (and similar values) are adjusted by it, and a note says so. ``complete`` is false if something may have been
    missed. ``blocks`` is the growth of the number of live blocks. ``opened`` and ``closed`` are the readings at its
    ends: they locate the window in a recording, are in no report, and are ignored when windows are compared.
    """

    name: str
    device: Device
    start: int | None = None
    peak: int | None = None
    end: int | None = None
    requested_start: int | None = None
    requested_peak: int | None = None
    reserved_start: int | None = None
    reserved_peak: int | None = None
    retained: int | None = None
    allocations: int | None = None
    segments: int | None = None
    retries: int | None = None
    blocks: int | None = None
    complete: bool = True
    notes: tuple[str, ...] = ()
    opened: Counters | None = None
    closed: Counters | None = None

    @property
    def peak_growth(self) -> int | None:
        """Peak above start, in bytes."""
        return None if self.peak is None or self.start is None else self.peak - self.start

    @property
    def requested_growth(self) -> int | None:
        """Peak of requested bytes above start."""
        if self.requested_peak is None or self.requested_start is None:
            return None
        return self.requested_peak - self.requested_start

    @property
    def reserved_growth(self) -> int | None:
        """Peak of reserved bytes above start."""
        if self.reserved_peak is None or self.reserved_start is None:
            return None
        return self.reserved_peak - self.reserved_start

    @property
    def fragmentation(self) -> int | None:
        """Reserved memory that the peak did not need, in hundredths of a percent of all that was reserved.

        It counts what the window had the driver add although unused memory would have been enough: the peak of
        reserved bytes, less what was reserved at the start or allocated at the peak, whichever is more. One partly
        filled segment for small requests and one for large ones cannot be avoided: up to 22 MiB are 0.
        docs/budgets.md says what this number cannot tell.
        """
        if self.reserved_peak is None or self.reserved_start is None or self.peak is None:
            return None
        unneeded = self.reserved_peak - max(self.reserved_start, self.peak)
        return 0 if unneeded <= UNAVOIDABLE else unneeded * 10_000 // self.reserved_peak

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Window) and self[:_COMPARED] == other[:_COMPARED]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:_COMPARED])

    def __str__(self) -> str:
        sizes = (("start", self.start), ("peak", self.peak), ("end", self.end))
        known = ", ".join(f"{name} {'?' if size is None else format_size(size)}" for name, size in sizes)
        incomplete = "" if self.complete else ", incomplete"
        return f"{self.name} on {self.device}: {known}{incomplete}"


_COMPARED = Window._fields.index("opened")
_compared: Callable[[Window], tuple[object, ...]] = itemgetter(slice(_COMPARED))
MOST_SHARED = 1000


def growths(windows: Iterable[Window]) -> list[tuple[str, int]]:
    """Names and bytes of the growth of windows, as JUnit files show them: ``cudamem.cpu.peak``."""
    found = []
    for window in windows:
        peak, reserved = _growth_names(window.device)
        if (growth := window.peak_growth) is not None:
            found.append((peak, growth))
        if window.reserved_peak is not None and (growth := window.reserved_growth) is not None:
            found.append((reserved, growth))
    return found


@cache
def _growth_names(device: Device) -> tuple[str, str]:
    return f"cudamem.{device}.peak", f"cudamem.{device}.reserved"


class SharedWindows:
    """Windows kept until the run ends: without the readings at their ends, and equal ones are one object.

    Each test has several. Most equal those of other tests, and every kept object makes each full
    collection of garbage longer: so does a tuple of windows, and equal ones are one object as well.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Window] = {}
        self._groups: dict[tuple[tuple[object, ...], ...], tuple[Window, ...]] = {}

    def of(self, windows: Iterable[Window]) -> tuple[Window, ...]:
        """The same windows, shared."""
        keys = tuple(map(_compared, windows))
        group = self._groups.get(keys)
        if group is None:
            if len(self._groups) >= MOST_SHARED // 10:
                self._groups.clear()
            group = self._groups[keys] = tuple(map(self._one, keys))
        return group

    def _one(self, key: tuple[object, ...]) -> Window:
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_SHARED:
                self._known.clear()
            found = self._known[key] = Window(*key)  # type: ignore[arg-type] # the fields that are compared
        return found
