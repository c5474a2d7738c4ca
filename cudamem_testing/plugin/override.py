"""The marker ``cudamem``: what one test does differently, and why. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import pytest

from cudamem_testing.model.override import NOTHING, Override
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.marks import OVERRIDE, place_of
from cudamem_testing.plugin.settings import SIMULATED

SEVERITIES = ("fail", "warn", "off")


def override(item: pytest.Item) -> Override:
    """The test's override: of each argument the nearest one.

    Raises:
        ValueError: naming everything that is wrong, one problem a line.
    """
    if item.get_closest_marker(OVERRIDE) is None:
        return NOTHING
    from cudamem_testing.model.devices import Device

    given: dict[str, object] = {}
    problems: list[str] = []
    for mark in item.iter_markers(OVERRIDE):
        problems += [f"{place_of(item, mark)}: {OVERRIDE} {problem}" for problem in _wrong(mark)]
        given = {**mark.kwargs, **given}
    if problems:
        raise ValueError("\n".join(problems))
    named, simulated = given.get("device"), given.get("device") == SIMULATED
    device = None if named is None or simulated else Device.parse(named)
    leaks, cycles, reason = (_text(given.get(name)) for name in ("leaks", "cycles", "reason"))
    return Override(leaks, cycles, device, reason, simulated, given.get("values") is not False)


def _wrong(mark: pytest.Mark) -> list[str]:
    """What is wrong with one marker."""
    from cudamem_testing.model.devices import Device

    known = tuple(name for name in Override._fields if name != "simulated")
    simulated = mark.kwargs.get("device") == SIMULATED
    problems = [f"takes keyword arguments only: {', '.join(known)}"] if mark.args else []
    unknown = sorted(set(mark.kwargs) - set(known))
    if unknown:
        problems.append(f"has no argument {', '.join(unknown)}: it takes {', '.join(known)}")
    if not mark.kwargs.get("reason") and not (simulated and mark.kwargs.keys() <= {"device", "values"}):
        problems.append("needs a reason='...'")
    if not mark.args and not unknown and mark.kwargs.keys() <= {"reason"}:
        problems.append("changes nothing: give leaks=, cycles= or device=")
    for name, allowed in (("leaks", SEVERITIES), ("cycles", (*SEVERITIES, "strict"))):
        if mark.kwargs.get(name) is not None and mark.kwargs[name] not in allowed:
            problems.append(f"{name}={mark.kwargs[name]!r} is not known: write {', '.join(allowed)}")
    if "values" in mark.kwargs and not (simulated and isinstance(mark.kwargs["values"], bool)):
        problems.append(f"values={mark.kwargs['values']!r}: write values=False beside device='simulated'")
    if mark.kwargs.get("device") is not None and not simulated:
        try:
            Device.parse(mark.kwargs["device"])
        except ValueError as error:
            problems.append(str(error))
    return problems


def problems_of(item: pytest.Item) -> list[str]:
    """What is wrong with the test's markers, for people; what is right goes into the test's stash."""
    try:
        item.stash[keys.OVERRIDE] = override(item)
    except ValueError as error:
        return str(error).splitlines()
    return []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
