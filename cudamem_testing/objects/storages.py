"""Finds the storages on a device that tensors of this process have, by a walk over all objects.

For devices whose allocator lists no blocks. Storages that only C++ holds, such as those in a graph of autograd that no
tensor leads to, are not found. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from cudamem_testing import safe_access
from cudamem_testing.objects.tensors import Storage, carried_by, is_tensor
from cudamem_testing.originals import Original
from cudamem_testing.torch_api import tensors


class OnDevice(NamedTuple):
    """The storages by address, and whether a CUDA graph is alive, which may use workspaces of libraries."""

    storages: dict[int, Storage]
    graphs: bool


def storages_on(device: str) -> OnDevice:
    """All storages with bytes on a device, such as ``cuda:0``, that a tensor in Python has, or its gradient or graph.

    It runs no code of users, and keeps nothing alive.
    """
    found: dict[int, Storage] = {}
    graphs = False
    for obj in Original.get_objects():
        if not is_tensor(obj):
            graphs = graphs or safe_access.is_a(obj, torch.cuda.CUDAGraph)
            continue
        with tensors.quiet():
            gradient = tensors.grad(obj)
        for tensor in (obj, gradient):
            for storage, _ in carried_by(tensor) if tensor is not None else ():
                if storage.device == device:
                    found[storage.address] = storage
    return OnDevice(found, graphs)
