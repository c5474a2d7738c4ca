"""Settings that the markers of one test override. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.settings import Settings

SEVERITIES = ("fail", "warn", "off")
SIMULATED = "simulated"


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


def override(
    *,
    leaks: object = None,
    cycles: object = None,
    device: object = None,
    values: object = None,
    reason: object = None,
) -> Override:
    """Parse the arguments of a marker.

    Raises:
        LimitError: that names every wrong argument.
    """
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.limits import LimitError

    simulated = str(device).partition(":")[0] == SIMULATED
    problems = [] if reason or (simulated and leaks is cycles is None) else ["needs a reason='...'"]
    if values is not None and not (simulated and isinstance(values, bool)):
        problems.append(f"values={values!r}: write values=False beside device='simulated'")
    if simulated and device != SIMULATED:
        problems.append(
            f"device={device!r}: write device={SIMULATED!r}, and choose the card by --cudamem-device={device}"
        )
    if leaks is cycles is device is None:
        problems.append("changes nothing: give leaks=, cycles= or device=")
    for name, value, allowed in (("leaks", leaks, SEVERITIES), ("cycles", cycles, (*SEVERITIES, "strict"))):
        if value is not None and value not in allowed:
            problems.append(f"{name}={value!r} is not known: write {', '.join(allowed)}")
    found = None
    try:
        found = None if device is None or simulated else Device.parse(device)
    except ValueError as error:
        problems.append(str(error))
    if problems:
        raise LimitError(problems)
    texts = [None if value is None else str(value) for value in (leaks, cycles, reason)]
    return Override(texts[0], texts[1], found, texts[2], simulated, values is not False)


def merged(overrides: Iterable[Override]) -> Override:
    """Several as one: of each setting the first that is given."""
    found = NOTHING
    for one in overrides:
        device = one.device if found.device is None else found.device
        texts = found.leaks or one.leaks, found.cycles or one.cycles, device, found.reason or one.reason
        found = Override(*texts, found.simulated or one.simulated, found.values and one.values)
    return found


def nearest(names: Iterable[str], ours: Sequence[str]) -> dict[str, str]:
    """The names that are nearly one of ours, each with ours."""
    found = {}
    for name in sorted(names):
        from difflib import get_close_matches

        for near in get_close_matches(name.casefold(), ours, 1, 0.8):
            found[name] = near
    return found


def cycles_of(own: Override, settings: Settings) -> str | None:
    """What a cycle does to the test; ``None`` means the default of each device."""
    return (own.cycles or settings.cycles) if settings.on else "off"
