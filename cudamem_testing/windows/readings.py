"""What can be read of a window that is open or over: its numbers on each device. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudamem_testing.model.devices import Device
from cudamem_testing.show.notebook import InNotebook
from cudamem_testing.show.usage import hide_wrong_arguments

if TYPE_CHECKING:
    from cudamem_testing.model.windows import Window

__tracebackhide__ = hide_wrong_arguments


class Readings(InNotebook):
    """The numbers of a window; those without a device are of the first measured one."""

    _name: str

    @property
    def windows(self) -> tuple[Window, ...]:
        """One window per measured device."""
        raise NotImplementedError

    def __getitem__(self, device: object) -> Window:
        wanted = Device.parse(device)
        for window in self.windows:
            if wanted.covers(window.device):
                return window
        measured = ", ".join(str(window.device) for window in self.windows) or "nothing"
        raise KeyError(f"{wanted} is not measured (measured: {measured})")

    @property
    def _first(self) -> Window:
        windows = self.windows
        if not windows:
            raise RuntimeError(f"window {self._name!r} measured no device")
        return windows[0]

    @property
    def start(self) -> int | None:
        """Allocated bytes at the start."""
        return self._first.start

    @property
    def peak(self) -> int | None:
        """The highest number of allocated bytes."""
        return self._first.peak

    @property
    def end(self) -> int | None:
        """Allocated bytes at the end, or now."""
        return self._first.end

    @property
    def peak_growth(self) -> int | None:
        """Peak above start in bytes."""
        return self._first.peak_growth

    @property
    def reserved_growth(self) -> int | None:
        """Peak of reserved bytes above their start."""
        return self._first.reserved_growth

    @property
    def retained(self) -> int | None:
        """End minus start in bytes; negative when memory from before was freed."""
        return self._first.retained

    @property
    def allocations(self) -> int | None:
        """Number of allocations."""
        return self._first.allocations

    def __str__(self) -> str:
        used = [one for one in self.windows if not one.device.pseudo or one.peak]
        return "\n".join(map(str, used))
