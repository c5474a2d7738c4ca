"""Merges the reports of shards into one, judged as if one run had written it.

Each finding was judged in its own run, with the known findings there; one that was not, as in an audit or without the
file, is judged here. Known causes that no shard found are judged here too, by what the shards of one kind of device
covered together. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from cudamem_testing.model.baselines import Measured, fold
from cudamem_testing.model.causes import causes
from cudamem_testing.model.changes import Spread
from cudamem_testing.model.findings import Finding
from cudamem_testing.model.records import Environment, RunCoverage, RunRecord, Unchecked
from cudamem_testing.model.sizes import count
from cudamem_testing.records.known import KnownFinding, Lines, evidence_of, judged, unseen
from cudamem_testing.records.update import measured_by_test

SHOWN = 3


def merge_runs(runs: Sequence[RunRecord]) -> RunRecord:
    """One run with the tests of all, in their order.

    Notes report what only shows across shards: reports of different versions of torch, and tests that ran in several of
    them with different numbers. Known findings that a shard did not find are left out, because they are valid only for
    that shard. With shards of different devices, the result covers nothing, because it does not say which test was
    measured where.
    """
    first = runs[0].environment
    devices = dict.fromkeys(device for run in runs for device in run.environment.devices)
    unenforced, unchecked = Counter[str](), Counter[Unchecked]()
    for run in runs:
        unenforced.update(run.unenforced)
        unchecked.update(run.unchecked)
    return RunRecord(
        Environment(tuple(devices), first.torch, first.allocator),
        tuple(test for run in runs for test in run.tests),
        tuple(fixture for run in runs for fixture in run.fixtures),
        tuple(finding for run in runs for finding in run.findings),
        tuple(dict.fromkeys((*(note for run in runs for note in run.notes), *_across(runs)))),
        dict(sorted(unenforced.items())),
        tuple(entry for run in runs for entry in run.ledger),
        tuple(one for run in runs for one in run.checked),
        _extent(runs) if len({frozenset(_measured(run)) for run in runs if _has_windows(run)}) <= 1 else RunCoverage(),
        tuple(failure for run in runs for failure in run.failures),
        dict(sorted(unchecked.items())),
        runs[0].flags,
    )


def judge(merged: RunRecord, lines: Lines, name: str) -> RunRecord:
    """The same run, with known findings applied to those that no shard has judged; ``name`` is their file's."""

    def all_of(findings: Sequence[Finding]) -> tuple[Finding, ...]:
        return tuple(judged(one, lines, name) if one.standing is None else one for one in findings)

    tests = tuple(test.but(findings=all_of(test.findings)) for test in merged.tests)
    return merged._replace(tests=tests, findings=all_of(merged.findings))


def unseen_by_all(runs: Sequence[RunRecord], lines: Lines, exists: Callable[[str], bool]) -> list[KnownFinding]:
    """Known findings whose cause the shards together should have found and did not.

    A test says nothing about a device on which it was not measured, so each kind of device is judged by its own shards.
    """
    gone = []
    for device in sorted({line.device for line in lines.values()}):
        asked = [run for run in runs if device in _measured(run) or not _has_windows(run)]
        merged = merge_runs(asked or runs)._replace(extent=_extent(asked))
        here = {key: line for key, line in lines.items() if line.device == device}
        gone += unseen(here, causes(merged), evidence_of(merged, exists))
    return gone


def _extent(runs: Sequence[RunRecord]) -> RunCoverage:
    """What the shards covered together: what one left out, or could not collect, another may have run."""
    ran = {test.nodeid for run in runs for test in run.tests}
    left_out = {nodeid for run in runs for nodeid in run.extent.left_out}
    if len(runs) > 1:
        left_out -= ran.union(*map(_above, ran | left_out))
    kinds = set.intersection(*(set(run.extent.kinds) for run in runs)) if runs else set()
    paths = dict.fromkeys(path for run in runs for path in run.extent.paths)
    ignored = Counter[str]()
    for run in runs:
        ignored |= Counter(run.extent.ignored)
    return RunCoverage(tuple(paths), tuple(sorted(left_out)), tuple(sorted(kinds)), dict(sorted(ignored.items())))


def _above(nodeid: str) -> Iterator[str]:
    """The file and the classes of an id."""
    end = nodeid.find("::")
    while end >= 0:
        yield nodeid[:end]
        end = nodeid.find("::", end + 2)


def _has_windows(run: RunRecord) -> bool:
    """Whether anything was measured, even partly; a shard whose tests need no torch has no windows."""
    return any(test.windows for test in run.tests)


def _measured(run: RunRecord) -> set[str]:
    return {window.device.kind for test in run.tests for window in test.windows if window.complete}


def _across(runs: Sequence[RunRecord]) -> list[str]:
    notes = []
    versions = dict.fromkeys(str(run.environment.torch) for run in runs if run.environment.devices)
    if len(versions) > 1:
        notes.append(f"the reports are of different versions of torch: {', '.join(versions)}")
    by_test: dict[str, list[tuple[Measured, ...]]] = {}
    for run in runs:
        for test, measured in measured_by_test(run.tests).items():
            by_test.setdefault(test, []).append(measured)
    twice = {test: measured for test, measured in by_test.items() if len(measured) > 1}
    differing = [test for test, measured in twice.items() if any(map(_differs, fold(measured)))]
    if twice:
        notes.append(f"{count(len(twice), 'test')} in more than one report")
    if differing:
        rest = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        notes.append(f"took different amounts in different reports: {', '.join(differing[:SHOWN])}{rest}")
    return notes


def _differs(measured: Measured) -> bool:
    spread = measured.values.get("requested", Spread(0, 0))
    return spread.low != spread.high
