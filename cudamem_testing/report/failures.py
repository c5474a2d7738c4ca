"""Lines about why a run failed apart from its tests, what it did not check, and its notes. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence

from cudamem_testing.model.records import RunRecord, Unchecked
from cudamem_testing.model.sizes import count
from cudamem_testing.show.printable import one_line, short_lines

SHOWN = 5
NAMED = 3
"""Causes of known findings that one note names."""


def failure_lines(failures: Sequence[str], most: int = SHOWN) -> list[str]:
    """A line for each of the first failures, and one with the number of the others."""
    rest = [f"failed: {len(failures) - most} more"] if len(failures) > most else []
    return [*(one_line(f"failed: {one}") for one in failures[:most]), *rest]


def unchecked_lines(run: RunRecord) -> list[str]:
    """A line for each reason why something requested was not checked."""
    every = {**{Unchecked("budget", why): number for why, number in run.unenforced.items()}, **run.unchecked}
    return [f"NOT CHECKED: {count(number, what)}: {why}" for (what, why), number in every.items()]


def notes(run: RunRecord) -> tuple[str, ...]:
    """The notes of a run, the last about known findings that did not appear."""
    flag, causes = run.unseen
    if not causes:
        return run.notes
    was = "known cause was" if len(causes) == 1 else "known causes were"
    rest = [f"... and {len(causes) - NAMED} more"] if len(causes) > NAMED else []
    lines = (f"{len(causes)} {was} not seen ({flag} drops what is gone):", *causes[:NAMED], *rest)
    return (*run.notes, short_lines("\n".join(lines)))
