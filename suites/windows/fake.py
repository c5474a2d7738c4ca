"""A recorder with given numbers: one set of levels and peaks, as every recorder has."""

from __future__ import annotations

from collections.abc import Callable

from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device


class FakeRecorder:
    """Counts the calls of :meth:`allocate`; does not know ``unknown`` counters."""

    def __init__(self, device: str = "cpu", unknown: tuple[str, ...] = (), notes: tuple[str, ...] = ()) -> None:
        self.device = Device.parse(device)
        self.incomplete: str | None = None
        self.source: object | None = None
        self.asleep = False
        self.limits: list[int] = []
        self.history: list[str] = []
        self.closed = 0
        self._unknown = dict.fromkeys(unknown)
        self._notes = notes
        self._level = self._peak = self._count = self._blocks = 0

    def wake(self, *, limited: bool) -> None:
        self.history.append(f"wake limited={limited}")

    def sleep(self) -> None:
        self.history.append("sleep")

    def capture(self) -> None:
        """Nothing is kept."""

    def allocate(self, *sizes: int) -> None:
        """Take blocks one after the other; a negative size gives one back."""
        for size in sizes:
            self._level += size
            self._peak = max(self._peak, self._level)
            self._count += size > 0
            self._blocks += 1 if size > 0 else -1

    def read_and_reset_peaks(self) -> Counters | None:
        if self.asleep:
            return None
        level, peak, self._peak = self._level, self._peak, self._level
        counters = Counters(
            *(level, peak) * 4, allocations=self._count, segments=0, retries=0, blocks=self._blocks, notes=self._notes
        )
        return counters._replace(**self._unknown)

    def limit(self, size: int) -> Callable[[], None]:
        self.history.append(f"limit {size}")
        self.limits.append(size)
        return lambda: self.limits.remove(size)

    def close(self) -> None:
        self.closed += 1
