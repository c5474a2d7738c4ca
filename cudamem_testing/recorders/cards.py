"""Names of cards, from NVML only: asking CUDA would initialise it.

Opening NVML takes as long as a dozen clean tests, so it stays open from the first use to :func:`close`.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from cudamem_testing import torch_api
from cudamem_testing.guards import set_variable
from cudamem_testing.model.devices import Device

#: The variable of a worker that may use a share of its card only, from 0 to 1.
SHARE = "CUDAMEM_SHARE_OF_CARD"


def name(device: Device) -> str | None:
    """The card's name; ``None`` without the optional NVML bindings, or if the visible cards are not plain indices."""
    names = visible_names() if device.kind == "cuda" else ()
    index = device.index or 0
    return names[index] if index < len(names) else None


def share(worker: int, visible: str | None, count: int) -> str | None:
    """The card of one of several processes, as ``CUDA_VISIBLE_DEVICES`` names it; ``None`` if there is none.

    ``visible`` is the current value of that variable: its cards are shared among the processes. ``count`` is
    the number of cards without it.
    """
    named = map(str, range(count)) if visible is None else (part.strip() for part in visible.split(","))
    cards = [*filter(None, named)]
    return cards[worker % len(cards)] if cards else None


def worker_card(worker: int, workers: int) -> tuple[str, float] | None:
    """The card of one of several processes that has not used CUDA yet, and the part of it that each may use.

    The card is as ``CUDA_VISIBLE_DEVICES`` names it; ``None`` if there is none.

    Raises:
        RuntimeError: if this process has used CUDA.
    """
    visible, count = os.environ.get("CUDA_VISIBLE_DEVICES"), torch_api.cuda_device_count()
    card = share(worker, visible, count)
    if card is None:
        return None
    if torch_api.cuda_initialized():
        raise RuntimeError("CUDA was used before a card was chosen")
    return card, portion(worker, workers, card, visible, count)


def use_worker_card(worker: int, workers: int, *, limited: bool) -> list[Callable[[], None]]:
    """Let one of several processes see one card, before it uses CUDA, ``limited`` to its part of it.

    Returns the functions that undo it.

    Raises:
        RuntimeError: if this process has used CUDA.
    """
    found = worker_card(worker, workers)
    if found is None:
        return []
    card, part = found
    undo = [set_variable("CUDA_VISIBLE_DEVICES", card)]
    if limited and part < 1:
        undo.append(set_variable(SHARE, repr(part)))
        torch_api.when_cuda_starts(lambda: torch_api.set_memory_fraction(0, part))
    return undo


def portion(worker: int, workers: int, card: str | None, visible: str | None, count: int) -> float:
    """The part of its card that one of several processes may use: all use the same."""
    return 1 / max(1, sum(share(one, visible, count) == card for one in range(max(workers, worker + 1))))


def other_processes(device: Device) -> int | None:
    """Bytes that other processes hold on a card; ``None`` without NVML, or if it does not know this process."""
    if torch_api.simulated_cards():
        return 0
    processes = _processes(device)
    sizes = [size for pid, size in processes.items() if pid != os.getpid()]
    return None if not processes or None in sizes else sum(filter(None, sizes))


def this_process(device: Device) -> int | None:
    """Bytes that this process holds on a card; ``None`` without NVML, or if it does not know this process."""
    return _processes(device).get(os.getpid())


def _processes(device: Device) -> dict[int, int | None]:
    """Bytes of each process on a card by its id; empty if this process is not among them."""
    names, index = visible_names(), device.index or 0
    if device.kind != "cuda" or index >= len(names) or torch_api.simulated_cards():
        return {}
    nvml = _nvml(os.getpid())
    if nvml is None:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        place = index if visible is None else int(visible.split(",")[index])
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(place))
    except (nvml.NVMLError, OSError):
        return {}
    sizes = {process.pid: process.usedGpuMemory for process in processes}
    return sizes if os.getpid() in sizes else {}  # otherwise the ids belong to another process namespace


def visible_names() -> tuple[str, ...]:
    """Names of the visible cards in CUDA's order; empty without NVML, or if it does not know which are visible."""
    if simulated := torch_api.simulated_cards():
        return simulated
    names = all_names()
    if len(set(names)) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return ()  # CUDA puts the fastest first, and NVML does not know which that is
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return names
    chosen = []
    for part in visible.split(","):
        if not part.strip().isdecimal() or int(part) >= len(names):
            return ()
        chosen.append(names[int(part)])
    return tuple(chosen)


@cache
def all_names() -> tuple[str, ...]:
    """Names of the machine's cards in NVML's order; read once."""
    nvml = _nvml(os.getpid())
    if nvml is None:
        return ()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(place) for place in range(nvml.nvmlDeviceGetCount())]
        return tuple(_text(nvml.nvmlDeviceGetName(handle)) for handle in handles)
    except (nvml.NVMLError, OSError):
        return ()


def close() -> None:
    """Close NVML if it is open; the next use opens it again."""
    if _nvml.cache_info().currsize:
        nvml = _nvml(os.getpid())
        _nvml.cache_clear()
        if nvml is not None:
            with suppress(nvml.NVMLError, OSError):
                nvml.nvmlShutdown()


@cache
def _nvml(process: int) -> Any:
    """The opened bindings; ``None`` if they are missing or fail. A forked process opens its own."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return None
    except (pynvml.NVMLError, OSError):
        return None
    return pynvml


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
