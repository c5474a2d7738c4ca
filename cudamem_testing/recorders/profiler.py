"""Measures the CPU without a compiler, through torch's profiler.

The profiler runs only around tests that have a limit or a window. It sees the calling thread and autograd's, it does
not know blocks that are older than itself, and a thread has one profiler: if a test starts its own, ours stops first
and the window says so. It uses torch's older profiler, because the newer one writes to stderr when it starts.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Any, NoReturn

from cudamem_testing.guards import Function, Patches
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.base import WithoutEvidence, WithoutOwners, WithoutWorkspaces
from cudamem_testing.torch_api.profiler import memory_profiler_config, profiler_modules

PARTLY = "measured by torch's profiler: other threads and older blocks are not seen"
TAKEN = "measured until another profiler started, and unknown from there on"


class ProfilerRecorder(WithoutOwners, WithoutEvidence, WithoutWorkspaces):
    """Allocations of CPU memory since the recorder woke up, in bytes; earlier ones count as zero."""

    def __init__(self) -> None:
        self.device = Device("cpu")
        self._patches = Patches()
        self._enable: Function | None = None
        self._disable: Function | None = None
        self._running = False
        self._awake = False
        self._taken = False
        self._allocated = 0
        self._allocations = 0
        modules = profiler_modules()
        if modules is not None:
            newer, older = modules
            self._disable = older._disable_profiler_legacy
            self._enable = older._enable_profiler_legacy
            self._patches.replace(older, "_enable_profiler_legacy", self._giving_way)
            self._patches.replace(newer, "_enable_profiler", self._giving_way)
            self._patches.replace(newer, "_prepare_profiler", self._giving_way)

    @property
    def incomplete(self) -> str | None:
        """Never complete."""
        return TAKEN if self._taken else PARTLY

    def wake(self, *, limited: bool) -> None:
        """Measure the coming test if it has a limit or a window."""
        self._read()
        self._awake = limited and self._enable is not None
        self._taken = False
        self._allocated = self._allocations = 0
        self._start()

    def sleep(self) -> None:
        """Stop measuring."""
        self._read()
        self._awake = False

    def finish(self) -> None:
        """CPU work is finished when the call returns."""

    def read_and_reset_peaks(self) -> Counters | None:
        """Stop, read and continue; ``None`` while asleep. Unknown once another profiler has taken over."""
        if not self._awake:
            return None
        if self._taken:
            return Counters()
        peak = self._read()
        self._start()
        return Counters(
            allocated=self._allocated,
            allocated_peak=peak,
            requested=self._allocated,
            requested_peak=peak,
            allocations=self._allocations,
        )

    def limit(self, size: int) -> NoReturn:
        """Not possible here.

        Raises:
            RuntimeError: always.
        """
        __tracebackhide__ = True
        raise RuntimeError("a hard limit on cpu needs the CPU recorder: install a C++ compiler")

    def close(self) -> None:
        """Stop, and restore torch's functions."""
        self._read()
        self._awake = False
        self._patches.restore()

    def _start(self) -> None:
        if self._awake and not self._taken and self._enable is not None:
            try:
                self._enable(memory_profiler_config())
            except RuntimeError:  # another profiler runs around the test
                self._taken = True
            else:
                self._running = True

    def _read(self) -> int:
        """Stop and count what was recorded; the peak since the last read."""
        peak = self._allocated
        if not self._running or self._disable is None:
            return peak
        self._running = False
        for thread in self._disable():
            for event in thread:
                change = event.cpu_memory_usage()
                self._allocated += change
                self._allocations += change > 0
                peak = max(peak, self._allocated)
        return peak

    def _giving_way(self, original: Function) -> Function:
        def start(*args: Any, **kwargs: Any) -> Any:
            self._read()
            self._taken = self._taken or self._awake
            return original(*args, **kwargs)

        return start
