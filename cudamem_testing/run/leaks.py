"""The leak check at the end of a test: settle, and judge what is left.

Nothing here runs for a test that retains nothing: on the CPU its owner number says so, on CUDA equal counts of bytes
and blocks do. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.counters import Counters
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.findings import Finding, Severity
    from cudamem_testing.model.rules import Ignored, Rule
    from cudamem_testing.recorders.base import Recorder
    from cudamem_testing.run.attribution import Attributions
    from cudamem_testing.run.earlier import Earlier
    from cudamem_testing.run.evidence import Evidence
    from cudamem_testing.run.retained_analysis import RetainedAnalysis
    from cudamem_testing.run.running import Entrusted, Fixture, LeakSubject
    from cudamem_testing.run.small_leaks import SmallLeaks
    from cudamem_testing.unfinalized import Moment
    from cudamem_testing.windows.grow import Grown
    from cudamem_testing.windows.tracker import Tracker


class LeakCheck:
    """Judges what tests retain.

    ``ignored`` counts the findings that each of the ini file's rules ignored.
    """

    def __init__(
        self,
        tracker: Tracker,
        evidence: Evidence,
        attributions: Attributions,
        ignore_below: Callable[[Device], int],
        rules: Sequence[Rule] = (),
    ) -> None:
        self._tracker = tracker
        self._evidence = evidence
        self._attributions = attributions
        self._ignore_below = ignore_below
        self._rules = rules
        self.ignored: Counter[str] = Counter()
        #: What a subject retains on each device where it is not nothing, now or (not ``fresh``) at the last read.
        self.left = attributions.left

    @cached_property
    def small(self) -> SmallLeaks:
        """What is too small to be judged for one test; few tests leave any."""
        from cudamem_testing.run.small_leaks import SmallLeaks

        return SmallLeaks(self._attributions, self._ignore_below)

    @cached_property
    def _settling(self) -> RetainedAnalysis:
        """Settles what is left; its modules are imported by the first test that retains something."""
        from cudamem_testing.run.retained_analysis import RetainedAnalysis

        return RetainedAnalysis(
            self._tracker, self._evidence, self._attributions, self._ignore_below, self._ignored, self.small
        )

    @cached_property
    def _ignored(self) -> Ignored:
        from cudamem_testing.model.rules import Ignored

        return Ignored(self._rules, self.ignored)

    def not_undone(self, fixture: Fixture, severity: Severity) -> list[Finding]:
        """Findings for what an ended fixture was expected to free."""
        return self._settling.not_undone(fixture, severity) if fixture.entrusted else []

    def still_live(self, entrusted: Sequence[Entrusted], severity: Severity) -> list[Finding]:
        """Findings for what was left before, and is still live."""
        return self._settling.still_live(entrusted, severity)

    def of_run(self, severity: Severity) -> list[Finding]:
        """Findings at the end of the run, for what was too small to be judged for one test."""
        if "small" not in vars(self) or not self.small.any:
            return []
        return self.small.judge(severity, self._ignored)

    def made(self, fixture: Fixture) -> None:
        """A wider fixture was set up."""
        for way in self._attributions.all:
            way.made(fixture)

    @property
    def devices(self) -> list[Device]:
        """The devices that are measured."""
        return [recorder.device for recorder in self._tracker.recorders]

    def live(self, device: Device, subject: LeakSubject | None) -> Sequence[Block] | None:
        """The live blocks of a test, or all without one; ``None`` if single blocks are not recorded."""
        if not self._tracker.recorder(device).tells_blocks:
            return None
        if subject is not None:
            return self._attributions.of(device).blocks(subject)
        replayed = self._evidence.replay(device)
        return None if replayed is None else [*replayed.live_at()]

    def has_record(self, device: Device, subject: LeakSubject) -> bool:
        """Whether the blocks that a test has now on a device can be read when it ends."""
        return str(device) in self._attributions.recorded(subject)

    def record(self, subject: LeakSubject, lost: Callable[[], None], moments: Sequence[Moment]) -> Earlier:
        """The blocks that a test had at some moments; ``lost`` is called for each that is unknown."""
        from cudamem_testing.run.earlier import Earlier

        return Earlier(self._attributions, self._evidence, subject, moments, lost)

    def judge(self, subject: LeakSubject, severity: Severity | None) -> list[Finding]:
        """Settle, and return a finding for each cause of what is left; without a severity none of leaks. Requires a
        fresh read of the tracker and leaves one. Library workspaces are removed from the test's window.
        """
        left = self._attributions.left(subject, fresh=False)
        if not left:
            return []
        least = {device: 0 if subject.exact else self._ignore_below(device) for device in left}
        if not any(abs(owned.bytes) >= least[device] for device, owned in left.items()):
            if severity is not None:
                for device in left:
                    self.small.add(subject, device)
            return []
        return self._settling.judge(subject, severity, left)

    def exclude_workspaces(self, subject: LeakSubject) -> None:
        """Remove library workspaces from a test's window if it left nothing else; nothing is judged."""
        left = self.left(subject, fresh=False)
        if left and all(self._tracker.recorder(device).workspace_sizes() for device in left):
            self._settling.exclude_workspaces(subject)

    def grown(self, recorder: Recorder, start: Counters) -> Grown:
        """What a repeated step allocated since ``start`` and did not free, with its holders."""
        return self._settling.grown(recorder, start)
