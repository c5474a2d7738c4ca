"""An accelerator that answers ``torch.accelerator``'s statistics, as XPU does, on a machine without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch

from cudamem_testing import torch_api

MIB = 2**20
NAMES = ("allocated_bytes", "requested_bytes", "active_bytes", "reserved_bytes", "allocation", "segment")
PARTS = ("current", "peak", "allocated", "freed")
Stats = dict[str, dict[str, dict[str, int]]]
#: The one in place, for tests of an inner run.
IN_PLACE: list[StandIn] = []


class StandIn:
    """Two devices of an accelerator; blocks stay reserved when they are freed."""

    def __init__(self) -> None:
        self.stats: list[Stats] = [{name: {"all": dict.fromkeys(PARTS, 0)} for name in NAMES} for _ in range(2)]
        self.started = True
        self.waits: list[int] = []

    def read(self, index: int) -> Stats:
        return {name: {"all": dict(values["all"])} for name, values in self.stats[index].items()}

    def reset(self, index: int) -> None:
        for values in self.stats[index].values():
            values["all"]["peak"] = values["all"]["current"]

    def take(self, size: int, index: int = 0) -> None:
        """Allocate a block; a negative size frees one."""
        stats = self.stats[index]
        missing = stats["allocated_bytes"]["all"]["current"] + size - stats["reserved_bytes"]["all"]["current"]
        changes = dict.fromkeys(("allocated_bytes", "requested_bytes", "active_bytes"), size)
        changes |= {"allocation": 1 if size > 0 else -1, "reserved_bytes": max(missing, 0), "segment": missing > 0}
        for name, by in changes.items():
            values = stats[name]["all"]
            values["current"] += by
            values["allocated" if by > 0 else "freed"] += abs(by)
            values["peak"] = max(values["peak"], values["current"])


@contextmanager
def in_place() -> Iterator[StandIn]:
    """Let torch call it its accelerator, two devices of the kind ``xpu``; skips a test where torch has no numbers."""
    if not hasattr(torch._C, torch_api.ACCELERATOR_READER):
        pytest.skip("torch 2.9 and later have statistics of any accelerator")
    made = StandIn()
    functions = {
        torch_api.ACCELERATOR_READER: made.read,
        torch_api.ACCELERATOR_PEAK_RESET: made.reset,
        "_accelerator_isAllocatorInitialized": lambda: made.started,
    }
    public = {
        "current_accelerator": lambda check_available=False: torch.device("xpu"),
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "synchronize": made.waits.append,
    }
    IN_PLACE.append(made)
    with mock.patch.multiple(torch._C, **functions), mock.patch.multiple(torch.accelerator, **public):
        with mock.patch.object(torch_api, "cuda_device_count", return_value=0):
            yield made
        restored = torch._C._accelerator_getDeviceStats == made.read
    IN_PLACE.pop()
    assert restored, "a function of torch was not restored"
