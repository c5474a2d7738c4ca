"""Writes, drops and reviews baselines at the end of a run. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from cudamem_testing.model.facts import Changed
from cudamem_testing.model.findings import Verdict
from cudamem_testing.model.nodeids import file_of, name_in_module
from cudamem_testing.model.records import TestRecord, Unchecked, Unseen
from cudamem_testing.model.sizes import count
from cudamem_testing.records.names import Numbers, folded
from cudamem_testing.records.renames import Kept
from cudamem_testing.records.review import renamed_names, review
from cudamem_testing.records.update import drop, last_attempts, rename, update
from cudamem_testing.show.atomic_files import shown

if TYPE_CHECKING:
    from cudamem_testing.model.changes import Change
    from cudamem_testing.model.settings import Settings


SHOWN = 5
"""Lines of tests that use less than recorded."""


class Messages(NamedTuple):
    """What is reported: ``problems`` fail a run that had passed, ``unchecked`` counts what was not compared.

    ``unseen`` are known findings that did not appear.
    """

    lines: list[str]
    problems: list[str]
    unchecked: Mapping[Unchecked, int] = MappingProxyType({})
    unseen: Unseen = Unseen()


def finish(
    settings: Settings,
    root: Path,
    tests: Sequence[TestRecord],
    seen: Collection[str],
    whole: Callable[[str], bool],
    outside: AbstractSet[str] = frozenset(),
) -> Messages:
    """Write what was asked for; only the process that has every record does so.

    ``seen`` are the ids of all tests that ran and of the files that were collected, ``whole`` says whether all tests of
    a file were collected, and ``outside`` are files outside ``root``, whose tests have no baselines.
    """
    if settings.baseline == "off" or not settings.enforce:
        return Messages([], [])
    tests = last_attempts(tests)
    lines: list[str] = []
    problems: list[str] = []
    unchecked: dict[Unchecked, int] = {}
    written: list[Kept] = []
    if "baselines" in settings.update:
        updated = update(root, tests)
        lines += updated.lines
        problems += updated.refused
        written = [Kept(path, one.key, one.after) for path, one in updated.written if one.before is None]
    if outside:
        demanded = "baselines" in settings.update or settings.baseline == "require"
        there = [test.measured for test in tests if file_of(test.nodeid) in outside]
        number = sum(1 for measured in there if any(demanded or one.asked for one in measured))
        if number:
            where = f"outside rootdir ({shown(root)}) there are no baselines: give a folder with all tests: --rootdir=."
            if demanded:
                problems.append(f"{count(number, 'test')}: {where}")
            else:
                unchecked[Unchecked("test", where)] = number
        seen = {nodeid for nodeid in seen if file_of(nodeid) not in outside}
    reviewed = review(root, tests, seen, whole, written, real_cards=settings.compares_real_cards)
    if reviewed.renamed and "baselines" in settings.update:
        problems += rename(reviewed.renamed).refused
        lines += [f"renamed: {name}" for name in renamed_names(reviewed.renamed)]
        reviewed = reviewed.after_renaming()
    if settings.prune and reviewed.unseen:
        dropped = drop(reviewed.unseen)
        if dropped.dropped:
            lines.append(f"{count(dropped.dropped, 'baseline')} of tests that are no longer there dropped")
        problems += dropped.refused
    lines += _improved(tests)
    unchecked |= reviewed.unchecked
    return Messages([*lines, *reviewed.lines(settings.prune)], [*problems, *reviewed.broken], unchecked)


def _improved(tests: Sequence[TestRecord]) -> list[str]:
    """Which tests use less than their baseline says, and how to record that."""
    better = [
        (name_in_module(test.nodeid), [Numbers(one.metric, one.before, one.after) for one in changes])
        for test in tests
        if (changes := [*_improvements(test)])
    ]
    use = "1 test now uses" if len(better) == 1 else f"{len(better)} tests now use"
    title = f"{use} less than recorded; record with --cudamem-update=baselines:"
    return ["\n".join((title, *folded(better, SHOWN)))] if better else []


def _improvements(test: TestRecord) -> Iterator[Change]:
    for finding in test.findings:
        if finding.verdict is Verdict.IMPROVED and isinstance(finding.fact, Changed):
            yield finding.fact.change
