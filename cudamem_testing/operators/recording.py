"""Records the memory of a piece of code, operator by operator; works without pytest.

::

    with OperatorMemory(model) as memory:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
    print(memory.by_module(depth=2))

Nothing in torch or another library is replaced: there is a dispatch mode, two hooks on the model and two on
optimizers, all of which are removed afterwards. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from threading import Lock, get_ident
from types import CodeType

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cudamem_testing.model.devices import Device
from cudamem_testing.operators.mode import OperatorMode, StorageMode, Taken
from cudamem_testing.operators.places import OperatorPlaces
from cudamem_testing.operators.rows import BETWEEN, Mark, OperatorCall, Phase, levels_of, markers_of, overlap, rows_of
from cudamem_testing.operators.storages import StorageJournal
from cudamem_testing.operators.table import OperatorTable, Reports
from cudamem_testing.recorders.journal import Journal, open_journal
from cudamem_testing.recorders.native_journal import Note
from cudamem_testing.safe_access import is_a, type_name
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.torch_api import cuda_initialized
from cudamem_testing.torch_api.dispatch import operator_name
from cudamem_testing.torch_api.running import fake_mode_is_on, is_fake, node_function

__tracebackhide__ = hide_wrong_arguments

START, BOUNDARY, STEP = "fw_start", "fw_bw_boundary", "optimizer_step"
PARALLEL = "operators ran on several threads at once: overlapping changes count for the operator that started last"
ELSEWHERE = "the model ran on one of the program's own threads, whose operators are not seen"
REFUSED = "the model does not accept hooks: no markers where its forward begins and ends"


class OperatorMemory(Reports):
    """One recording: a context manager that afterwards gives tables, texts and plots.

    Args:
        model: its modules are named by ``named_modules()``, and its devices are measured.
        device: measure this device, or these devices, instead: ``"cpu"``, ``"cuda:1"``, ``["cuda:0", "cuda:1"]``.
        say: called with one line when something takes seconds (compiling the CPU recorder).

    With fake tensors, and if an allocator cannot be read, the bytes are those of
    the storages that operators return, and inner peaks are unknown.

    Raises:
        ValueError: for an unknown device, or an empty list of devices.
        TypeError: if the model is not a module.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        *,
        device: object = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        if model is not None and not is_a(model, torch.nn.Module):
            raise TypeError(f"the model is a {type_name(model)}, not a torch.nn.Module")
        self._model = model
        self._devices = _devices(model, device)
        self._say = say
        self._stack: ExitStack | None = None
        self._journals: tuple[Journal, ...] = ()
        self._note: Callable[[], int] = _no_note
        self._marks: list[Mark] = []
        self._regions: list[str] = []
        self._steps = 0
        self._used = False
        self._taken: list[Taken] = []
        self._noted: tuple[tuple[Device, list[Note]], ...] = ()
        self._remarks: list[str] = []
        self._table: OperatorTable | None = None
        self.is_read = True
        """Whether its table was read, or there is none."""

    def __enter__(self) -> OperatorMemory:
        """Start recording.

        Raises:
            RuntimeError: if it was used before.
        """
        if self._used:
            raise RuntimeError("an OperatorMemory records only once: create a new one")
        self._used = True
        self._begin(sys._getframe(1).f_code)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Stop recording, also after an exception."""
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()
            self.is_read = kind is not None

    @property
    def entered(self) -> bool:
        """Whether recording has started."""
        return self._used

    @property
    def left(self) -> bool:
        """Whether it has recorded."""
        return self._used and self._stack is None

    @property
    def table(self) -> OperatorTable:
        """The recorded table; created on first access.

        Raises:
            RuntimeError: before the end of the recording.
        """
        self.is_read = True
        if self._table is None:
            if not self._noted:
                raise RuntimeError("nothing is recorded yet: leave the with block of OperatorMemory first")
            self._table = self._tabulated()
            self._taken, self._marks, self._noted = [], [], ()
        return self._table

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Name a region, which rows and tables contain. Regions nest: ``decode/attention``.

        Raises:
            RuntimeError: outside the recording.
        """
        self._check_open("region()")
        self._regions.append(name)
        self._mark(region="/".join(self._regions))
        try:
            yield
        finally:
            self._regions.pop()
            if self._stack is not None:
                self._mark(region="/".join(self._regions))

    def step(self) -> None:
        """Begin the next step; the first is number 0.

        Raises:
            RuntimeError: outside the recording.
        """
        self._check_open("step()")
        self._steps += 1
        self._mark(f"step {self._steps}", step=self._steps)

    def _begin(self, base: CodeType) -> None:
        """Set everything up; undo it if something fails."""
        places = OperatorPlaces(self._model, base)
        with ExitStack() as stack:
            self._journals = tuple(self._open(device, stack) for device in self._devices)
            self._note = _note_of(self._journals)
            see = [journal.see for journal in self._journals if isinstance(journal, StorageJournal)]
            stack.callback(self._end, places)
            self._hook(stack)
            mode = StorageMode(self._note, places.of, see) if see else OperatorMode(self._note, places.of)
            self._taken = mode.taken
            self._note()
            stack.enter_context(mode)
            self._stack = stack.pop_all()

    def _end(self, places: OperatorPlaces) -> None:
        """Take the last note, keep the notes, and release everything else."""
        self._note()
        self._noted = tuple((journal.device, journal.notes()) for journal in self._journals)
        remarks = chain(places.remarks, *(journal.remarks for journal in self._journals), self._remarks)
        self._remarks = [*dict.fromkeys(remarks)]
        self._model, self._journals, self._note = None, (), _no_note

    def _open(self, device: Device, stack: ExitStack) -> Journal:
        tensors = _tensors_of(self._model)
        fake = fake_mode_is_on() or any(map(is_fake, tensors))
        found = "tensors are fake" if fake else open_journal(device, self._say)
        if isinstance(found, str):
            storages = StorageJournal(device, found)
            storages.expect(tensors)
            found = storages
        stack.callback(found.close)
        return found

    def _hook(self, stack: ExitStack) -> None:
        """Mark where the model's forward begins and ends, and optimizers' steps."""
        thread, running_node = get_ident(), node_function()

        def seen() -> bool:  # autograd's threads are, the program's own are not
            return get_ident() == thread or running_node() is not None

        def begin(module: object, args: object) -> None:
            if seen():
                self._mark(START, phase=Phase.FORWARD)
            else:
                self._remarks.append(ELSEWHERE)

        def end(module: object, args: object, output: object) -> None:
            if seen():
                self._mark(BOUNDARY, phase=Phase.OTHER)

        if self._model is not None:
            try:
                stack.callback(self._model.register_forward_pre_hook(begin, prepend=True).remove)
                stack.callback(self._model.register_forward_hook(end, always_call=True).remove)
            except Exception:  # scripted modules do, and wrappers of modules may
                self._remarks.append(REFUSED)
        stack.callback(register_optimizer_step_pre_hook(lambda *_: self._mark(STEP, phase=Phase.OPTIMIZER)).remove)
        stack.callback(register_optimizer_step_post_hook(lambda *_: self._mark(phase=Phase.OTHER)).remove)

    def _mark(
        self, name: str = "", *, phase: Phase | None = None, region: str | None = None, step: int | None = None
    ) -> None:
        self._marks.append(Mark(self._note(), name, phase, region, step))

    def _check_open(self, what: str) -> None:
        if self._stack is None:
            raise RuntimeError(f"{what} works only inside the recording: call it in the with block of OperatorMemory")

    def _tabulated(self) -> OperatorTable:
        taken = sorted(self._taken, key=lambda one: one[0])
        calls = [OperatorCall(before, after, operator_name(func), *place) for before, after, func, place in taken]
        by_device = [rows_of(str(device), notes, calls, self._marks) for device, notes in self._noted]
        rows = by_device[0]
        if len(by_device) > 1:
            others = (row for other in by_device[1:] for row in other if row.allocated or row.freed)
            rows = sorted([*rows, *others], key=lambda row: (row.call, row.operator != BETWEEN))
        return OperatorTable(
            rows=tuple(rows),
            levels=tuple(levels_of(str(device), notes) for device, notes in self._noted),
            markers=markers_of(calls, self._marks),
            notes=(*self._remarks, PARALLEL) if overlap(calls) else tuple(self._remarks),
        )


