"""The settings of a process that reads them from a file: those that say what is measured and judged.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudamem_testing.model.devices import parse_selection
from cudamem_testing.model.settings import Settings

_PLAIN = ("on", "enforce", "leaks", "cycles", "ignore_below", "first_use", "stacks", "audit")


def plain(settings: Settings) -> dict[str, Any]:
    """Those that a process needs, as plain values."""
    return {**{name: getattr(settings, name) for name in _PLAIN}, "device": str(settings.device)}


def for_rank(settings: Settings, *, compared: bool) -> Settings:
    """The settings of a process that writes no files; ``compared`` is whether it has its numbers compared."""
    update = settings.update & {"baselines"} if compared else frozenset[str]()
    baseline = settings.baseline if compared else "off"
    return settings.replaced(json=None, html=None, dump=None, update=update, repeat=1, baseline=baseline)


def settings_of(data: Mapping[str, Any]) -> Settings:
    """The settings of plain values.

    Raises:
        ValueError: for an unknown device.
        KeyError: if one is missing.
    """
    given = {name: data[name] for name in _PLAIN}
    return Settings(
        **given,
        device=parse_selection(data["device"]),
        simulated=None,
        ignore=(),
        budget=None,
        gpus=None,
        top=0,
        dump=None,
        json=None,
        html=None,
        known=None,
        baseline="off",
        update=frozenset(),
        prune=False,
        repeat=1,
    )
