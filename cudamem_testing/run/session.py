"""The session: measures the tests of one process, phase by phase, and judges each where it belongs.

A budget on the call is judged at the end of the call phase, one on what the whole test retains at the end of teardown.
The plugin decides when a phase begins and ends, and what a finding does to the test. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from cudamem_testing import torch_api
from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.devices import Device
from cudamem_testing.model.errors import exception_chain
from cudamem_testing.model.findings import GROUPED, Finding, Kind, Severity, Verdict
from cudamem_testing.model.override import NOTHING, Override, cycles_of
from cudamem_testing.model.records import Environment, FixtureRecord, TestRecord, Unchecked
from cudamem_testing.model.settings import Settings
from cudamem_testing.model.windows import SharedWindows
from cudamem_testing.recorders.base import untold
from cudamem_testing.recorders.choose import Recorders
from cudamem_testing.run.allocator import Allocator
from cudamem_testing.run.attribution import Attributions
from cudamem_testing.run.baselines import Baselines
from cudamem_testing.run.evidence import Evidence
from cudamem_testing.run.outside import OutsideCheck
from cudamem_testing.run.running import ActiveTest, Asked, Entrusted, Fixture
from cudamem_testing.safe_access import error_text
from cudamem_testing.verdicts.policy import Policy
from cudamem_testing.windows.defaults import ignored_below
from cudamem_testing.windows.owners import Owner, Owners
from cudamem_testing.windows.phases import Phases
from cudamem_testing.windows.tracker import Tracker

if TYPE_CHECKING:
    from cudamem_testing.model.changes import Comparison
    from cudamem_testing.model.limits import Budget
    from cudamem_testing.model.promises import PromisedSize
    from cudamem_testing.model.references import Path as ObjectPath
    from cudamem_testing.model.windows import Window
    from cudamem_testing.recorders.early import EarlyRecorder
    from cudamem_testing.run.cycles import CycleCheck
    from cudamem_testing.run.leaks import LeakCheck
    from cudamem_testing.run.pools import PoolCheck
    from cudamem_testing.run.promises import Promises
    from cudamem_testing.run.retained import Retained
    from cudamem_testing.windows.judge import Judge

UNMEASURED = "not measured: see the notes of the run"


class Ended(NamedTuple):
    """The results of a test: findings at its end, its record, and whether it had failed before."""

    found: list[Finding]
    after_failure: list[Finding]
    """For a test that failed in its call: what is shown below that failure."""
    record: TestRecord


class Session:
    """The state of one process that runs tests.

    ``harness`` is the code that calls tests, at which stacks end. ``without`` are files without baselines, ``sent`` is
    whether another process reads what is measured, and ``known`` the content of the file of known findings where it was
    read already. ``say`` gets lines for people, ``early`` is the recorder that was started before. A
    ``quiet`` session draws no bars below broken limits.

    Raises:
        ValueError: when known findings are broken.
        OSError: when they cannot be read.
    """

    def __init__(
        self,
        settings: Settings,
        root: Path,
        *,
        harness: tuple[CodeType, ...] = (),
        without: AbstractSet[str] = frozenset(),
        sent: bool = False,
        known: bytes | None = None,
        say: Callable[[str], None] = lambda line: None,
        early: EarlyRecorder | None = None,
        quiet: bool = False,
    ) -> None:
        self.settings = settings
        self.root = root
        self.tracker = Tracker()
        self.recorders = Recorders(settings.device, record=settings.stacks, harness=harness)
        self.owners = Owners(self.tracker)
        asked = {"recorded": settings.stacks, "reports": settings.reports, "trends": not quiet}
        self.evidence = Evidence(self.tracker, root, self.owners.names, **asked)
        self.attributions = Attributions(self.tracker, self.owners, self.evidence)
        self.outside = OutsideCheck(self.tracker, shared=sent)
        self.baselines = Baselines(settings, root, self.evidence, self.tracker, without, sent=sent)
        self.policy = Policy(settings, root, known)
        self.leaks: LeakCheck | None = None  # its modules need torch, and not every run has it
        self.cycles: CycleCheck | None = None
        self.pools: PoolCheck | None = None
        self.retained: Retained | None = None
        self.findings: list[Finding] = []
        self.fixtures: list[FixtureRecord] = []
        """Setups and teardowns of wider fixtures."""
        self.unchecked: Counter[Unchecked] = Counter()
        self.running: ActiveTest | None = None
        self.attempts: dict[str, int] = {}
        self._dumped: dict[str, int] = {}
        self._say, self._early = say, early
        self._leaked: dict[str, list[Entrusted]] = {}
        self._shared = SharedWindows()
        self._unmarked, self._unmarked_cycles = self.asked(), cycles_of(NOTHING, settings)
        self._cards: tuple[Device, ...] = ()
        self._allocator = Allocator()

    @property
    def environment(self) -> Environment:
        """The environment that is measured."""
        return self.recorders.environment

    @cached_property
    def judge(self) -> Judge:
        """Judges limits; made where there is one."""
        from cudamem_testing.windows.judge import Judge

        return Judge(self.evidence.explainer, self.evidence.draw, self.evidence.churn)

    @property
    def unenforced(self) -> Counter[str]:
        """How many budgets could not be enforced, by reason."""
        return self.judge.unenforced if "judge" in vars(self) else Counter()

    def asked(
        self,
        budgets: tuple[Budget, ...] = (),
        override: Override = NOTHING,
        comparison: Comparison | None = None,
    ) -> Asked:
        """What is asked of a test with these markers, with what the run asks of every test."""
        if not self.settings.enforce:
            budgets = ()
        elif self.settings.on and self.settings.budget:
            budgets = (*budgets, self.settings.budget)
        return Asked(budgets, override, comparison)

    def _ignore_below(self, device: Device) -> int:
        return ignored_below(device) if self.settings.ignore_below is None else self.settings.ignore_below

    def prepare(self) -> None:
        """Start the recorders once torch is imported; until then there is nothing to measure."""
        if not self.recorders.opened and torch_api.imported():
            with CollectorPaused():  # a collection during the imports would traverse all objects of torch
                self._prepare()

    def _prepare(self) -> None:
        from cudamem_testing.run.checks import checks

        self.tracker.attach(self.recorders.open(self._say))
        self._cards = tuple(one.device for one in self.tracker.recorders if one.device.is_card)
        self._allocator = Allocator(self._cards)
        if self._early is not None and all(one.device != Device("cpu") for one in self.tracker.recorders):
            self._early.close()
        self.baselines.identify()
        self.leaks, self.cycles, self.pools, self.retained = checks(
            self.settings, self.tracker, self.evidence, self.attributions, self._ignore_below, self.recorders.notes
        )

    def begin(
        self,
        nodeid: str,
        asked: Asked | None,
        *,
        limited: bool,
        keepers: Callable[[], Iterable[object]],
        fixtures: Callable[[], Mapping[str, int | None]],
        undoing: Callable[[ObjectPath], Fixture | None],
    ) -> None:
        """A test begins with its setup; ``asked`` is ``None`` without markers.

        ``limited`` is whether a marker or a fixture asks for numbers; the rest is as in :class:`ActiveTest` and
        :class:`Subject`.
        """
        if not self.recorders.opened:
            self.prepare()
        asked = self._unmarked if asked is None else asked
        owner = Owner(nodeid)
        attempt = self.attempts[nodeid] = self.attempts.get(nodeid, 0) + 1
        limited = limited or bool(asked.budgets)
        for recorder in self.tracker.recorders:
            recorder.wake(limited=limited)
        compared = self.baselines.compares(nodeid, asked.comparison)
        spans = limited or compared or self.evidence.curves is not None
        phases = Phases(self.tracker, "setup", self._shared, spans=spans)
        running = self.running = ActiveTest(asked, attempt, phases, owner, keepers, fixtures)
        running.compared = compared
        if attempt > 1 and self.settings.repeat == 1:
            running.earlier += self._leaked.get(nodeid, ())
        running.disown = self.owners.enter(owner)
        running.subject.undoing = undoing
        self.evidence.running = nodeid
        if self.settings.on and self.leaks is not None:
            if self.attributions.begun is not self.tracker.recorders:
                self.attributions.begin()
            if self._cards:
                self.outside.begin()
        unmarked = running.override is NOTHING
        running.cycles = self._unmarked_cycles if unmarked else cycles_of(running.override, self.settings)
        if self.cycles is not None and running.cycles != "off":
            self.cycles.begin(running.subject)

    def enter(self, running: ActiveTest, phase: str) -> None:
        """Begin another phase of the running test."""
        if not self.recorders.opened:
            self.prepare()  # the phase that ends may have been the first to import torch
        running.phases.next(phase)
        if self._cards:
            running.allocators[phase] = self._allocator.read()

    def judge_call(self, running: ActiveTest, *, failed: bool, skipped: bool) -> list[Finding]:
        """The call has ended: its findings on limits and baselines."""
        self.enter(running, "teardown")
        found: list[Finding] = []
        if running.budgets and running.examples is not None:
            found += running.examples.judge_call(running.phases.ended)
        elif running.budgets:
            calls = running.phases.ended
            found += self.judge.call(running.budgets, calls) if self.recorders.opened else ()
            running.used = self.judge.used(running.budgets, calls)
        passed = not failed and running.failure is None  # there is one if a subtest has failed
        if passed and running.compared and self.recorders.opened:
            found += self.baselines.call(running, running.phases.ended)
        if passed and running.findings:  # then the test has handled what its regions found
            running.findings[:] = map(_handled, running.findings)
        if found:
            found = self.policy.judged(found)
            running.findings += found
        if skipped:  # part of a test was measured, and it did not get to keep its promise: it fails nothing
            running.findings[:] = [of_skipped(one) for one in running.findings]
        return [] if skipped else found

    def judge_growth(self, running: ActiveTest, promised: PromisedSize) -> list[Finding]:
        """What breaks a promise of growth, once each size of a parametrized test has run."""
        if not self.settings.enforce or not self.recorders.opened:
            return []
        found = self.policy.judged(self._promises.add(promised, running.phases.ended))
        running.findings += found
        return found

    @cached_property
    def _promises(self) -> Promises:
        from cudamem_testing.run.promises import Promises  # few runs have any

        return Promises(self.evidence)

    def out_of_memory(self, error: BaseException, *, skipped: bool) -> list[Finding]:
        """What was live when memory ran out in the running test, if that is its error; it is added to the test."""
        if self.running is None or not any(map(torch_api.is_out_of_memory, exception_chain(error))):
            return []
        found = self.evidence.out_of_memory()
        found = [of_skipped(one) for one in found] if skipped else found
        self.running.findings += found
        return found

    def dump(self, folder: Path, test: str, nodeid: str) -> list[str]:
        """Write snapshots of a measured test at its first failure (a later one shows less): what was written or not.

        ``nodeid`` names the files; it may have a group that the id of the ``test`` has not.
        """
        attempt = self.attempts.get(test)
        if attempt is None or self._dumped.get(test) == attempt:
            return []
        self._dumped[test] = attempt
        said = self.evidence.dump(folder, nodeid)
        if self.running is not None:
            self.running.notes += said
        return said

    def drop(self, left: dict[str, Any]) -> None:
        """Drop the values of wider fixtures, as pytest is about to, outside the test's own window."""
        span = self.tracker.open("values of wider fixtures", exclusive=True)
        left.clear()
        windows = self.tracker.close(span)
        if self.running is not None:
            self.running.foreign += windows

    def end(self, running: ActiveTest, release: Callable[[], None] | None) -> Ended:
        """The test has ended; ``release`` clears the frames of a failed one."""
        with CollectorPaused():  # what it freed between a read and the verdict on it would count as retained
            running.phases.end()
            leaked = self._left(running, release)
            windows, whole = running.phases.close(fresh=not self.settings.on or running.failure is not None)
        limited = running.budgets or running.measured or running.failure is not None
        found = self._judge_whole(running, whole) if limited else []
        after_failure = found if running.failure is not None else []
        if leaked or found:
            found = self.policy.judged([*found, *leaked])
            running.findings += found
        if running.subject.leaked:
            self._leaked[running.nodeid] = [*running.earlier, *running.subject.leaked]
        if self.recorders.opened and not windows:
            running.notes.append(UNMEASURED)
        if self._cards:
            self._restore_allocator(running)
        if self.evidence.curves is not None and self.recorders.opened:
            self.evidence.curves.add(running, whole)
        record = running.record(windows, whole if self.tracker.recorders else (), self._shared)
        self.running = None
        running.disown()
        if not self.settings.on:
            for recorder in self.tracker.recorders:
                recorder.sleep()
        return Ended(found, after_failure, record)

    def _restore_allocator(self, running: ActiveTest) -> None:
        """Undo what the call changed in the allocator's settings and the teardown left."""
        before, after = running.allocators.get("call"), running.allocators.get("teardown")
        if before is not None and after is not None and before != after:
            running.notes += self._allocator.restore(before, after)

    def border(self, place: str) -> None:
        """The last test of a file has ended: find what no finding names."""
        if self.leaks is not None and self.settings.on:
            self.findings += [*self.policy.judged(self.attributions.border(place)), *self.outside.border(place)]

    def finish(self, *, runs_tests: bool) -> None:
        """All tests have ended: judge what they left together."""
        if "_promises" in vars(self):
            self.unchecked.update(self._promises.unchecked())
        asked = self.settings.leaks
        if not self.settings.on or not runs_tests:
            return
        if not asked == self.settings.cycles == "off":
            tests = sum(self.attempts.values())
            blind = [one for one in self.tracker.recorders if not one.device.pseudo and not one.tells_blocks]
            blind = [one for one in blind if not one.tells_storages]
            self.unchecked.update({Unchecked("test", f"leaks and cycles: {untold(one)}"): tests for one in blind})
        if self.leaks is None or asked == "off":
            return
        try:
            found = self.leaks.of_run(Severity.WARN if asked == "warn" else Severity.FAIL)
            self.findings += self.policy.judged(found)
        except Exception as error:  # an error must not stop the end of the run
            self.findings.append(_unjudged(error, Severity.WARN))

    def close(self) -> None:
        """Restore the process."""
        if self.cycles is not None:
            self.cycles.drop()  # of a test that was interrupted
        self.recorders.close()
        if self.pools is not None:
            self.pools.close()

    def _left(self, running: ActiveTest, release: Callable[[], None] | None) -> list[Finding]:
        """Findings on what the test retains and what its captures left, or that a failed card made judging
        impossible.
        """
        try:
            leaked: list[Finding] = []
            if self.retained is not None:  # including what wider fixtures left that ended during the test
                leaked = self.retained.judge(running, release)
            elif release is not None:
                release()
            if not self._cards or self.pools is None or not self.settings.on:  # other devices have no pools
                return leaked
            return self.pools.judge(running.nodeid, leaked)
        except Exception as error:  # the test ends in any case, and the next one is measured
            if self.cycles is not None:
                self.cycles.drop()
            running.subject.unjudged |= GROUPED
            return [_unjudged(error, Severity.FAIL if running.failure is None else Severity.NOTE)]

    def _judge_whole(self, running: ActiveTest, whole: Sequence[Window]) -> list[Finding]:
        """Findings on limits and baselines of what the test left.

        For a test that failed in its call they are warnings. A test with a debugger is not judged, because its frames
        are kept.
        """
        if running.failure is None:
            found = self.judge.whole(running.budgets, whole) if running.budgets else []
            if found and running.examples is not None:
                found = running.examples.explained(found)
            return [*found, *self.baselines.whole(running, whole)] if running.measured else found
        over = self.judge.whole(running.budgets, whole) if running.subject.exact else []
        return [replace(finding, severity=Severity.WARN) for finding in over]


def _handled(finding: Finding) -> Finding:
    return replace(finding, severity=Severity.NOTE) if finding.severity is Severity.FAIL else finding


def of_skipped(finding: Finding) -> Finding:
    """The finding of a test that skipped itself: a budget that it broke is a warning.

    An error that it caught is a note, and so is a lower bound: the test did not run to its end.
    """
    if finding.severity is not Severity.FAIL:
        return finding
    is_note = finding.kind is Kind.OOM or finding.verdict is Verdict.UNDER
    return replace(finding, severity=Severity.NOTE if is_note else Severity.WARN)


def _unjudged(error: Exception, severity: Severity) -> Finding:
    """A finding of what could not be judged."""
    from cudamem_testing.model.facts import NotJudged

    return Finding(Kind.OTHER, Verdict.UNATTRIBUTED, severity, NotJudged(error_text(error).partition("\n")[0]))
