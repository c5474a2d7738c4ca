"""What the kind of a device decides where nothing is set. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device

IGNORED_BELOW = {"cpu": 64 * 1024}


def cycles_fail(device: Device) -> bool:
    """Whether a reference cycle that kept memory of a device fails a test by default."""
    return device.kind == "cuda"


def ignored_below(device: Device) -> int:
    """Retained totals below this are not judged: libraries keep small things on the CPU."""
    return IGNORED_BELOW.get(device.kind, 0)
