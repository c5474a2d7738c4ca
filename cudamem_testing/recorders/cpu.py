"""CPU: the counters of the project's own recorder, which sees every thread. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable

from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.native import NativeRecorder

NO_CACHE = "the CPU allocator keeps no cache: nothing is reserved"


class CpuRecorder:
    """Memory that CPU tensors take from torch's allocator, to the byte.

    Not seen are tensors over foreign memory (``torch.from_numpy``, shared memory, memory-mapped files).

    Raises:
        RecorderUnavailable: when the recorder cannot be built or put in place here.
    """

    incomplete: str | None = None

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self.device = Device("cpu")
        self._native = NativeRecorder.load(say)
        self._was_installed = self._native.is_installed()
        self._native.install()
        self._slot = self._native.slot()
        self._limits: list[int | None] = []

    def wake(self, *, limited: bool) -> None:
        """Always awake."""

    def boundary(self) -> Counters:
        """One call; the peaks of other observers in this process stay theirs."""
        reading = self._slot.read()
        return Counters(
            allocated=reading.allocated,
            allocated_peak=reading.peak,
            requested=reading.allocated,
            requested_peak=reading.peak,
            allocations=reading.allocations,
            retries=0,
        )

    def set_limit(self, size: int | None) -> None:
        """A limit to the byte, for allocations on any thread."""
        if size is None:
            self._native.set_limit(self._limits.pop())
        else:
            self._limits.append(self._native.set_limit(self._slot.peek().allocated + size))

    def close(self) -> None:
        """Take the recorder out, unless somebody else put it in."""
        self._slot.release()
        if not self._was_installed:
            self._native.uninstall()
