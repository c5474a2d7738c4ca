"""Merge the reports of shards into one, as if one run had written it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cudamem_testing.baselines.update import last_attempts
from cudamem_testing.model.baselines import Measured, fold
from cudamem_testing.model.blocks import count
from cudamem_testing.model.changes import Spread
from cudamem_testing.model.findings import Severity
from cudamem_testing.model.records import Environment, RunRecord

SHOWN = 3


def merge_runs(runs: Sequence[RunRecord]) -> RunRecord:
    """One run with the tests of all, in their order.

    Notes tell what only shows across shards: reports of different versions of torch, and tests that ran in several of
    them and took different amounts.
    """
    first = runs[0].environment
    devices = dict.fromkeys(device for run in runs for device in run.environment.devices)
    unenforced: Counter[str] = Counter()
    for run in runs:
        unenforced.update(run.unenforced)
    return RunRecord(
        Environment(tuple(devices), first.torch, first.allocator),
        tuple(test for run in runs for test in run.tests),
        tuple(fixture for run in runs for fixture in run.fixtures),
        tuple(finding for run in runs for finding in run.findings),
        tuple(dict.fromkeys((*(note for run in runs for note in run.notes), *_across(runs)))),
        dict(sorted(unenforced.items())),
        tuple(entry for run in runs for entry in run.ledger),
        tuple(one for run in runs for one in run.checked),
    )


def fails(run: RunRecord) -> bool:
    """Whether a test of the run failed, or a finding of its own does."""
    broken = any(test.outcome in ("failed", "error") for test in last_attempts(run.tests))
    return broken or any(finding.severity is Severity.FAIL for finding in run.findings)


def _across(runs: Sequence[RunRecord]) -> list[str]:
    notes = []
    versions = dict.fromkeys(str(run.environment.torch) for run in runs if run.environment.devices)
    if len(versions) > 1:
        notes.append(f"the reports are of different versions of torch: {', '.join(versions)}")
    by_test: dict[str, list[tuple[Measured, ...]]] = {}
    for run in runs:
        for test in last_attempts(run.tests):
            by_test.setdefault(test.nodeid, []).append(test.measured)
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
