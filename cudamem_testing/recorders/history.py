"""Switches on CUDA's own memory history, and leaves it alone if the user's code uses it.

There is one per process: Python stacks of every allocation and a bounded ring of events for each card. It is restarted
for each test, so that a test has the whole ring to itself. If the user's code switches it on, it belongs to the user
until the test ends; if it was on before, it is not changed. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from cudamem_testing import torch_api
from cudamem_testing.guards import Function, Patches, replaced
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.capture import OFF, CudaCapture, Refusal

if TYPE_CHECKING:
    from cudamem_testing.recorders.card_recorder import CardStacks

MAX_ENTRIES = 100_000
USERS = "the test has its own memory history"


def snapshot() -> torch_api.Stats:
    """The allocator's segments, blocks and events on all cards; imports nothing."""
    with replaced(torch_api.lazy_without_compiler()):
        return torch_api.snapshot()


class CudaHistory:
    """The history of all cards of this process; ``record`` is whether it may be switched on at all.

    ``stacks`` reads the Python stacks while the history is ours, if available.
    """

    def __init__(self, record: bool = True, stacks: CardStacks | None = None) -> None:
        self._record = record
        self._stacks = stacks
        self._starter = torch_api.history_starter(MAX_ENTRIES)
        self._patches = Patches()
        self._ours = False
        self._users = torch_api.history_enabled()
        self._switching = False
        self._calls: list[Callable[[], Any]] = []  # what the active switch has called
        self._again: Callable[[], Any] | None = None  # the one call that restarts it
        self._cannot_use_cuda = torch_api.fork_check()
        self._wanted = self._observed = False
        self._waiting = False
        self._refusals: dict[int, Refusal] = {}
        self.bases: dict[int, int | None] = {}  # the level of each card when the current limit was set
        self._patches.replace(torch_api.bindings(), "_cuda_record_memory_history", self._noticing)

    @property
    def users(self) -> bool:
        """Whether the history belongs to the user's code now."""
        return self._users

    @property
    def ours(self) -> bool:
        """Whether it is on for the test, from its start."""
        return self._ours

    def start(self) -> None:
        """Restart it for a test, now or as soon as CUDA is initialised, unless the user's code uses it."""
        self._wanted = True
        self._refusals.clear()
        if self._again is not None and not self._users and not self._cannot_use_cuda():  # each test after the first
            self._again()
            self._ours = True
            if self._stacks is not None:
                self._stacks.start()
        elif not self._record:
            return
        elif torch_api.cuda_initialized():
            self._restart()
        elif not self._waiting:
            self._waiting = True
            torch_api.when_cuda_starts(self._first_start)

    def stop(self) -> None:
        """Stop it, if it is ours."""
        self._wanted = False
        if self._ours:
            self._switch(torch_api.stop_history)
            self._end()

    def capture(self, device: Device) -> CudaCapture:
        """The allocator's current state."""
        if not torch_api.cuda_initialized():
            return CudaCapture(device, {"segments": [], "device_traces": []}, missing="CUDA is not initialised")
        missing = USERS if self._users else None if self._ours else OFF
        with nullcontext() if self._stacks is None or not self._ours else self._stacks.with_grad_mode():
            taken = snapshot()
        return CudaCapture(device, taken, MAX_ENTRIES if self._ours else None, missing)

    def close(self) -> None:
        """Restore the earlier state of the history."""
        self.stop()
        self._patches.restore()

    def refusal(self, device: Device) -> Refusal | None:
        """The last out-of-memory error of a card since the history was started."""
        return self._refusals.get(device.index or 0)

    def _first_start(self) -> None:
        self._waiting = False
        if self._wanted:
            self._restart()

    def _observe(self) -> None:
        """Observe out-of-memory errors; torch keeps the observer for ever, so it must not keep this object alive."""
        history = weakref.ref(self)

        def observer(index: int, requested: int, allowed: int, free: int) -> None:
            alive = history()
            if alive is not None and alive._wanted:
                device = Device("cuda", index)
                base = alive.bases.get(index)
                alive._refusals[index] = Refusal(device, requested, allowed, free, alive.capture(device), base)

        torch_api.observe_out_of_memory(observer)

    def _restart(self) -> None:
        if not self._users:
            self._switch(self._starter)
            if len(self._calls) == 1:
                (self._again,) = self._calls
            self._ours = True
            if self._stacks is not None:
                self._stacks.start()
        if not self._observed:
            self._observed = True
            self._observe()

    def _end(self) -> None:
        """Stop treating the history as ours."""
        self._ours = False
        if self._stacks is not None:
            self._stacks.stop()

    def _switch(self, action: Function) -> None:
        self._switching = True
        self._calls.clear()
        try:
            action()
        finally:
            self._switching = False

    def _noticing(self, original: Function) -> Function:
        def record_memory_history(enabled: Any = None, *rest: Any, **options: Any) -> Any:
            if self._switching:
                self._calls.append(partial(original, enabled, *rest, **options))
            else:
                self._users = enabled is not None and enabled is not False
                self._end()
            return original(enabled, *rest, **options)

        return record_memory_history
