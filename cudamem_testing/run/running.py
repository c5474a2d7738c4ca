"""The test that runs now. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cudamem_testing import unfinalized
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.override import NOTHING, Override
from cudamem_testing.model.records import Exhibit, TestRecord
from cudamem_testing.safe_access import is_one_of
from cudamem_testing.windows.owners import Owner

if TYPE_CHECKING:
    from cudamem_testing.model.baselines import Measured
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.changes import Comparison
    from cudamem_testing.model.curves import Curve
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.limits import Budget
    from cudamem_testing.model.references import Path
    from cudamem_testing.model.windows import SharedWindows, Window
    from cudamem_testing.run.allocator import Settings
    from cudamem_testing.windows.phases import Phases


class LeakSubject:
    """What is judged for leaks and cycles: the phases and owner of a test, and what wider fixtures did in it.

    ``release_frames`` clears the frames of a failed test. ``judged`` says which devices count. ``over`` are the wider
    fixtures that ended during the test and left something. ``exact`` is whether each byte that is left counts, as under
    a limit. ``undoing`` finds the wider fixture that will undo what a path leads to. ``keepers`` returns objects of
    pytest that may keep what the test made: its item, and the fixtures that it used. ``unjudged`` gets the kinds of
    findings of which there may be more than were found, ``leaked`` the blocks of findings that fail. ``collector`` is
    how many collections of older generations there were when it began, ``examples`` are those that a library made of
    the test. A wider fixture is a subject of its own, without phases.
    """

    __slots__ = (
        *("collector", "examples", "exact", "fixture", "fixtures", "judged", "keepers", "leaked", "over", "owner"),
        *("phases", "release_frames", "undoing", "unjudged"),
    )

    def __init__(
        self,
        phases: Phases | None,
        owner: Owner,
        fixtures: Sequence[Window],
        judged: Callable[[Device], bool] = lambda device: True,
        fixture: Fixture | None = None,
        keepers: Callable[[], Iterable[object]] = tuple,
    ) -> None:
        self.phases = phases
        self.owner = owner
        self.fixtures = fixtures
        self.release_frames: Callable[[], None] | None = None
        self.judged = judged
        self.over: Sequence[Fixture] = ()
        self.fixture = fixture
        self.exact = False
        self.keepers = keepers
        self.undoing: Callable[[Path], Fixture | None] = _undone_by_none
        self.unjudged: set[Kind] = set()
        self.leaked: list[Entrusted] = []
        self.collector = unfinalized.older_collections()
        self.examples: Examples | None = None


def _undone_by_none(path: Path) -> None:
    """No fixture undoes anything."""


class Examples(Protocol):
    """Runs of a test with inputs that a library generates (run/examples.py)."""

    @property
    def place(self) -> str:
        """What the name of a region begins with; empty outside of an example."""
        ...

    def judge_call(self, windows: Sequence[Window]) -> list[Finding]:
        """The limits on all examples together."""
        ...

    def explained(self, found: Sequence[Finding]) -> list[Finding]:
        """Findings of what the whole test retains, with the example that retained most."""
        ...

    def name_of(self, block: Block) -> str | None:
        """The example that allocated a block, if that is known."""
        ...


class Entrusted(NamedTuple):
    """Blocks that a test left on one device, by address and size."""

    device: Device
    owner: Owner
    blocks: frozenset[tuple[int | None, int]]


class Fixture:
    """A wider fixture, from its setup until its memory is judged after its finalizer.

    ``made`` are the blocks of its setup by address and size, where blocks carry no owner. ``windows`` are its own in
    the test that runs now. ``freed`` is what was freed of it while others were settled. ``entrusted`` are blocks of
    tests that its end is expected to free.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.made: dict[Device, set[tuple[int, int]]] = {}
        self.windows: list[Window] = []
        self.freed: list[Finding] = []
        self.entrusted: list[Entrusted] = []
        self.subject = LeakSubject(None, owner, (), fixture=self)
        self._counted: dict[Device, tuple[int, int]] = {}
        self._within: Phases | None = None

    def measured(self, running: ActiveTest | None, windows: Sequence[Window]) -> None:
        """It was set up or torn down during a test."""
        within = None if running is None else running.phases
        if within is not self._within:
            self._within = within
            self.windows.clear()
        self.windows += windows
        for window in windows:
            size, blocks = self._counted.get(window.device, (0, 0))
            self._counted[window.device] = (size + (window.retained or 0), blocks + (window.blocks or 0))
        if running is not None:
            running.foreign += windows
            self.subject.fixtures = running.foreign

    def is_even(self, device: Device) -> bool:
        """Whether its counters balance, apart from what tests left in it."""
        return not any(self._counted.get(device, ()))


class Asked(NamedTuple):
    """What the markers of a test ask for."""

    budgets: tuple[Budget, ...] = ()
    override: Override = NOTHING
    comparison: Comparison | None = None


