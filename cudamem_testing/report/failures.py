"""Why runs failed beside their measured tests, and what they did not check, in lines for people. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence

from cudamem_testing.model.records import RunRecord
from cudamem_testing.model.sizes import count
from cudamem_testing.show.printable import one_line

SHOWN = 5


def failure_lines(failures: Sequence[str], most: int = SHOWN) -> list[str]:
    """A line for each of the first failures, and one with the number of the others."""
    rest = [f"failed: {len(failures) - most} more"] if len(failures) > most else []
    return [*(one_line(f"failed: {one}") for one in failures[:most]), *rest]


def unchecked_lines(run: RunRecord) -> list[str]:
    """What was asked for and not checked, one line for each reason."""
    every = {**{f"budget: {reason}": number for reason, number in run.unenforced.items()}, **run.unchecked}
    parts = ((*what.partition(": "), number) for what, number in every.items())
    return [f"NOT CHECKED: {count(number, noun)}: {reason}" for noun, _, reason, number in parts]
