"""What judges each test: made once torch is imported, because not every run has torch. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cudamem_testing.run.cycles import CycleCheck
from cudamem_testing.run.leaks import LeakCheck
from cudamem_testing.run.pools import PoolCheck
from cudamem_testing.run.retained import Retained

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.settings import Settings
    from cudamem_testing.run.attribution import Attributions
    from cudamem_testing.run.evidence import Evidence
    from cudamem_testing.windows.tracker import Tracker


def checks(
    settings: Settings,
    tracker: Tracker,
    evidence: Evidence,
    attributions: Attributions,
    ignore_below: Callable[[Device], int],
    notes: list[str],
) -> tuple[LeakCheck, CycleCheck, PoolCheck, Retained]:
    """Make them; ``notes`` are those of the run."""
    leaks = LeakCheck(tracker, evidence, attributions, ignore_below, settings.ignore)
    cycles = CycleCheck(tracker, leaks, ignore_below, evidence, notes, settings.ignore)
    pools = PoolCheck(tracker, evidence)
    return leaks, cycles, pools, Retained(settings, tracker, leaks, cycles)
