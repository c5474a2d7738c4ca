"""Chooses the recorders for the selected devices, and opens and closes them. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import CodeType
from typing import TYPE_CHECKING

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device, select
from cudamem_testing.model.records import Environment
from cudamem_testing.recorders import cards
from cudamem_testing.recorders.build import RecorderUnavailable

if TYPE_CHECKING:
    from cudamem_testing.recorders.base import Recorder
    from cudamem_testing.recorders.cuda_devices import CudaDevices

Say = Callable[[str], None]


def missing(selection: str | Device) -> str | None:
    """Why nothing of a selection can be measured on this machine; ``None`` if something can. Needs torch."""
    kind, number = cards_here()
    if select(selection, kind, number):
        return None
    there = ", ".join(f"{kind}:{index}" for index in range(number)) or "no CUDA device"
    return f"{selection} is not on this machine (torch finds {there})"


def absent_cards(selection: str | Device) -> list[str]:
    """That the selected cards are not on this machine; empty if they are, or no cards are selected. Loads torch."""
    if isinstance(selection, str) or not selection.has_segments:
        return []
    absent = missing(selection)
    return [] if absent is None else [f"--cudamem-device={selection}: {absent}; auto measures the available devices"]


def cards_here() -> tuple[str, int]:
    """The kind and the number of the cards of this machine: of CUDA, else of torch's accelerator. Needs torch."""
    number = torch_api.cuda_device_count()
    other = None if number else torch_api.other_accelerator()
    return ("cuda", number) if other is None else other


class Recorders:
    """The recorders of the selected devices; opened once torch is imported.

    With ``record`` they keep evidence: stacks, which end at the ``harness`` code objects, and events.
    """

    def __init__(self, selection: str | Device, *, record: bool = False, harness: Sequence[CodeType] = ()) -> None:
        self._selection = selection
        self._record = record
        self._harness = harness
        self._cards: CudaDevices | None = None
        self._open: tuple[Recorder, ...] = ()
        self._leaving = ExitStack()
        self.opened = False
        self.notes: list[str] = []
        self.environment = Environment(torch=torch_api.version())

    def open(self, say: Say = lambda line: None) -> tuple[Recorder, ...]:
        """Open a recorder for each selected device that this machine has; CUDA is not initialised.

        ``say`` is called with a line when something takes seconds. After an exception, also an interrupt, nothing is
        left installed.
        """
        try:
            self.opened = True
            self._open_selected(say)
        except BaseException:
            self.close()
            self.opened = False
            raise
        return self._open

    def close(self) -> None:
        """Restore the process to its earlier state; safe to call twice."""
        self._open = ()
        self._cards = None
        self._leaving.close()

    def _open_selected(self, say: Say) -> None:
        backend = torch_api.allocator_backend()
        devices = select(self._selection, *cards_here())
        if not devices:
            self.notes.append(f"{missing(self._selection)}: nothing is measured")
        self._leaving.callback(cards.close)
        opened = [self._recorder(device, backend, say) for device in devices]
        if self._cards is not None:
            from cudamem_testing.recorders import host

            if host.measurable():
                opened.append(host.HostRecorder(self._cards.host_watch()))
                self._leaving.callback(opened[-1].close)
        self._open = tuple(opened)
        names = tuple(f"{device} ({name})" if (name := cards.name(device)) else str(device) for device in devices)
        self.environment = Environment(names, torch_api.version(), _allocator(devices, backend))

    def _recorder(self, device: Device, backend: str, say: Say) -> Recorder:
        if device.kind == "cpu":
            return self._cpu(say)
        if device.is_card:
            if self._cards is None:
                from cudamem_testing.recorders.cuda_devices import CudaDevices

                self._cards = CudaDevices(backend, self._harness if self._record else None, say, self._leaving)
            return self._cards.recorder(device)
        from cudamem_testing.recorders.accelerator import AcceleratorRecorder

        recorder = AcceleratorRecorder(device)
        self._leaving.callback(recorder.close)
        return recorder

    def _cpu(self, say: Say) -> Recorder:
        from cudamem_testing.recorders.cpu import CpuRecorder

        try:
            recorder = CpuRecorder(say, record=self._record, harness=self._harness)
            self._leaving.callback(recorder.close)
            return recorder.start()
        except RecorderUnavailable as error:
            self.notes.append(f"{error}; on cpu only tests with a limit or a window are measured, and incompletely")
            from cudamem_testing.recorders.profiler import ProfilerRecorder

            instead = ProfilerRecorder()
            self._leaving.callback(instead.close)
            return instead


def _allocator(devices: Sequence[Device], backend: str) -> str | None:
    """The allocator of the measured devices: that of the cards if there are any."""
    kinds = {device.kind for device in devices}
    return backend if "cuda" in kinds else next(iter(kinds - {"cpu"}), "cpu") if kinds else None
