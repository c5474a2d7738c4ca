"""The stack that allocated a block, from the history of CUDA's allocator. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import Locator, Stack
from cudamem_testing.recorders.history import snapshot


def recorded_allocations() -> Callable[[str, int], Stack | None]:
    """The stack of a block by its device and address. CUDA's history is read when a block of a card is first asked
    for, so garbage without CUDA tensors costs nothing.
    """
    found: dict[tuple[str, int], Stack] | None = None

    def allocated(device: str, address: int) -> Stack | None:
        nonlocal found
        if not Device.parse(device).is_card:
            return None
        if found is None:
            found = _blocks() if torch_api.history_enabled() else {}
        return found.get((device, address))

    return allocated


def _blocks() -> dict[tuple[str, int], Stack]:
    locator = Locator(os.getcwd())
    found: dict[tuple[str, int], Stack] = {}
    for segment in snapshot().get("segments", ()):
        address = segment["address"]
        for block in segment["blocks"]:
            frames = block.get("frames") or ()
            if block["state"] == "active_allocated" and frames:
                found[f"cuda:{segment['device']}", block.get("address", address)] = locator.stack(map(_raw, frames))
            address += block["size"]
    return found


def _raw(frame: Mapping[str, object]) -> tuple[str, int, str]:
    line = frame["line"]
    return str(frame["filename"]), line if isinstance(line, int) else 0, str(frame["name"])
