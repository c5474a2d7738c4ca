"""The cycle check: judges what the collector found during a test and during its settling.

It starts no collection of its own: it watches automatic ones, those of the test and the one of settling. Garbage that
keeps no memory of the test is not examined. Only facts are taken inside a collection; they are judged and become text
at the end of the test. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cudamem_testing.cycles.watch import CycleWatch
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Finding, Kind
from cudamem_testing.safe_access import error_text

if TYPE_CHECKING:
    from cudamem_testing.cycles.allocations import Blocks
    from cudamem_testing.cycles.collect import ReferenceCycles
    from cudamem_testing.cycles.draft import Question
    from cudamem_testing.cycles.memory import Memory
    from cudamem_testing.model.rules import Rule
    from cudamem_testing.model.stacks import Stack
    from cudamem_testing.recorders.base import Recorder
    from cudamem_testing.recorders.cpu import CpuRecorder
    from cudamem_testing.run.evidence import Evidence
    from cudamem_testing.run.leaks import LeakCheck
    from cudamem_testing.run.running import LeakSubject
    from cudamem_testing.unfinalized import Counting, Unread
    from cudamem_testing.verdicts.cycles import CycleFindings
    from cudamem_testing.windows.tracker import Tracker

#: Processor time for taking facts in one test; later collections are not examined.
MOST_SECONDS = 2.0
NOT_CHECKED = "NOT CHECKED: reference cycles: collections cannot be watched"


class CycleCheck:
    """Watches tests, and judges the cycles that kept memory of a measured device."""

    def __init__(
        self,
        tracker: Tracker,
        leaks: LeakCheck,
        ignore_below: Callable[[Device], int],
        evidence: Evidence,
        notes: list[str],
        rules: Sequence[Rule] = (),
    ) -> None:
        self._tracker = tracker
        self._leaks = leaks
        self._ignore_below = ignore_below
        self._evidence = evidence
        self._notes = notes
        self._rules = rules
        self._watch = CycleWatch(self._question, self._note, draws=False)
        self._problems: list[dict[str, Any]] = []
        self._subject: LeakSubject | None = None
        #: Whether collections can be watched here.
        self.watches = True
        self._explained: set[Device | None] = set()
        self._small: Counter[str] = Counter()
        self._stacks: dict[int, Stack] = {}
        self._before = 0.0
        self._skipped = self._missed = self._cut = self._stopped = 0
        self._has_time = self._counts_now = False
        #: How a watch begins and ends where the test before had nothing to be judged; native functions.
        self._resume: Callable[[int, int], bool] | None = None
        self._pause: Callable[[], bool] = bool
        self._owned, self._unowned = Device("cpu"), 0

    @cached_property
    def _findings(self) -> CycleFindings:
        """Made for the first test with a cycle; few runs have one."""
        from cudamem_testing.cycles.source import Sources
        from cudamem_testing.model.rules import Ignored
        from cudamem_testing.verdicts.cycles import CycleFindings

        ignored = Ignored(self._rules, self._leaks.ignored)
        return CycleFindings(self._ignore_below, Sources(self._evidence.locator), ignored)

    @cached_property
    def _memory(self) -> Memory:
        from cudamem_testing.cycles.memory import Memory

        return Memory(self._evidence.locator)

    @cached_property
    def _counting(self) -> CpuRecorder | None:
        """The recorder whose blocks can be counted inside a collection."""
        return next(filter(None, map(_of_cpu, self._tracker.recorders)), None)

    @cached_property
    def _counts(self) -> Counting | None:
        devices = [recorder.device for recorder in self._tracker.recorders]
        functions = (0, 0) if self._counting is None else self._counting.addresses()
        if self._counting is None and any(device.is_cpu for device in devices):
            return None
        return self._watch.counting(functions, [str(device) for device in devices if not device.is_cpu])

    @cached_property
    def _limit(self) -> int:
        return min((self._ignore_below(recorder.device) for recorder in self._tracker.recorders), default=0)

    def begin(self, subject: LeakSubject) -> None:
        """A test begins."""
        # Every test does this: most of them with nothing but a native function.
        self._subject, resume = subject, self._resume
        if resume is None or not resume(subject.owner.numbers.get(self._owned, self._unowned), self._limit):
            self._begin_anew(subject)

    def _begin_anew(self, subject: LeakSubject) -> None:
        """A test begins, and the one before was judged, or there was none."""
        self._resume = None
        self._before = self._watch.seconds
        self._skipped = self._cut = self._stopped = 0
        self._has_time = False
        self._small.clear()
        self._stacks.clear()  # their numbers are valid until the recorder drops some, between tests
        self._problems.clear()
        if self.watches:
            was_counting = self._counts_now
            try:
                if not was_counting:  # else it is started when it counts
                    self._watch.start()
                counts = self._counts
            except Exception as error:  # no compiler, another build of Python, or another torch: it stays so
                self.watches = False
                self._notes.append(f"{NOT_CHECKED}: {error}")
                return
            self._counts_now = False
            if counts is not None:
                if self._counting is not None:
                    self._owned, self._unowned = self._counting.device, -1
                owner = subject.owner.numbers.get(self._owned, self._unowned)
                if owner < 0:
                    self._watch.start()
                    self._watch.look_at_all()
                else:
                    if not (was_counting and counts.resume(owner, self._limit)):
                        counts.start(owner, self._limit)
                    self._counts_now = True
                    self._resume, self._pause = counts.resume, counts.pause

    def begun(self, subject: LeakSubject) -> None:
        """The test is about to be settled; torch may have been imported during it."""
        if self._subject is None:
            self.begin(subject)
        self._resume = None
        self._has_time = True  # no code of the test waits for it
        self._watch.has_time()

    def drop(self) -> None:
        """The test is over, and its cycles are not judged."""
        self._watch.stop()
        self._subject = self._resume = None
        self._explained = set()
        with suppress(Exception):  # what could not be judged is reported by the caller
            self._watch.take()

    def is_quiet(self, subject: LeakSubject) -> bool:
        """Whether there was no collection in a test that is over and retains nothing; then it is judged."""
        if subject is not self._subject or (not self._pause() and self._watch.stop()):
            return False
        self._subject = None
        return True

    def judge(self, asked: str | None, failed: bool) -> list[Finding]:
        """The findings of the test that is over; ``asked`` is the severity that was asked for, ``None`` the default.

        A note with the cause ``UNEXPLAINED`` reports collections that were not examined: such a test may have more
        cycles.
        """
        ran, subject = self._watch.stop(), self._subject
        self._subject = self._resume = None
        self._explained = set()
        if not ran:
            return []
        record = None if subject is None else functools.partial(self._leaks.record, subject, self._note_stopped)
        found = self._watch.take(record)
        seen, self._missed = self._missed, self._watch.missed
        missed, unshown = self._missed - seen, self._watch.unshown()
        if subject is None or asked == "off":
            return []
        self._passed_over(missed, self._watch.unread())
        if not (self._problems or found):
            return []
        if self._counting is not None:
            self._small[str(self._counting.device)] += unshown
        judged = self._findings.of(found, self._small, subject.judged, asked, failed=failed)
        self._explained = {finding.device for finding in judged}
        return [*(self._findings.unexplained(**one) for one in self._problems), *self._findings.kept(judged)]

    def _passed_over(self, missed: int, unread: Unread) -> None:
        if self._skipped:
            self._problems.append({"seconds": MOST_SECONDS, "later": self._skipped})
        if missed:
            self._problems.append({"unseen": missed})
        least = max(self._limit, 1)
        if unread.collections and unread.bytes >= least:
            self._problems.append({"large": unread.collections, "freed": unread.bytes})
        cut = unread.cut if unread.cut_bytes >= least else 0
        if cut or unread.known or self._stopped:
            stopped = cut + unread.known + self._stopped
            self._problems.append({"stopped": stopped, "freed": unread.cut_bytes if cut else 0})
        if unread.kinds:
            self._problems.append({"left": unread.kinds})
        if self._cut:
            self._problems.append({"cut": self._cut})

    def completed(self, findings: Sequence[Finding], asked: str | None) -> Iterator[Finding]:
        """Findings of leaks, without the remark that a collection freed something if cycles explain it. These are the
        cycles judged last, including ignored ones. If none explains it, the cycle could not be read: that is a warning.
        """
        for finding in findings:
            if finding.kind is not Kind.CYCLE:
                yield finding
            elif finding.device not in self._explained and asked != "off":
                yield self._findings.unread(finding, asked)

    def region(self) -> ReferenceCycles:
        """Finds the cycles of a block inside a test; the test itself is not judged by them."""
        from cudamem_testing.run.region import Region

        self._resume = None  # it reads stacks
        return Region(self._watch, lambda: self._ask(None))

    def _note(self, error: BaseException) -> None:
        self._problems.append({"error": error_text(error)})

    def _question(self) -> Question | None:
        if self._watch.seconds - self._before > MOST_SECONDS:
            self._skipped += 1
            return None
        from cudamem_testing.cycles.draft import MOST_BEYOND, SOME_BEYOND

        return self._ask(self._subject)._replace(
            known_only=True,
            enough=self._is_enough,
            memory=self._memory,
            draws=False,
            beyond=MOST_BEYOND if self._has_time else SOME_BEYOND,
            cut=self._note_cut,
            seconds=None if self._has_time else self._watch.left(),
            stopped=self._note_stopped,
        )

    def _note_cut(self) -> None:
        self._cut += 1

    def _note_stopped(self) -> None:
        self._stopped += 1

    def _is_enough(self, kept: Mapping[str, int]) -> bool:
        """Whether garbage, with what was skipped before it, reaches the size from which cycles are judged."""
        passed_over = Counter(self._small)
        if self._counting is not None:
            passed_over[str(self._counting.device)] += self._watch.unshown()
        if any(size + passed_over[name] >= self._ignore_below(Device.parse(name)) for name, size in kept.items()):
            return True
        self._small.update(kept)
        return False

    def _ask(self, subject: LeakSubject | None) -> Question:
        from cudamem_testing.cycles.allocations import LaterBlocks, OwnedBlocks
        from cudamem_testing.cycles.draft import Question

        blocks = {str(one.device): self._blocks(one, subject) for one in self._tracker.recorders}
        asked = Question(
            self._evidence.locator,
            blocks.__contains__,
            lambda device, address: blocks[device].stack(address),
            lambda device, address: blocks[device].counts(address),
            blocks=None,
            later=any(isinstance(one, LaterBlocks) for one in blocks.values()),
        )
        owned = next((one for one in blocks.values() if isinstance(one, OwnedBlocks)), None)
        return asked if owned is None else asked._replace(blocks=owned.native, stack_of=owned.stack_of)

    def _blocks(self, recorder: Recorder, subject: LeakSubject | None) -> Blocks:
        from cudamem_testing.cycles.allocations import LaterBlocks, ListedBlocks, OwnedBlocks

        of_cpu = _of_cpu(recorder)
        if of_cpu is not None:
            owner = None if subject is None else subject.owner.numbers.get(of_cpu.device)
            return OwnedBlocks(of_cpu, owner, self._evidence.locator, self._stacks)
        if (
            subject is not None
            and self._counts_now
            and not self._has_time
            and self._leaks.has_record(recorder.device, subject)
        ):
            return LaterBlocks()
        return ListedBlocks(lambda: self._leaks.live(recorder.device, subject))


def _of_cpu(recorder: Recorder) -> CpuRecorder | None:
    """The recorder, if it is the one that finds a block in constant time."""
    if not recorder.tells_owners:
        return None
    from cudamem_testing.recorders.cpu import CpuRecorder

    return recorder if isinstance(recorder, CpuRecorder) else None
