"""Parses every spelling of a device.

``torch`` is not imported: a device is a kind and an index. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
import sys
from typing import Any, NamedTuple

from cudamem_testing.safe_access import type_name
from cudamem_testing.show.usage import hide_wrong_arguments

__tracebackhide__ = hide_wrong_arguments

#: Kinds of devices that ``torch.accelerator`` knows, or that packages add to it.
ACCELERATORS = ("xpu", "mtia", "mps", "hpu", "npu", "privateuseone")
_DEVICE = re.compile(rf"(cuda|cpu|host|{'|'.join(ACCELERATORS)})(?::(\d{{1,4}}))?", re.ASCII)


class Device(NamedTuple):
    """A device, or every device of a kind if ``index`` is ``None`` (there is one CPU, and its index is ``None``).

    ``host`` is pinned host memory, a pseudo-device. (A tuple: it is the key of many tables.)
    """

    kind: str
    index: int | None = None  # type: ignore[assignment] # not the method of tuples

    @classmethod
    def parse(cls, value: object) -> Device:
        """The device meant by ``0``, ``"cuda"``, ``"cuda:0"``, ``"cpu"``, a ``torch.device`` or a ``Device``.

        An ``int`` is a CUDA index, as in torch.

        Raises:
            ValueError: for anything else, with what is accepted.
        """
        if isinstance(value, Device):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls("cuda", value)
        text = value if isinstance(value, str) else _torch_device_text(value)
        match = _DEVICE.fullmatch(text)
        if match is None:
            shown = repr(value) if isinstance(value, (str, int)) or text else f"of type {type_name(value)}"
            raise ValueError(f"device {shown} is not known: write cpu, cuda, cuda:N or host")
        kind, index = match.groups()
        if kind in ("cpu", "host") or index is None:
            return cls(kind)
        return cls(kind, int(index))

    @classmethod
    def of(cls, device: Any) -> Device:
        """The device for a ``torch.device`` of any kind; the CPU has no number."""
        return cls(device.type, None if device.type == "cpu" else device.index)

    @property
    def pseudo(self) -> bool:
        """Whether limits must name it: a limit without a device does not cover it."""
        return self.kind == "host"

    @property
    def is_card(self) -> bool:
        """Whether torch's caching allocator serves it: sizes are rounded, and freed memory stays in a cache."""
        return self.kind == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Whether its blocks are memory of the process itself."""
        return self.kind == "cpu"

    @property
    def has_segments(self) -> bool:
        """Whether blocks are in reserved segments; on the CPU each block is allocated and freed by itself."""
        return not self.is_cpu

    def covers(self, other: Device) -> bool:
        """Whether ``other`` is this device, or one of its kind if no index was given."""
        return self.kind == other.kind and (self.index is None or self.index == other.index)

    def __lt__(self, other: Device) -> bool:  # type: ignore[override]
        mine, others = (-1 if device.index is None else device.index for device in (self, other))
        return (self.kind, mine) < (other.kind, others)

    def __str__(self) -> str:
        return self.kind if self.index is None else f"{self.kind}:{self.index}"


def _torch_device_text(value: object) -> str:
    """``cuda:1`` of a ``torch.device``, without importing torch."""
    torch = sys.modules.get("torch")
    return str(value) if torch is not None and type(value) is torch.device else ""


def parse_selection(value: str) -> str | Device:
    """The argument of ``--cudamem-device``: ``auto``, ``all``, ``cuda``, ``cuda:N`` or ``cpu``.

    Raises:
        ValueError: for anything else.
    """
    if value in ("auto", "all"):
        return value
    try:
        device = Device.parse(value)
    except ValueError:
        device = Device("host")
    if device.kind == "host":
        raise ValueError(f"device {value!r} is not known: write auto, all, cpu, cuda or cuda:N")
    return device


def select(selection: str | Device, kind: str, count: int) -> tuple[Device, ...]:
    """The devices to measure on a machine with ``count`` visible cards of one kind; absent ones are left out."""
    cards = tuple(Device(kind, index) for index in range(count))
    if selection == "auto":
        return cards or (Device("cpu"),)
    if selection == "all":
        return (*cards, Device("cpu"))
    return tuple(device for device in (*cards, Device("cpu")) if _as_device(selection).covers(device))


def _as_device(selection: str | Device) -> Device:
    return selection if isinstance(selection, Device) else Device.parse(selection)
