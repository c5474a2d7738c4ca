"""Captures: what a recorder hands over when somebody asks for evidence, in its own raw form.

``snapshots`` makes one model of both. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import RawFrame

OFF = "no stacks and no events: none were recorded"


@dataclass(frozen=True, slots=True)
class CudaCapture:
    """A snapshot dict of torch, for all cards. ``missing`` says why there are no stacks or events."""

    device: Device
    snapshot: dict[str, Any]
    max_entries: int | None = None
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class CpuCapture:
    """Rows of the CPU recorder, the number of its first event, and how to get the frames of a stack number."""

    device: Device
    blocks: Sequence[tuple[int, int, int, int, int, int]]
    events: Sequence[tuple[int, int, int, int, int, int, int, int]]
    frames: Callable[[int], Sequence[RawFrame]]
    first: int = 0
    truncated: bool = False
    missing: str | None = None


Capture = CudaCapture | CpuCapture


@dataclass(frozen=True, slots=True)
class Refusal:
    """An allocation that failed: bytes requested, allowed and free (``None`` where unknown), and the state it met.

    ``base`` is what was taken when a limit relative to it was set; ``None`` where the limit in force is no such one.
    """

    device: Device
    requested: int
    allowed: int | None
    free: int | None
    capture: Capture
    base: int | None = None
