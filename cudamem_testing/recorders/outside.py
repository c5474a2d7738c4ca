"""Outside the allocator: what a process takes of a card beside torch's allocator.

The CUDA context, kernels that were loaded, plans of cuFFT, handles of libraries: nobody but the driver counts them.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import OutsideUse
from cudamem_testing.recorders import cards


def read(device: Device, reserved: int) -> OutsideUse:
    """What can be known now; CUDA must be initialised.

    NVML tells processes apart, unless their ids are those of another namespace (a container). Then what CUDA tells of
    the whole card is an upper bound.
    """
    index = device.index or 0
    process = cards.this_process(device)
    in_use = torch_api.memory_in_use(index) if process is None else None
    return OutsideUse(device, reserved, process, in_use, torch_api.transform_plans(index))
