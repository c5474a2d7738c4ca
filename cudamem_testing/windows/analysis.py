"""What can be read from the records of a session, for code that only measures. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudamem_testing.model.failing import Sweep
    from cudamem_testing.windows.failing import TellFirstTry
    from cudamem_testing.windows.grow import Explain
    from cudamem_testing.windows.scale import Lines

#: Lets each allocation of a step fail; the arguments are those of ``Memory.fail_each_allocation``.
SweepStep = Callable[..., "Sweep"]


@dataclass(frozen=True, slots=True)
class Analysis:
    """Functions that read records; ``None`` if nothing is recorded.

    ``growth`` explains what grew, ``lines`` says what was live at the peak of a window, ``first_try`` what was live
    from before a failed allocation, ``sweep`` runs a step with failing allocations.
    """

    growth: Explain | None = None
    lines: Lines | None = None
    first_try: TellFirstTry | None = None
    sweep: SweepStep | None = None
