"""The allocator's history: which line allocated, and what happened before an error. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from cudamem_testing.torch_api.cuda import cuda_function, cuda_initialized
from cudamem_testing.torch_api.process import torch

Stats = dict[str, Any]


def history_enabled() -> bool:
    """Whether the allocator's history is on."""
    enabled = cuda_function("_cuda_isHistoryEnabled")
    return enabled is not None and cuda_initialized() and bool(enabled())


def history_starter(max_entries: int) -> Callable[[], None]:
    """A function that restarts the allocator's history: Python stacks, at most ``max_entries`` events per card."""
    record = torch.cuda.memory._record_memory_history
    wanted = {"context": "alloc", "stacks": "python", "max_entries": max_entries, "clear_history": True}
    known = inspect.signature(record).parameters
    start = partial(record, "all", **{name: value for name, value in wanted.items() if name in known})
    if "clear_history" in known:
        return start

    def restart() -> None:  # torch 2.7 keeps its events on a restart, and drops them when stopped
        stop_history()
        start()

    return restart


def stop_history() -> None:
    """Stop the allocator's history."""
    torch.cuda.memory._record_memory_history(enabled=None)


def lazy_without_compiler() -> list[tuple[object, str, object]]:
    """Replacements so that a snapshot does not import torch's compiler: owner, attribute and value.

    To describe frames, torch checks whether it has a compiler that knows their source
    (``combined_traceback.cpp``), and that check imports the compiler's modules: 800 of them in 2 s, in the middle of
    a collection or an out-of-memory error. A compiler that was not imported has compiled nothing.
    """
    module = sys.modules["torch"]
    lazy = vars(module).get("_lazy_modules")
    if not isinstance(lazy, set) or "_inductor" in vars(module):
        return []
    return [(module, "_lazy_modules", lazy - {"_inductor"})]


def snapshot() -> Stats:
    """The allocator's segments, blocks and events on all cards. May import torch's compiler."""
    return dict(torch.cuda.memory._snapshot())


def observe_out_of_memory(observer: Callable[[int, int, int, int], None]) -> bool:
    """Call ``observer(device, requested, allowed, free)`` before an out-of-memory error unwinds (bytes).

    It stays for the life of the process: torch has no way to remove it.
    """
    attach = cuda_function("_cuda_attach_out_of_memory_observer")
    if attach is None:
        return False
    attach(observer)
    return True
