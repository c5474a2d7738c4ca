"""Outside the allocator: what a process takes of a card beside torch's allocator.

The CUDA context, kernels that were loaded, plans of cuFFT, handles of libraries: nobody but the driver counts them.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import NamedTuple

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.recorders import cards


class Outside(NamedTuple):
    """One reading, in bytes.

    ``process`` is what this process takes of the card and ``in_use`` what all processes take, ``None`` where that is
    not known. ``reserved`` is what torch's allocator has taken of it. ``plans`` is how many plans cuFFT keeps.
    """

    device: Device
    reserved: int
    process: int | None = None
    in_use: int | None = None
    plans: int | None = None

    @property
    def bytes(self) -> int | None:
        """Outside the allocator; where only all processes together are known, theirs is in it."""
        taken = self.in_use if self.process is None else self.process
        return None if taken is None else taken - self.reserved

    def __str__(self) -> str:
        plans = f"; cuFFT keeps {count(self.plans, 'plan')}" if self.plans else ""
        if self.bytes is None:
            return f"memory outside torch's allocator is not known on {self.device}: neither NVML nor CUDA tells{plans}"
        size, reserved = format_size(self.bytes), format_size(self.reserved)
        if self.process is not None:
            taken = f"the process takes {format_size(self.process)}, the allocator {reserved} of it"
            return f"{size} of {self.device} are outside torch's allocator: {taken}{plans}"
        taken = f"{format_size(self.in_use or 0)} are in use, maybe by other processes too, {reserved} by the allocator"
        return f"at most {size} of {self.device} are outside torch's allocator: {taken}{plans}"


def read(device: Device, reserved: int) -> Outside:
    """What can be known now; CUDA must be initialised.

    NVML tells processes apart, unless their ids are those of another namespace (a container). Then what CUDA tells of
    the whole card is an upper bound.
    """
    index = device.index or 0
    process = cards.this_process(device)
    in_use = torch_api.memory_in_use(index) if process is None else None
    return Outside(device, reserved, process, in_use, torch_api.transform_plans(index))
