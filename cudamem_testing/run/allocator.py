"""A test that changes the allocator's settings: they are as before for the next test, and the test's notes say so.

Looked at are the fraction of each card that the process may reserve, and the settings that torch can change while it
runs. Only changes during the call count that the test's teardown leaves: what a fixture sets is for its tests, and what
one undoes is undone. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.cards import SHARE
from cudamem_testing.safe_access import error_text

#: What a setting is without a value in the list; others have none that can be written.
_DEFAULTS = {"expandable_segments": "False", "roundup_power2_divisions": "1", "pinned_use_cuda_host_register": "False"}

#: The settings as text (``None`` if torch does not show them), and the fraction of each card.
Settings = tuple[str | None, tuple[float, ...]]


class Allocator:
    """The allocator of some cards, whose settings every test on one reads twice: torch's functions are found once."""

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        self._cards = tuple(device.index or 0 for device in devices if device.is_card)
        self._functions: torch_api.SettingsFunctions | None = None

    def read(self) -> Settings:
        """The current settings. CUDA is not initialised for it: until then the environment says the fractions."""
        if self._functions is None:
            self._functions = torch_api.settings_functions(self._cards)
            if self._functions is None:
                return torch_api.allocator_settings(), self._fractions()
        fraction, settings = self._functions
        return None if settings is None else settings(), tuple(map(fraction, self._cards))

    def _fractions(self) -> tuple[float, ...]:
        if torch_api.cuda_initialized():
            return tuple(map(torch_api.memory_fraction, self._cards))
        return (_of_environment(),) * len(self._cards)

    def restore(self, before: Settings, after: Settings) -> list[str]:
        """Undo what a call changed and is still so; a line for each change.

        Args:
            before: at the start of the call.
            after: at its end; its teardown may have undone it since.
        """
        notes, now = [], self.read()
        for index, old, changed, current in zip(self._cards, before[1], after[1], now[1], strict=True):
            if old != changed == current:
                torch_api.set_memory_fraction(index, old)
                notes.append(
                    f"the test left set_per_process_memory_fraction({changed:g}) on cuda:{index}: set to {old:g} again"
                )
        if before[0] is not None and before[0] != after[0] == now[0]:
            notes.append(_restore_settings(before[0], after[0] or ""))
        return notes


def _of_environment() -> float:
    """The fraction when CUDA starts: this worker's share of the card, or what the allocator's settings say."""
    share = os.environ.get(SHARE)
    if share is not None:
        return float(share)
    from cudamem_testing.model.allocator_settings import AllocatorSettings

    try:
        given = AllocatorSettings.read(os.environ).fraction
    except ValueError:  # torch refuses them, too
        given = None
    return 1.0 if given is None else given


def _restore_settings(before: str, after: str) -> str:
    changed = [one.partition(":")[0].strip() for one in _split(after)]
    old = {one.partition(":")[0].strip() for one in _split(before)}
    added = [name for name in changed if name and name not in old]
    wanted = ",".join([*(f"{name}:{_DEFAULTS[name]}" for name in added if name in _DEFAULTS), *filter(None, [before])])
    text = f"the test changed the allocator's settings to {after!r}"
    kept = [name for name in added if name not in _DEFAULTS]
    try:
        if wanted:
            torch_api.set_allocator_settings(wanted)
    except Exception as error:  # torch checks them
        return f"{text}; they could not be restored: {error_text(error)}"
    if kept:
        return f"{text}: {', '.join(kept)} cannot be unset while torch runs, and hold for the tests that follow"
    return f"{text}: set to {before!r} again" if before else f"{text}: the defaults are set again"


def _split(settings: str) -> list[str]:
    """The settings of a list; commas in brackets belong to a value."""
    found, depth = [""], 0
    for char in settings:
        depth += (char == "[") - (char == "]")
        if char == "," and not depth:
            found.append("")
        else:
            found[-1] += char
    return [one for one in found if one.strip()]
