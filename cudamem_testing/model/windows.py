"""Measured spans. PYTEST_DONT_REWRITE"""

# Annotations are not postponed here: Python compiles the text of each field of a named tuple.
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
        peak, reserved = growth_names(window.device)
        if (growth := window.peak_growth) is not None:
            found.append((peak, growth))
        if window.reserved_peak is not None and (growth := window.reserved_growth) is not None:
            found.append((reserved, growth))
    return found


@cache
def growth_names(device: Device) -> tuple[str, str]:
    """The names of the growth of allocated and reserved bytes."""
    return f"cudamem.{device}.peak", f"cudamem.{device}.reserved"


class Known(dict[tuple[object, ...], Window]):
    """Windows by all their fields but the readings; one that is asked for is made."""

    def __missing__(self, fields: tuple[object, ...]) -> Window:
        if len(self) >= MOST_SHARED:
            self.clear()
        found = self[fields] = Window(*fields)  # type: ignore[arg-type] # the fields that are compared
        return found


#: The windows of a test's phases, and those of the whole.
OfTest = tuple[tuple[Window, ...], tuple[Window, ...]]


class SharedWindows:
    """Windows kept until the run ends: without the readings at their ends, and equal ones are one object.

    Each test has several. Most equal those of other tests, and every kept object makes each full
    collection of garbage longer: so does a tuple of windows, and equal ones are one object as well.
    """

    def __init__(self) -> None:
        self.known = Known()
        self.tests: dict[tuple[object, ...], OfTest] = {}
        """Windows of tests by what native code has read in them: see :meth:`add`."""
        self._groups: dict[tuple[int, ...], tuple[Window, ...]] = {}  # by the identity of what they hold

    def add(self, key: tuple[object, ...], found: OfTest) -> None:
        """Keep the windows of a test for others in which the same was read."""
        if len(self.tests) >= MOST_SHARED // 10:
            self.tests.clear()
        self.tests[key] = found

    def of(self, windows: Iterable[Window]) -> tuple[Window, ...]:
        """The same windows, shared."""
        windows = tuple(windows)  # that of a tuple is the tuple
        group = self._groups.get(tuple(map(id, windows)))
        if group is not None:
            return group
        group = tuple([self.known[_compared(window)] for window in windows])
        if len(self._groups) >= MOST_SHARED // 10:
            self._groups.clear()
        return self._groups.setdefault(tuple(map(id, group)), group)
