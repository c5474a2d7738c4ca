"""Settings that the markers of one test override. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.settings import Settings


class Override(NamedTuple):
    """Overridden settings of one test; ``None`` if its markers do not set them.

    ``simulated`` is for tests of simulated cards alone, and without ``values`` tensors have only shapes there.
    """

    leaks: str | None = None
    cycles: str | None = None
    device: Device | None = None
    reason: str | None = None
    simulated: bool = False
    values: bool = True

    def covers(self, device: Device) -> bool:
        """Whether the device is judged for this test."""
        return self.device is None or self.device.covers(device)


NOTHING = Override()


def cycles_of(own: Override, settings: Settings) -> str | None:
    """What a cycle does to the test; ``None`` means the default of each device."""
    return (own.cycles or settings.cycles) if settings.on else "off"
