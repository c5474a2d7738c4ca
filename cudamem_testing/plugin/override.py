"""The marker ``cudamem``: what one test does differently, and why. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from cudamem_testing.plugin import keys
from cudamem_testing.plugin.markers import OVERRIDE

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.plugin.settings import Settings

SEVERITIES = ("fail", "warn", "off")


class Override(NamedTuple):
    """What the markers of one test say; ``None`` where they say nothing."""

    leaks: str | None = None
    cycles: str | None = None
    device: Device | None = None
    reason: str | None = None

    def covers(self, device: Device) -> bool:
        """Whether the device is judged for this test."""
        return self.device is None or self.device.covers(device)


NOTHING = Override()


def override(item: pytest.Item) -> Override:
    """The test's override: of each argument the nearest one.

    Raises:
        ValueError: naming everything that is wrong, one problem a line.
    """
    if item.get_closest_marker(OVERRIDE) is None:
        return NOTHING
    from cudamem_testing.model.devices import Device

    known = Override._fields
    given: dict[str, object] = {}
    problems: list[str] = []
    for mark in item.iter_markers(OVERRIDE):
        if mark.args:
            problems.append(f"takes keyword arguments only: {', '.join(known)}")
        unknown = sorted(set(mark.kwargs) - set(known))
        if unknown:
            problems.append(f"has no argument {', '.join(unknown)}: it takes {', '.join(known)}")
        if not mark.kwargs.get("reason"):
            problems.append("needs a reason='...'")
        given = {**mark.kwargs, **given}
    for name, allowed in (("leaks", SEVERITIES), ("cycles", (*SEVERITIES, "strict"))):
        if given.get(name) is not None and given[name] not in allowed:
            problems.append(f"{name}={given[name]!r} is not known: write {', '.join(allowed)}")
    device = None
    if given.get("device") is not None:
        try:
            device = Device.parse(given["device"])
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("\n".join(problems))
    return Override(_text(given.get("leaks")), _text(given.get("cycles")), device, _text(given.get("reason")))


def cycles_of(own: Override, settings: Settings) -> str | None:
    """What a cycle does to the test; ``None`` is the default of each device."""
    return (own.cycles or settings.cycles) if settings.on else "off"


def problems_of(item: pytest.Item) -> list[str]:
    """What is wrong with the test's markers, for people; what is right goes into the test's stash."""
    try:
        item.stash[keys.OVERRIDE] = override(item)
    except ValueError as error:
        return [f"{item.nodeid}: {OVERRIDE} {line}" for line in str(error).splitlines()]
    return []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
