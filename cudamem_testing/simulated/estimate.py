"""How much of a card a function takes, without the card and without values. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cudamem_testing import torch_api
from cudamem_testing.model.blocks import LiveSet
from cudamem_testing.model.devices import Device
from cudamem_testing.model.live_tables import live_section
from cudamem_testing.model.simulated_cards import DEFAULT
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.stacks import Locator
from cudamem_testing.recorders.capture import CudaCapture
from cudamem_testing.safe_access import is_a
from cudamem_testing.simulated import simulated_cuda
from cudamem_testing.snapshots.capture import recording_of
from cudamem_testing.snapshots.replay import replay


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a call takes of a card: the highest allocated and reserved bytes, and the blocks live at the first."""

    device: str
    peak: int
    reserved: int
    live: LiveSet

    def __str__(self) -> str:
        head = f"{self.device}: peak {format_size(self.peak)}, reserved {format_size(self.reserved)}"
        return "\n".join([head, *str(live_section(self.live)).splitlines()])


def estimate(function: Callable[..., object], *inputs: Any, device: str = DEFAULT) -> Estimate:
    """Run a function once on a simulated card, by shapes alone.

    Tensors and modules among the ``inputs`` are copied to the card first, and count from the start. What the function
    makes itself, it makes on ``"cuda"``: so a model that is too large for this machine is made in the function.

    Raises:
        torch.OutOfMemoryError: it does not fit the card.
        NotImplementedError: it reads a value, such as with ``.item()``.
        RecorderUnavailable: no card can be simulated in this process.
        ValueError: no such card.
    """
    with simulated_cuda(device, values=False) as cards:
        torch_api.history_starter(MOST_EVENTS)()
        held = [*map(_moved, inputs)]
        function(*held)
        peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        capture = CudaCapture(Device("cuda", 0), torch_api.snapshot(), MOST_EVENTS, None)
        torch_api.stop_history()
        recording = recording_of(capture, Locator(os.getcwd()))
        live = replay(recording).peak(since=0, measured=peak).live
        del held
    return Estimate(str(cards), peak, reserved, live)


MOST_EVENTS = 1_000_000


def _moved(value: Any) -> Any:
    if is_a(value, torch.nn.Module):
        return copy.deepcopy(value).to("cuda")
    return value.to("cuda") if is_a(value, torch.Tensor) else value
