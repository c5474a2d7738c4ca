"""Records of tests and runs, from which all reports are made. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from cudamem_testing.model.findings import Finding, Severity
from cudamem_testing.model.nodeids import file_of
from cudamem_testing.model.windows import Window

if TYPE_CHECKING:
    from cudamem_testing.model.baselines import Measured
    from cudamem_testing.model.checked import Checked
    from cudamem_testing.model.curves import Curve


ALL = "*"
"""All kinds of devices."""


class Environment(NamedTuple):
    """What was measured where: devices with their names, torch's version, the allocator's backend and settings."""

    devices: tuple[str, ...] = ()
    torch: str | None = None
    allocator: str | None = None


class Exhibit(NamedTuple):
    """A table or a text that a fixture of a failed test shows: its operators, its modules, a captured graph."""

    title: str
    text: str


class TestRecord(NamedTuple):
    """One run of one test (a tuple: two are created for every test).

    ``windows`` holds setup, call, teardown and the regions on every measured device, in the order in which they ended;
    ``whole`` one window per device from the start of setup to the end of teardown. ``budget_used`` is the largest
    share of an upper limit that the test took (1.0 is all of it), ``None`` without one. ``measured`` is what a baseline
    is compared with, for each device; empty if the test itself did not pass. ``unjudged`` are kinds of findings
    that may be incomplete: a search stopped early, or was not made. ``curves`` are its memory over time, if a
    report is written and it failed or is among the largest; ``exhibits`` are what fixtures of a failed test show.
    """

    nodeid: str
    outcome: str = "unknown"
    attempt: int = 1
    windows: tuple[Window, ...] = ()
    whole: tuple[Window, ...] = ()
    findings: tuple[Finding, ...] = ()
    budget_used: float | None = None
    notes: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = ()
    unjudged: tuple[str, ...] = ()
    curves: tuple[Curve, ...] = ()
    exhibits: tuple[Exhibit, ...] = ()

    def window(self, name: str = "call", device: str | None = None) -> Window:
        """The window of that name; for the first device unless one is named.

        Raises:
            KeyError: when there is none.
        """
        for window in self.windows:
            if window.name == name and device in (None, str(window.device)):
                return window
        raise KeyError(f"{self.nodeid} has no window {name!r} on {device or 'any device'}")

    @property
    def failing(self) -> tuple[Finding, ...]:
        """The findings that fail the test."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.FAIL)

    def ended(self, outcome: str) -> TestRecord:
        """The record with its outcome."""
        return tuple.__new__(TestRecord, (self.nodeid, outcome, *self[2:]))  # for every test: faster than a replacement

    def but(self, **changes: object) -> TestRecord:
        """A copy with other values."""
        return self._replace(**changes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return "\n".join((f"{self.nodeid} {self.outcome}", *map(str, (*self.windows, *self.findings))))


TestRecord.__test__ = False  # type: ignore[attr-defined] # pytest would collect it where it is imported


class FixtureRecord(NamedTuple):
    """The setup or the teardown of a fixture wider than one test."""

    name: str
    scope: str
    first_used_by: str
    windows: tuple[Window, ...] = ()


class LedgerEntry(NamedTuple):
    """What one test or fixture left live on one device when the run ended, in bytes and blocks."""

    device: str
    owner: str
    bytes: int
    blocks: int


class RunCoverage(NamedTuple):
    """How much of a project a run covered: only there does the absence of a finding mean something.

    ``paths`` are folders and files relative to rootdir whose tests were all collected, and run, except for ``left_out``
    (ids of tests, and of files and classes that could not be collected); empty if the run did not finish.
    ``kinds`` are the kinds of findings that each test was checked for, ``ignored`` the bytes below which none was
    judged, by kind of device (``{"cpu": 65536}``), or for all (``{"*": 1048576}``).
    """

    paths: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    ignored: Mapping[str, int] = MappingProxyType({})

    def judged_from(self, device: str) -> int:
        """The fewest bytes of a finding that was judged on a kind of device."""
        return max(self.ignored.get(device, 0), self.ignored.get(ALL, 0))

    def covers(self) -> Callable[[str], bool]:
        """A function that says whether all tests of a file ran; also for a file that no longer exists."""
        partly = {*map(file_of, self.left_out)}
        return lambda file: file not in partly and any(PurePosixPath(file).is_relative_to(path) for path in self.paths)


class Unchecked(NamedTuple):
    """A requested check that was not made: a word for ``what`` (``baseline``, ``test``), and why."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class Unseen(NamedTuple):
    """Causes of known findings that a run should have met and did not, each with its device; ``flag`` removes them."""

    flag: str = ""
    causes: tuple[str, ...] = ()


class RunRecord(NamedTuple):
    """Everything that a run measured; ``checked`` are its checks of expected texts, if a report is written.

    ``failures`` are other reasons why the run failed, one line each: a worker that crashed, an interrupt,
    an internal error, a file that could not be collected, a test that failed and was not measured. ``unenforced``
    counts budgets that were not enforced by reason; ``unchecked`` counts other checks that were requested and not made.
    ``flags`` are those that a command to rerun one test needs. ``unseen`` holds for this run alone.
    """

    environment: Environment = Environment()
    tests: tuple[TestRecord, ...] = ()
    fixtures: tuple[FixtureRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    unenforced: Mapping[str, int] = MappingProxyType({})
    ledger: tuple[LedgerEntry, ...] = ()
    checked: tuple[Checked, ...] = ()
    extent: RunCoverage = RunCoverage()
    failures: tuple[str, ...] = ()
    unchecked: Mapping[Unchecked, int] = MappingProxyType({})
    flags: tuple[str, ...] = ()
    unseen: Unseen = Unseen()

    @property
    def all_findings(self) -> list[tuple[str, Finding]]:
        """Every finding with the id of its test; an empty id for the run's own."""
        found = [(test.nodeid, finding) for test in self.tests for finding in test.findings]
        return found + [("", finding) for finding in self.findings]

    @property
    def has_findings(self) -> bool:
        """Whether a test has a finding, or one of the run itself fails."""
        failing = any(finding.severity is Severity.FAIL for finding in self.findings)
        return failing or any(test.findings for test in self.tests)

    @property
    def has_failing_tests(self) -> bool:
        """Whether a test failed, or a finding of the run itself fails."""
        failed = any(test.outcome in ("failed", "error") for test in self.tests)
        return failed or any(finding.severity is Severity.FAIL for finding in self.findings)

    @property
    def failed(self) -> bool:
        """Whether the run failed, by its tests and findings or for another reason."""
        return self.has_failing_tests or bool(self.failures)

    @property
    def is_partly_unchecked(self) -> bool:
        """Whether a requested check was not made, or a measurement is incomplete or missing."""
        partly = (
            (not test.windows and test.notes) or not all(one.complete for one in test.windows) for test in self.tests
        )
        return bool(self.unenforced or self.unchecked) or any(partly)

    def noting(self, note: str) -> RunRecord:
        """A copy with one more note."""
        return self._replace(notes=(*self.notes, note))

    def named(self, name: object) -> RunRecord:
        """A copy as one of several reports: each failure says which one it is from."""
        return self._replace(failures=tuple(f"{name}: {one}" for one in self.failures))

    def test(self, name: str) -> TestRecord:
        """The last record of the test whose id ends with ``name``.

        Raises:
            KeyError: when there is none.
        """
        for record in reversed(self.tests):
            if record.nodeid.endswith(name):
                return record
        raise KeyError(f"no test {name!r} among {[record.nodeid for record in self.tests]}")
