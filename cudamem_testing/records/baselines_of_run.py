"""Baselines at the end of a run: those that are written, dropped, or were not compared. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from cudamem_testing.model.findings import Verdict
from cudamem_testing.model.records import TestRecord
from cudamem_testing.model.sizes import count
from cudamem_testing.records.known import file_of
from cudamem_testing.records.review import review
from cudamem_testing.records.update import drop, last_attempts, update
from cudamem_testing.show.files import shown

if TYPE_CHECKING:
    from cudamem_testing.model.settings import Settings


class Said(NamedTuple):
    """What is worth a line: ``problems`` fail a run that was green, ``unchecked`` counts what was not compared."""

    lines: list[str]
    problems: list[str]
    unchecked: Mapping[str, int] = MappingProxyType({})


def finish(
    settings: Settings,
    root: Path,
    tests: Sequence[TestRecord],
    seen: Collection[str],
    whole: Callable[[str], bool],
    outside: AbstractSet[str] = frozenset(),
) -> Said:
    """Write what was asked for; only the process that has every record does so.

    ``seen`` are the ids of all tests that ran and of the files that were collected, ``whole`` tells which files were
    collected whole, and ``outside`` are files that do not lie below ``root``: their tests have no baselines.
    """
    if settings.baseline == "off" or not settings.enforce:
        return Said([], [])
    tests = last_attempts(tests)
    lines: list[str] = []
    problems: list[str] = []
    unchecked: dict[str, int] = {}
    if "baselines" in settings.update:
        updated = update(root, tests)
        lines += updated.lines
        problems += updated.refused
    if outside:
        demanded = "baselines" in settings.update or settings.baseline == "require"
        there = [test.measured for test in tests if file_of(test.nodeid) in outside]
        number = sum(1 for measured in there if any(demanded or one.asked for one in measured))
        if number:
            where = f"outside rootdir ({shown(root)}) there are no baselines: give a folder with all tests: --rootdir=."
            if demanded:
                problems.append(f"{count(number, 'test')}: {where}")
            else:
                unchecked[f"test: {where}"] = number
        seen = {nodeid for nodeid in seen if file_of(nodeid) not in outside}
    reviewed = review(root, tests, seen, whole)
    if settings.prune and reviewed.unseen:
        dropped = drop(reviewed.unseen)
        lines.append(f"{count(dropped.dropped, 'baseline')} of tests that are no longer there dropped")
        problems += dropped.refused
    better = sum(1 for test in tests if any(one.verdict is Verdict.IMPROVED for one in test.findings))
    if better:
        use = "1 test uses" if better == 1 else f"{better} tests use"
        lines.append(f"{use} less than recorded: record it with --cudamem-update=baselines")
    unchecked |= reviewed.unchecked
    return Said([*lines, *reviewed.lines(settings.prune)], [*problems, *reviewed.broken], unchecked)