class ActiveTest:
    """Its phases and what was found so far."""

    def __init__(
        self,
        asked: Asked,
        attempt: int,
        phases: Phases,
        owner: Owner,
        keepers: Callable[[], Iterable[object]] = tuple,
        fixtures: Callable[[], Mapping[str, int | None]] = dict,
    ) -> None:
        """``keepers`` are as in :class:`LeakSubject`; ``fixtures`` returns those used so far: their numbers by name."""
        # All attributes are set here: an instance that gets one later may keep them in a dictionary of its own, which a
        # search for what holds the error of a failed test meets.
        self.fixtures = fixtures
        self.nodeid = owner.label
        self.attempt = attempt
        self.phases = phases
        self.budgets = asked.budgets
        self.findings: list[Finding] = []
        self.measured: list[Measured] = []
        self.curves: tuple[Curve, ...] = ()
        self.exhibits: list[Exhibit] = []
        self.used: float | None = None
        self.notes: list[str] = []
        self.allocators: dict[str, Settings] = {}
        """The allocator's settings when each phase began, if cards are measured."""
        self.warming_up = False
        self.failure: BaseException | None = None
        self.skipped = False
        self.failed_call = False
        self.owner = owner
        self.foreign: list[Window] = []
        self.over: list[Fixture] = []
        self.earlier: list[Entrusted] = []
        """What earlier attempts of the test leaked."""
        self.override = asked.override
        self.comparison = asked.comparison
        self.compared = False
        """Whether its numbers are compared with a baseline, recorded or sent."""
        self.cycles: str | None = None
        """What a cycle does to the test; ``None`` is the default of each device."""
        self.subject = LeakSubject(phases, owner, self.foreign, self.override.covers, keepers=keepers)
        self.disown: Callable[[], object] = tuple

    @property
    def windows(self) -> list[Window]:
        """Those of its phases that have ended, and of what ran in them: whoever asks may add more."""
        return self.phases.windows

    @property
    def examples(self) -> Examples | None:
        """Those that a library made of it, if one did."""
        return self.subject.examples

    @property
    def place(self) -> str:
        """What the name of a region begins with: the current example."""
        return "" if self.examples is None else self.examples.place

    def add(self, windows: Sequence[Window], findings: Sequence[Finding]) -> bool:
        """A region inside the test has ended; whether its budget is enforced. Warm-up runs do not count."""
        if not self.warming_up:
            self.phases.windows.extend(windows)
            self.findings += findings
        return not self.warming_up

    def ended(self, error: BaseException, when: str, *, failed: bool, skipped: bool) -> None:
        """It ended with an error, or a part of it did; a skipped subtest does not skip the test.

        ``when`` is the reported phase, ``skipped`` whether the error only skips.
        """
        part = when == "call" and self.phases.name in ("setup", "call")
        if failed or not part:
            self.failure, self.skipped = error, skipped
        self.failed_call = self.failed_call or (failed and when == "call")

    @property
    def warmup_runs(self) -> int:
        """How often the body runs before the run that is measured."""
        asked = [one.warmup for one in self.budgets]
        return next(filter(None, asked), 0 if self.comparison is None else self.comparison.warmup)

    @contextmanager
    def warmed_up(self, body: Callable[[], object], expected: tuple[type[BaseException], ...]) -> Iterator[None]:
        """Call the body as often as ``warmup`` asks, then measure what this contains.

        An error becomes a finding that the body cannot be repeated, unless it is one of the ``expected``.
        """
        runs = self.warmup_runs
        run: int | None = None
        try:
            self.warming_up = True
            for run in range(1, runs + 1):  # noqa: B007 - which one has failed
                body()
            self.warming_up = False
            run = None
            yield
        except BaseException as error:
            if not is_one_of(error, *expected):
                self.findings.append(not_repeatable(run, runs))
            raise
        finally:
            self.warming_up = False

    @property
    def asks_what_is_left(self) -> bool:
        """Whether a limit or a baseline covers what the test retains."""
        compared = self.comparison
        if compared is None and not self.budgets:
            return False
        return any(limit.metric == "retained" for budget in self.budgets for limit in budget.limits) or (
            compared is not None and "retained" in compared.metrics
        )

    def record(self, windows: tuple[Window, ...], whole: tuple[Window, ...], shared: SharedWindows) -> TestRecord:
        """What the reports know of it; the outcome is known to the collector of reports alone."""
        unjudged = self.subject.unjudged
        fields = (
            self.nodeid,
            "unknown",
            self.attempt,
            windows,
            shared.of(whole),
            tuple(self.findings),
            self.used,
            tuple(self.notes),
            tuple(self.measured),
            tuple(sorted(kind.value for kind in unjudged)) if unjudged else (),
            self.curves,
            tuple(self.exhibits),
        )
        return tuple.__new__(TestRecord, fields)  # for every test: faster than its own constructor


def not_repeatable(run: int | None, runs: int) -> Finding:
    """The note on a body that failed in a warm-up run, or after ``runs`` of them."""
    from cudamem_testing.model.facts import NotRepeatable

    return Finding(Kind.OTHER, Verdict.NOT_REPEATABLE, Severity.NOTE, NotRepeatable(run, runs))