def _no_note() -> int:
    return 0


def _note_of(journals: Sequence[Journal]) -> Callable[[], int]:
    """A function that takes a note in every journal; for one journal that journal's own."""
    if len(journals) == 1:
        return journals[0].note
    lock = Lock()

    def note() -> int:
        with lock:  # the journals must agree on the order when several threads of autograd run
            first, *_ = [journal.note() for journal in journals]
            return first

    return note


def _tensors_of(model: torch.nn.Module | None) -> list[torch.Tensor]:
    """Parameters, their gradients, and buffers."""
    if model is None:
        return []
    parameters = [*model.parameters()]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [*parameters, *gradients, *model.buffers()]


def _devices(model: torch.nn.Module | None, device: object) -> tuple[Device, ...]:
    """The devices to measure: the requested ones, those of the model, or the current one."""
    if isinstance(device, list | tuple):
        if not device:
            raise ValueError("no device is given: write device='cpu', or leave it out for the model's devices")
        return tuple(_whole(Device.parse(one)) for one in device)
    if device is not None:
        return (_whole(Device.parse(device)),)
    found = dict.fromkeys(_whole(Device.of(tensor.device)) for tensor in _tensors_of(model))
    if found:
        return (*found,)
    return (_whole(Device("cuda")) if cuda_initialized() else Device("cpu"),)


def _whole(device: Device) -> Device:
    """A card without a number is the current one."""
    if device.is_card and device.index is None:
        return Device("cuda", torch.cuda.current_device() if cuda_initialized() else 0)
    return device
