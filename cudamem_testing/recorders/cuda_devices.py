"""The recorders of CUDA cards, and what these share. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from types import CodeType
from typing import TYPE_CHECKING

from cudamem_testing.recorders.build import RecorderUnavailable
from cudamem_testing.recorders.card_recorder import CardLibrary, HostWatch
from cudamem_testing.recorders.cuda import CudaRecorder, CudaStatistics
from cudamem_testing.recorders.history import CudaHistory
from cudamem_testing.recorders.native import NativeRecorder

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device


class CudaDevices:
    """Opened with the first card; ``leaving`` closes what is shared.

    ``harness`` is the code at which stacks end; ``None``: nothing is recorded.
    """

    def __init__(
        self, backend: str, harness: Sequence[CodeType] | None, say: Callable[[str], None], leaving: ExitStack
    ) -> None:
        self._backend = backend
        self._statistics = CudaStatistics()
        leaving.callback(self._statistics.close)
        self._history: CudaHistory | None = None
        self._led = False
        self._library: CardLibrary | None = None
        if backend != "native":
            return
        if harness is not None:
            with suppress(RecorderUnavailable):  # the CPU's library also reads the counters of cards
                NativeRecorder.load(say)
            self._library = CardLibrary.load(say)
        stacks = None if self._library is None or harness is None else self._library.stacks(harness)
        self._history = CudaHistory(harness is not None, stacks)
        leaving.callback(self._history.close)

    def recorder(self, device: Device) -> CudaRecorder:
        """The recorder of a card; that of the first one restarts the history of all."""
        leads, self._led = not self._led, True
        return CudaRecorder(device, self._statistics, self._backend, self._history, leads=leads)

    def host_watch(self) -> HostWatch | None:
        """What watches pinned host memory; ``None`` without the native library."""
        return None if self._library is None else self._library.host_watch()
