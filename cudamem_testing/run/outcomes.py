"""Outcomes of the tests of a run, from the reports of their phases in one process or several. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cudamem_testing.model.nodeids import without_groups
from cudamem_testing.model.records import TestRecord, Unchecked

if TYPE_CHECKING:
    from cudamem_testing.run.gathered import Gathered

INCOMPLETE = "incomplete: its process crashed while it ran"
LOST = "what wider fixtures took and what was found between tests is missing"


class Outcomes:
    """Follows each test through its phases, and adds its records to a run with their outcomes.

    A worker is the id of a process, empty for this one. With ``each`` every worker runs all tests, and records name it.
    """

    def __init__(self, gathered: Gathered, *, each: bool) -> None:
        self._gathered = gathered
        self._each = each
        self.running: dict[tuple[str, str], str] = {}
        """Of tests that began and have not ended, by id and worker: where all phases have passed, ``passed``."""
        self._places: dict[str, list[int]] = {}
        """Where the records of each worker are."""
        self.seen: set[str] = set()
        """Ids of tests that have ended."""

    def phase(self, nodeid: str, worker: str, when: str, result: str, *, xfail: bool) -> None:
        """A phase of a test has ended; ``xfail`` is whether pytest expected it to fail."""
        key = nodeid, worker
        self.running[key] = outcome_after(self.running.get(key), when, result, xfail=xfail)

    def end(self, nodeid: str, worker: str, records: Sequence[TestRecord]) -> tuple[str, list[TestRecord]]:
        """The last phase of a test has ended: its outcome, and the records of its attempts with theirs."""
        self.seen.add(nodeid)
        if "@" in nodeid:
            self.seen.update(without_groups(nodeid))
        outcome = self.running.pop((nodeid, worker))
        if not records:
            return outcome, []
        *earlier, last = records
        ended = [last.ended(outcome)]
        if earlier:
            ended = [*(one.ended("rerun") for one in earlier), *ended]
        tests = self._gathered.tests
        if worker:
            ended = [one.but(notes=(*one.notes, f"worker {worker}")) for one in ended] if self._each else ended
            self._places.setdefault(worker, []).extend(range(len(tests), len(tests) + len(ended)))
        tests += ended
        return outcome, ended

    def crashed(self, nodeid: str) -> None:
        """A process ended while it ran a test: what the test was measured to take until then is lost."""
        self._gathered.tests.append(TestRecord(nodeid, "failed", notes=(INCOMPLETE,)))

    def lost(self, worker: str) -> None:
        """A worker has crashed: its tests are complete, its notes and findings between tests are lost."""
        places, tests = self._places.pop(worker, []), self._gathered.tests
        for place in places:
            test = tests[place]
            tests[place] = test.but(notes=(*test.notes, f"incomplete: {LOST} (worker {worker} crashed later)"))
        if places:
            self._gathered.left_unchecked(Unchecked("test", f"{LOST}: its worker crashed"), len(places))

    def unfinished(self) -> Iterable[str]:
        """Ids of tests that began and did not end."""
        for nodeid, _ in self.running:
            yield nodeid
            yield from without_groups(nodeid)


def outcome_after(before: str | None, when: str, result: str, *, xfail: bool) -> str:
    """The outcome of a test after the report of a phase; ``before`` is the one so far, ``xfail`` is pytest's word.

    A failed subtest, which pytest reports before the test, fails the test unless it runs again.
    """
    if result == "rerun":  # set by pytest-rerunfailures
        return "rerun"
    if before == "failed":
        return before
    if when == "call":
        if xfail:
            return "xfailed" if result == "skipped" else "xpassed"
        return result
    if result == "failed":
        return "error"
    if result == "skipped":
        return "xfailed" if xfail else "skipped"
    return before or "passed"
