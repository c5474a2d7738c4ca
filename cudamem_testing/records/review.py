"""Reviews baselines at the end of a run: what was not compared and why, and entries without a test.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cudamem_testing.model.nodeids import file_of, name_in_module
from cudamem_testing.model.records import TestRecord, Unchecked
from cudamem_testing.model.sizes import count
from cudamem_testing.recorders.identity import recorded_with, without_threads
from cudamem_testing.records.baselines import (
    BASELINES,
    BaselineKey,
    Entries,
    Recorded,
    module_of,
)
from cudamem_testing.records.renames import Kept, Renamed, body_of, renames
from cudamem_testing.records.store import RecordError
from cudamem_testing.show.places import baseline_file, mode_of

SHOWN = 3
RECORD = "record with --cudamem-update=baselines"


@dataclass(frozen=True, slots=True)
class Review:
    """``elsewhere`` counts baselines of other environments by how these differ, ``without`` tests that have none.

    A test without a marker counts there when others of its file have a baseline. ``lacking`` counts, by metrics, tests
    whose baseline was recorded without these; ``unknown`` those that ask only for metrics that their device does not
    have. ``unseen`` are entries of tests that are no longer there, by file, of which those that are ``renamed`` have
    become others; ``broken`` says what could not be read.
    """

    elsewhere: dict[str, int] = field(default_factory=dict)
    without: int = 0
    lacking: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    unseen: dict[Path, tuple[BaselineKey, ...]] = field(default_factory=dict)
    renamed: tuple[Renamed, ...] = ()
    broken: tuple[str, ...] = ()

    def after_renaming(self) -> Review:
        """Without what was renamed."""
        renamed = {(one.before.path, one.before.key.test) for one in self.renamed}
        left = {
            path: tuple(key for key in keys if (path, key.test) not in renamed) for path, keys in self.unseen.items()
        }
        return replace(self, unseen={path: keys for path, keys in left.items() if keys}, renamed=())

    @property
    def unchecked(self) -> dict[Unchecked, int]:
        """How many baselines and tests were not compared, by what and why."""
        none = {Unchecked("test", f"no baseline ({RECORD})"): self.without} if self.without else {}
        return {
            **{Unchecked("baseline", f"{reason} ({RECORD})"): number for reason, number in self.elsewhere.items()},
            **none,
            **{Unchecked("test", f"no baseline of {one} ({RECORD})"): number for one, number in self.lacking.items()},
            **{Unchecked("test", f"no {what} to compare"): number for what, number in self.unknown.items()},
        }

    def lines(self, pruned: bool) -> list[str]:
        """Lines about the whole run."""
        lines = []
        if self.renamed and not pruned:
            number = len({one.before.key.test for one in self.renamed})
            looks, them = ("looks", "it") if number == 1 else ("look", "them")
            names = renamed_names(self.renamed)
            lines.append(
                f"{count(number, 'baseline')} {looks} renamed: {'; '.join(names[:SHOWN])}{_rest(names)} "
                f"(--cudamem-update=baselines renames {them})"
            )
        renamed = {(one.before.path, one.before.key.test) for one in self.renamed}
        named = (
            f"{module_of(path).name}::{key.test}"
            for path, keys in self.unseen.items()
            for key in keys
            if (path, key.test) not in renamed
        )
        gone = [*dict.fromkeys(named)]
        if gone and not pruned:
            which = "belongs to a test that is" if len(gone) == 1 else "belong to tests that are"
            lines.append(
                f"{count(len(gone), 'baseline')} {which} no longer there: {', '.join(gone[:SHOWN])}{_rest(gone)} "
                "(--cudamem-prune drops them)"
            )
        return lines


def _rest(names: Collection[str]) -> str:
    return f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""


def renamed_names(pairs: Iterable[Renamed]) -> list[str]:
    """``test_it.py::test_old -> test_new (same function body)``, the parameters of one test as one."""
    found: dict[tuple[str, str, str], dict[str, None]] = {}
    for before, after, why in pairs:
        (old, *parts), new = before.key.test.partition("["), after.key.test.partition("[")[0]
        file = module_of(before.path).name
        other = "" if after.path == before.path else f"{module_of(after.path).name}::"
        found.setdefault((f"{file}::{old}", f"{other}{new}", why), {})["".join(parts)] = None
    names = []
    for (old, new, why), parameters in found.items():
        only = next(iter(parameters))
        suffix = only if len(parameters) == 1 else f"[...] x {len(parameters)}"
        names.append(f"{old}{suffix} -> {new}{only if len(parameters) == 1 else '[...]'} ({why})")
    return names


def review(
    root: Path,
    tests: Iterable[TestRecord],
    seen: Collection[str],
    whole: Callable[[str], bool],
    written: Iterable[Kept] = (),
    *,
    real_cards: bool = False,
) -> Review:
    """Look at the files of the tests of a run; ids are relative to ``root``.

    ``seen`` are the ids of all tests that ran and of the files that were collected, which may have no tests any more;
    ``whole`` says whether all tests of a file (relative to ``root``) ran. ``written`` are entries that the run
    has added. ``real_cards``: baselines of real cards were compared on simulated ones.
    """
    files = _Files(root, real_cards)
    elsewhere: Counter[str] = Counter()
    lacking, unknown = Counter[str](), Counter[str]()
    without = 0
    fresh: list[Kept] = [*written]
    for test in tests:
        for one in test.measured:
            if not one.metrics:
                continue
            entries = files.read(files.of(test.nodeid))
            key = BaselineKey(name_in_module(test.nodeid), one.device, one.environment)
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
                continue
            fresh.append(Kept(files.of(test.nodeid), key, one.entry))
            if one.asked or (entries and not one.idle):
                without += 1
    for nodeid in seen:
        files.read(files.of(nodeid))  # if it is broken, its tests were not compared
    unseen = _unseen(files, seen, whole, tests)
    renamed = _renamed(files, unseen, fresh) if unseen and fresh else ()
    others, short, nothing = (dict(counts.most_common()) for counts in (elsewhere, lacking, unknown))
    return Review(others, without, short, nothing, unseen, renamed, tuple(files.broken))


def _renamed(
    files: _Files, unseen: Mapping[Path, tuple[BaselineKey, ...]], fresh: Iterable[Kept]
) -> tuple[Renamed, ...]:
    gone = [Kept(path, key, files.entries(path)[key]) for path, keys in unseen.items() for key in keys]
    new = [
        one._replace(entry=replace(one.entry, body=one.entry.body or body_of(module_of(one.path), one.key.test)))
        for one in fresh
    ]
    return tuple(renames(gone, new))


def _unseen(
    files: _Files, seen: Collection[str], whole: Callable[[str], bool], tests: Iterable[TestRecord]
) -> dict[Path, tuple[BaselineKey, ...]]:
    """Entries of tests that were not there, of files that were collected whole, and of files that are gone.

    Another environment may have other tests. So a test is judged where it has an entry for an environment of this run;
    its entries for others go with that one.
    """
    environments = {(one.device, without_threads(one.environment)) for test in tests for one in test.measured}
    by_file: dict[Path, set[str]] = {}
    for nodeid in seen:
        if whole(file_of(nodeid)):
            by_file.setdefault(files.of(nodeid), set()).add(name_in_module(nodeid))
    found: dict[Path, tuple[BaselineKey, ...]] = {}
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
            if path not in by_file and not mode_of(module_of(path)):
                entries = files.entries(path)
                if entries:
                    found[path] = tuple(entries)
    return found


class _Files:
    """Files that are found and read once, and errors that are reported once."""

    def __init__(self, root: Path, real_cards: bool) -> None:
        self._root = root
        self._real_cards = real_cards
        self._of: dict[str, Path] = {}
        self._read: dict[Path, Recorded | None] = {}
        self.broken: list[str] = []

    def of(self, nodeid: str) -> Path:
        """The file of a test."""
        module = file_of(nodeid)
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
                self._read[path] = Recorded(BASELINES.read(path), real_cards=self._real_cards)
            except (RecordError, OSError) as error:
                self._read[path] = None
                self.broken.append(f"baselines not compared: {error}")
        return self._read[path]
