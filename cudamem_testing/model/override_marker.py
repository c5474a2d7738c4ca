"""Reads the marker ``cudamem``, which overrides settings for one test. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterable

from cudamem_testing.model.devices import Device
from cudamem_testing.model.limits import LimitError
from cudamem_testing.model.override import NOTHING, Override
from cudamem_testing.model.simulated_cards import SIMULATED

SEVERITIES = ("fail", "warn", "off")


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
