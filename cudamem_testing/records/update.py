"""Writes what a run measured into the baseline files. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cudamem_testing.model.baselines import Entry, Measured, fold
from cudamem_testing.model.nodeids import file_of, name_in_module
from cudamem_testing.model.records import TestRecord
from cudamem_testing.model.sizes import count
from cudamem_testing.records.baselines import (
    BASELINES,
    BaselineKey,
    Entries,
    Recorded,
    module_of,
)
from cudamem_testing.records.names import folded, numbers_of
from cudamem_testing.records.renames import Renamed, body_of
from cudamem_testing.records.store import RecordError
from cudamem_testing.show.atomic_files import shown, why_not
from cudamem_testing.show.places import baseline_file
from cudamem_testing.show.printable import one_line

MOST = 10
"""Lines of tests that an update names."""


class Written(NamedTuple):
    """An entry before and after an update."""

    key: BaselineKey
    before: Entry | None
    after: Entry


@dataclass(frozen=True, slots=True)
class Updated:
    """Numbers of entries that are new, larger, smaller, the same, or dropped.

    ``files`` are those that changed, ``refused`` says for each one that could not be written why. ``written`` are the
    entries that are new or differ, by file.
    """

    new: int = 0
    more: int = 0
    less: int = 0
    same: int = 0
    dropped: int = 0
    files: tuple[Path, ...] = ()
    refused: tuple[str, ...] = ()
    written: tuple[tuple[Path, Written], ...] = field(default=(), compare=False, repr=False)

    def __add__(self, other: Updated) -> Updated:
        return Updated(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @property
    def lines(self) -> list[str]:
        """What was written: the numbers of entries with the changed tests below, and the files."""
        words = (("new", self.new), ("more", self.more), ("less", self.less), ("the same", self.same))
        parts = [f"{number} {word}" for word, number in (*words, ("dropped", self.dropped)) if number]
        total = self.new + self.more + self.less + self.same
        text = ["\n".join((f"{count(total, 'baseline')}: {', '.join(parts)}", *self.tests()))] if parts else []
        return [*text, *(f"written: {shown(path)}" for path in self.files)]

    def tests(self, most: int = MOST) -> list[str]:
        """A line for each test whose numbers changed, one for all of its parameters."""
        changed = [(one.key.test, numbers_of(one.before, one.after)) for _, one in self.written if one.before]
        return folded(changed, most)

    def __str__(self) -> str:
        return "\n".join((*self.lines, *self.refused)) or "no baseline"


def last_attempts(tests: Iterable[TestRecord]) -> list[TestRecord]:
    """The last attempts: an attempt after which the test was repeated does not count.

    A test has several where it ran several times, as in reports that were merged.
    """
    return [test for test in tests if test.outcome != "rerun"]


def measured_by_test(tests: Iterable[TestRecord]) -> dict[str, tuple[Measured, ...]]:
    """What every test took, by its id: one for each device and environment, with the spread over several runs."""
    runs: dict[str, list[tuple[Measured, ...]]] = {}
    for test in last_attempts(tests):
        runs.setdefault(test.nodeid, []).append(test.measured)
    return {nodeid: fold(some) for nodeid, some in runs.items()}


def accept(root: Path, tests: Iterable[TestRecord]) -> Updated:
    """Record what the tests of a report used, as :func:`update` does, if their files exist below ``root``."""
    here: list[TestRecord] = []
    reasons: dict[str, str | None] = {}
    for test in tests:
        if any(one.metrics for one in test.measured):
            file = file_of(test.nodeid)
            if file not in reasons:
                reasons[file] = why_not(root, file)
            if reasons[file] is None:
                here.append(test)
    refused = tuple(one_line(f"not written for {file}: {reason}") for file, reason in sorted(reasons.items()) if reason)
    return update(root, here) + Updated(refused=refused)


def update(root: Path, tests: Iterable[TestRecord]) -> Updated:
    """Record what the tests of a run took; ids are relative to ``root``.

    An entry does not change if the test used the same, or stayed within its tolerance without a detailed measurement.
    """
    by_file: dict[Path, dict[BaselineKey, Measured]] = {}
    for nodeid, measured in measured_by_test(tests).items():
        for one in measured:
            if one.metrics:
                key = BaselineKey(name_in_module(nodeid), one.device, one.environment)
                by_file.setdefault(baseline_file(root, nodeid), {})[key] = one
    total = Updated()
    for path, found in sorted(by_file.items()):
        total += _change(path, found, {})
    return total


def rename(pairs: Iterable[Renamed]) -> Updated:
    """Give entries of a test, those of other environments as well, its new name; an existing one stays."""
    total = Updated()
    for before, after, _ in pairs:
        try:
            old = {key: entry for key, entry in BASELINES.read(before.path).items() if key.test == before.key.test}
            moved = {key._replace(test=after.key.test): entry for key, entry in old.items()}
            BASELINES.change(after.path, partial(_joined, moved))
        except (RecordError, OSError) as error:
            total += Updated(refused=(f"not renamed: {error}",))
        else:
            total += drop({before.path: old})
    return total


def _joined(moved: Entries, entries: dict[BaselineKey, Entry]) -> Entries:
    return {**moved, **entries}


def drop(unseen: Mapping[Path, Iterable[BaselineKey]]) -> Updated:
    """Drop entries; a file without any is removed."""
    total = Updated()
    for path, keys in sorted(unseen.items()):
        total += _change(path, {}, dict.fromkeys(keys))
    return total


def _change(path: Path, found: Mapping[BaselineKey, Measured], dropped: Mapping[BaselineKey, None]) -> Updated:
    result = Updated()

    def changed(entries: dict[BaselineKey, Entry]) -> Entries:
        nonlocal result
        result = Updated(dropped=len(entries.keys() & dropped.keys()))
        kept = {key: entry for key, entry in entries.items() if key not in dropped}
        before = Recorded(dict(kept))
        for key, measured in found.items():
            there = before.find(key)
            old = None if there is None else before.entries[there]
            if not measured.entry.values or (old is None and measured.idle and not measured.asked):
                continue
            kind, entry = _entry(old, measured)
            if entry is old:
                kept[there or key] = entry
            else:
                if there != key:  # this number of threads differs, or is the first to be recorded
                    kind, old = Updated(new=1), None
                entry = kept[key] = replace(entry, body=body_of(module_of(path), key.test))
                kind += Updated(written=((path, Written(key, old, entry)),))
            result += kind
        return kept

    try:
        if BASELINES.change(path, changed):
            result += Updated(files=(path,))
    except (RecordError, OSError) as error:
        return Updated(refused=(f"not written: {error}",))
    return result


def _entry(old: Entry | None, measured: Measured) -> tuple[Updated, Entry]:
    """The entry to keep, and how it counts."""
    new = measured.entry
    if old is None:
        return Updated(new=1), new
    same = new.values.keys() == old.values.keys()
    if same and (measured.top is None or all(new.values[metric] in old.values[metric] for metric in new.values)):
        return Updated(same=1), old
    if measured.top is None:
        new = replace(new, top=old.top, lines=old.lines)
    shared = [metric for metric in new.values if metric in old.values]
    more = any(new.values[metric].high > old.values[metric].high for metric in shared) or not shared
    return Updated(more=1) if more else Updated(less=1), new
