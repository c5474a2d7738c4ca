"""Checks what flags require to have an effect: accounting for every test, a marker, a card.

A flag of the command line that would do nothing is a usage error that says what to add. Values of an ini file may be
for other runs and require nothing, except for the device, which every measuring run uses. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from cudamem_testing.model.options import flag_of, flags_for_baselines
from cudamem_testing.plugin import keys, markers
from cudamem_testing.plugin.settings import OF_MEASURED_TESTS
from cudamem_testing.recorders.choose import absent_cards

if TYPE_CHECKING:
    from cudamem_testing.model.settings import Settings


def of_selected_tests(config: pytest.Config, settings: Settings, items: Sequence[pytest.Item]) -> list[str]:
    """Problems that show when the tests are known."""
    if not items or not settings.enforce:
        return []
    problems = [] if settings.on else [*_without_markers(config, settings, items)]
    if config.getoption("cudamem_gpus") is not None and not _has_workers(config):
        problems.append(f"--cudamem-gpus={settings.gpus} requires workers of pytest-xdist: add -n 2, or leave it out")
    if keys.SESSION in config.stash:
        problems += absent_cards(settings.device)
    return problems


def _has_workers(config: pytest.Config) -> bool:
    """Whether this is a worker of pytest-xdist, or their number was given: 0 is for a look without them."""
    return hasattr(config, "workerinput") or config.getoption("numprocesses", None) is not None


def _without_markers(config: pytest.Config, settings: Settings, items: Sequence[pytest.Item]) -> Iterator[str]:
    flags = flags_for_baselines(settings, require=config.getoption("cudamem_baseline") == "require")
    if flags and not any(keys.COMPARISON in item.stash for item in items):
        marker = f"@pytest.mark.{markers.BASELINE}"
        yield from (f"{flag} requires --cudamem, or a test with {marker}: none is selected" for flag in flags)
    given = [flag_of(name) for name in OF_MEASURED_TESTS if config.getoption(name) is not None]
    if settings.simulated is not None:  # then there is a card also for tests that are not measured
        given = [flag for flag in given if flag != "--cudamem-device"]
    if given and keys.SESSION not in config.stash:
        fixtures = markers.FIXTURES | markers.TEXT_FIXTURES
        if not any(fixtures.intersection(markers.fixture_names(item)) for item in items):
            what = "--cudamem, or a test with a memory marker or fixture: none is selected"
            yield from (f"{flag} requires {what}" for flag in given)
