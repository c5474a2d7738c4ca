"""The raw evidence of a recorder.

``snapshots`` converts both forms into one model. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import RawFrame

OFF = "no stacks and no events: none were recorded"
GRAD_MODE = "<grad mode>"
"""File of the last frame of a stack in snapshots of ours: its name says whether the thread's grad mode was ``on``."""


class CudaCapture(NamedTuple):
    """A snapshot dict of torch, for all cards. ``missing`` says why there are no stacks or events."""

    device: Device
    snapshot: dict[str, Any]
    max_entries: int | None = None
    missing: str | None = None


class CpuCapture(NamedTuple):
    """Rows of the CPU recorder, the number of its first event, and a function from stack number to frames."""

    device: Device
    blocks: Sequence[tuple[int, int, int, int, int, int]]
    events: Sequence[tuple[int, ...]]
    frames: Callable[[int], Sequence[RawFrame]]
    first: int = 0
    truncated: bool = False
    missing: str | None = None


Capture = CudaCapture | CpuCapture


class Refusal(NamedTuple):
    """A failed allocation: bytes requested, allowed and free (``None`` if unknown), and the state at that moment.

    ``base`` is the level at which a relative limit was set; ``None`` if the current limit is not relative.
    """

    device: Device
    requested: int
    allowed: int | None
    free: int | None
    capture: Capture
    base: int | None = None
