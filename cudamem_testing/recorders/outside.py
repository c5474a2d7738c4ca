"""Measures memory that a process uses on a card outside torch's allocator.

The CUDA context, loaded kernels, cuFFT plans, library handles: only the driver counts them.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device
from cudamem_testing.model.outside import OutsideUse
from cudamem_testing.recorders import cards


def read(device: Device, reserved: int) -> OutsideUse:
    """Read the current use; CUDA must be initialised.

    NVML lists processes, unless their ids belong to another namespace (a container). Then CUDA's number for
    the whole card is an upper bound.
    """
    index = device.index or 0
    process = cards.this_process(device)
    in_use = torch_api.memory_in_use(index) if process is None else None
    return OutsideUse(device, reserved, process, in_use, torch_api.transform_plans(index))
