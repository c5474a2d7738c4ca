"""Review at the end of a run: what was not compared and why, and which entries nobody saw. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cudamem_testing.model.records import TestRecord
from cudamem_testing.model.sizes import count
from cudamem_testing.recorders.identity import recorded_with, without_threads
from cudamem_testing.records.baselines import (
    BaselineError,
    Entries,
    Key,
    Recorded,
    module_of,
    name_in_module,
    read_file,
)
from cudamem_testing.show.places import baseline_file

SHOWN = 3
RECORD = "record with --cudamem-update=baselines"


@dataclass(frozen=True, slots=True)
class Review:
    """``elsewhere`` counts baselines of other environments by how these differ, ``without`` tests that have none.

    A test without a marker counts there when others of its file have a baseline. ``lacking`` counts, by metrics, tests
    whose baseline was recorded without these; ``unknown`` those that ask for metrics alone which their device has not.
    ``unseen`` are entries of tests that are no longer there, by file; ``broken`` says what could not be read.
    """

    elsewhere: dict[str, int] = field(default_factory=dict)
    without: int = 0
    lacking: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    unseen: dict[Path, tuple[Key, ...]] = field(default_factory=dict)
    broken: tuple[str, ...] = ()

    @property
    def unchecked(self) -> dict[str, int]:
        """How many baselines and tests were not compared, by what and why."""
        none = {f"test: no baseline ({RECORD})": self.without} if self.without else {}
        return {
            **{f"baseline: {reason} ({RECORD})": number for reason, number in self.elsewhere.items()},
            **none,
            **{f"test: no baseline of {metrics} ({RECORD})": number for metrics, number in self.lacking.items()},
            **{f"test: no {what} to compare": number for what, number in self.unknown.items()},
        }

    def lines(self, pruned: bool) -> list[str]:
        """What is worth a line for the whole run."""
        lines = []
        named = (f"{module_of(path).name}::{key.test}" for path, keys in self.unseen.items() for key in keys)
        gone = [*dict.fromkeys(named)]
        if gone and not pruned:
            rest = f" and {len(gone) - SHOWN} more" if len(gone) > SHOWN else ""
            which = "belongs to a test that is" if len(gone) == 1 else "belong to tests that are"
            lines.append(
                f"{count(len(gone), 'baseline')} {which} no longer there: {', '.join(gone[:SHOWN])}{rest} "
                "(--cudamem-prune drops them)"
            )
        return lines


def review(root: Path, tests: Iterable[TestRecord], seen: Collection[str], whole: Callable[[str], bool]) -> Review:
    """Look at the files of the tests of a run; ids are relative to ``root``.

    ``seen`` are the ids of all tests that ran and of the files that were collected, which may have no tests any more;
    ``whole`` tells of a file (relative to ``root``) whether all of its tests ran.
    """
    files = _Files(root)
    elsewhere: Counter[str] = Counter()
    lacking, unknown = Counter[str](), Counter[str]()
    without = 0
    for test in tests:
        for one in test.measured:
            if not one.metrics:
                continue
            entries = files.read(files.of(test.nodeid))
            key = Key(name_in_module(test.nodeid), one.device, one.environment)
            if entries is None:
                continue
            if not one.entry.values:
                if not any(other.entry.values for other in test.measured):
                    unknown[f"{', '.join(one.metrics)} on {one.device}"] += 1
                continue
            entry = entries.get(key)
            if entry is not None:
                absent = one.entry.values.keys() - entry.values.keys()
                if absent:
                    lacking[", ".join(metric for metric in one.metrics if metric in absent)] += 1
                continue
            reasons = [
                recorded_with(other.environment, one.environment) for other in entries.entries if other[:2] == key[:2]
            ]
            if reasons:
                elsewhere[min(reasons, key=lambda reason: (reason.count(","), len(reason)))] += 1
            elif one.asked or (entries and not one.idle):
                without += 1
    for nodeid in seen:
        files.read(files.of(nodeid))  # its tests were held to nothing if it is broken
    unseen = _unseen(files, seen, whole, tests)
    others, short, nothing = (dict(counts.most_common()) for counts in (elsewhere, lacking, unknown))
    return Review(others, without, short, nothing, unseen, tuple(files.broken))


def _unseen(
    files: _Files, seen: Collection[str], whole: Callable[[str], bool], tests: Iterable[TestRecord]
) -> dict[Path, tuple[Key, ...]]:
    """Entries of tests that were not there, of files that were collected whole, and of files that are gone.

    Another environment may have other tests. So a test is judged where it has an entry for an environment of this run;
    its entries for others go with that one.
    """
    environments = {(one.device, without_threads(one.environment)) for test in tests for one in test.measured}
    by_file: dict[Path, set[str]] = {}
    for nodeid in seen:
        if whole(nodeid.partition("::")[0]):
            by_file.setdefault(files.of(nodeid), set()).add(name_in_module(nodeid))
    found: dict[Path, tuple[Key, ...]] = {}
    for path, there in by_file.items():
        entries = files.entries(path)
        gone = {
            key.test
            for key in entries
            if key.test not in there and (key.device, without_threads(key.environment)) in environments
        }
        if gone:
            found[path] = tuple(key for key in entries if key.test in gone)
    for folder in {path.parent for path in by_file}:
        for path in sorted(folder.glob("*.json")):
            if path not in by_file and not module_of(path).exists():
                entries = files.entries(path)
                if entries:
                    found[path] = tuple(entries)
    return found


class _Files:
    """Files that are found and read once; what cannot be read is said once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._of: dict[str, Path] = {}
        self._read: dict[Path, Recorded | None] = {}
        self.broken: list[str] = []

    def of(self, nodeid: str) -> Path:
        """The file of a test."""
        module = nodeid.partition("::")[0]
        if module not in self._of:
            self._of[module] = baseline_file(self._root, nodeid)
        return self._of[module]

    def entries(self, path: Path) -> Entries:
        """The entries of a file; none where it cannot be read."""
        found = self.read(path)
        return {} if found is None else found.entries

    def read(self, path: Path) -> Recorded | None:
        """The entries of a file; ``None`` where it cannot be read."""
        if path not in self._read:
            try:
                self._read[path] = Recorded(read_file(path))
            except (BaselineError, OSError) as error:
                self._read[path] = None
                self.broken.append(f"baselines not compared: {error}")
        return self._read[path]
