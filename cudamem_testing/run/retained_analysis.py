"""Settles what a test retains, finds the holders of what is left, and judges it.

Runs only for a test that retains something, so its modules are imported in few runs. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cudamem_testing.guards import collect_garbage, collect_young_garbage, may_have_old_garbage
from cudamem_testing.model.blocks import Block
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.references import Doubt, Reach, Unsure
from cudamem_testing.model.rules import Ignored
from cudamem_testing.objects.places import KnownPlaces
from cudamem_testing.objects.search import HolderResult
from cudamem_testing.recorders.base import Owned
from cudamem_testing.run.entrusted import entrusted
from cudamem_testing.run.holders import BlockHolders, Holders
from cudamem_testing.run.running import Entrusted
from cudamem_testing.run.settle import Settlement, SettlingStep, settle
from cudamem_testing.snapshots.evidence import moment_of
from cudamem_testing.torch_api import capturing, compiler_pools
from cudamem_testing.verdicts.leaks import NOT_SEARCHED, freed_finding, leak_findings, workspace_findings
from cudamem_testing.verdicts.verdict import is_unclaimed
from cudamem_testing.windows.grow import Grown, by_size
from cudamem_testing.wording.findings import texts

if TYPE_CHECKING:
    from cudamem_testing.model.counters import Counters
    from cudamem_testing.recorders.base import Recorder
    from cudamem_testing.run.attribution import Attributions, Left
    from cudamem_testing.run.evidence import Evidence
    from cudamem_testing.run.running import Fixture, LeakSubject
    from cudamem_testing.run.small_leaks import SmallLeaks
    from cudamem_testing.windows.tracker import Tracker

BlockIdentity = tuple[int | None, int | None]
Moments = dict[Device, int | None]
GROWN_SHOWN = 3
DOUBTFUL = HolderResult(Reach.UNKNOWN, None, complete=False, doubt=Doubt(Unsure.LIBRARY))


class Reading(NamedTuple):
    """The blocks of the judged test on one device, with the counters that show whether they are current."""

    counters: Counters
    blocks: list[Block]

    def holds(self, now: Counters) -> bool:
        """Whether nothing was allocated or freed since."""
        then = self.counters
        return now.allocations is not None and (now.allocations, now.blocks) == (then.allocations, then.blocks)


class Looked(NamedTuple):
    """What was live before a step of settling, and the moments of the records from which its frees are read."""

    blocks: Mapping[Device, list[Block]]
    moments: Moments


class RetainedAnalysis:
    """Settles and judges; ``ignored`` applies the rules of the ini file, ``small`` gets what is too small to judge."""

    def __init__(
        self,
        tracker: Tracker,
        evidence: Evidence,
        attributions: Attributions,
        ignore_below: Callable[[Device], int],
        ignored: Ignored,
        small: SmallLeaks,
    ) -> None:
        self._tracker = tracker
        self._evidence = evidence
        self._attributions = attributions
        self._ignore_below = ignore_below
        self._ignored = ignored
        self._small = small
        self._workspaces: dict[Device, set[int]] = {}
        self._readings: dict[Device, Reading] = {}
        self._places = KnownPlaces()

    def judge(self, subject: LeakSubject, severity: Severity | None, left: Left) -> list[Finding]:
        """Settle, and return a finding for each cause of what is left; without a severity none of leaks. ``left`` is
        from the tracker's last read, which must be fresh; this leaves a fresh one. Libraries release their workspaces,
        and allocate them again outside any window.
        """
        self._readings.clear()
        if not any(self._blocks(device, subject) for device in left):
            return []  # the test freed blocks that existed before
        given_back = self._given_back(subject)
        if given_back and not self._left(subject):
            return given_back
        looked: dict[str, Looked] = {}

        def look(step: SettlingStep) -> None:
            moments = self._moments()
            blocks = {device: self._blocks(device, subject) for device in self._left(subject)}
            looked[step.name] = Looked(blocks, moments)

        holders = BlockHolders(self._places, subject.keepers())
        settlement = settle(self._steps(subject, holders), lambda: self._left(subject), look)
        if settlement.freed and subject.phases is not None:
            self._tracker.peek(subject.phases.whole)  # owners show what is left without a read
        remaining = {device: self._blocks(device, subject) for device in settlement.left}
        found = [*given_back, *self._freed(settlement, looked, remaining)]
        for device, blocks in remaining.items():
            self._attributions.of(device).enter(subject.owner.label, blocks)
            rest = blocks
            held: Holders = {}
            if self._is_judged(device, blocks):
                held = holders.of(device, blocks)
                blocks = self._still_live(device, subject, blocks, held)
                if not all(held.get(block.address or 0, NOT_SEARCHED).complete for block in blocks):
                    subject.unjudged.add(Kind.LEAK)
                workspaces, others, doubtful = self._find_workspaces(device, blocks, held, subject)
                rest = [block for block in blocks if block not in workspaces and _key(block) not in others]
                found += workspace_findings(workspaces)
                if doubtful:
                    held = {**held, **{block.address or 0: DOUBTFUL for block in rest if _key(block) in doubtful}}
                    subject.unjudged.add(Kind.LEAK)
            if self._is_judged(device, rest):
                held = entrusted(device, rest, held, subject)
                if severity is not None:
                    of_fixture = subject.fixture is not None
                    example_of = None if subject.examples is None else subject.examples.name_of
                    leaks = leak_findings(rest, held, severity, of_fixture=of_fixture, example_of=example_of)
                    leaks = self._ignored.keep(leaks)
                    if any(one.severity is Severity.FAIL for one in leaks):
                        some = frozenset((block.address, block.size) for block in rest)
                        subject.leaked.append(Entrusted(device, subject.owner, some))
                    found += leaks
            elif severity is not None and rest:  # maybe only since a library or a thread freed the others
                self._small.add(subject, device)
        return found

    def not_undone(self, fixture: Fixture, severity: Severity) -> list[Finding]:
        """Findings for what an ended fixture was expected to free, and is still live."""
        found = self.still_live(fixture.entrusted, severity, of_fixture=True)
        fixture.entrusted.clear()
        return found

    def still_live(self, left: Iterable[Entrusted], severity: Severity, *, of_fixture: bool = False) -> list[Finding]:
        """Findings for blocks that were left before, and are still live."""
        found: list[Finding] = []
        for device, owner, blocks in left:
            live = self._attributions.of(device).live_of(owner)
            still = [block for block in live if (block.address, block.size) in blocks]
            if still:
                held = BlockHolders(self._places).of(device, still)
                found += self._ignored.keep(leak_findings(still, held, severity, of_fixture=of_fixture))
        return found

    def exclude_workspaces(self, subject: LeakSubject) -> None:
        """Have libraries release workspaces if the test left nothing else: they do not count in its window."""
        self._readings.clear()
        self._given_back(subject)

    def _left(self, subject: LeakSubject) -> Left:
        return self._attributions.left(subject)

    def _still_live(
        self, device: Device, subject: LeakSubject, blocks: list[Block], held: Mapping[int, HolderResult]
    ) -> list[Block]:
        """Remove blocks that nothing holds and that a thread has freed meanwhile."""
        if all(held.get(block.address or 0, NOT_SEARCHED).reach is not Reach.NOT_HELD for block in blocks):
            return blocks
        live = {_key(block) for block in self._blocks(device, subject)}
        return [block for block in blocks if _key(block) in live]

    def _is_judged(self, device: Device, blocks: Sequence[Block]) -> bool:
        return sum(block.size for block in blocks) >= max(1, self._ignore_below(device))

    def _in_question(self, subject: LeakSubject) -> dict[Device, list[Block]]:
        """The blocks whose holders decide the verdict, by device; all of them if each byte counts."""
        blocks = {device: self._blocks(device, subject) for device in self._left(subject)}
        return {device: some for device, some in blocks.items() if subject.exact or self._is_judged(device, some)}

    def _given_back(self, subject: LeakSubject) -> list[Finding]:
        """Workspaces, if all that is left has sizes of workspaces: libraries are asked for them first.

        A block that a library frees when asked is its workspace, even if something else holds it. Any other
        block is settled as usual.
        """
        left = {device: self._blocks(device, subject) for device in self._left(subject)}
        if not all(
            blocks and {block.size for block in blocks} <= self._sizes(device) for device, blocks in left.items()
        ):
            return []
        found: list[Finding] = []
        for device, blocks in left.items():
            found += workspace_findings(self._asked(device, blocks, subject)[0])
        return found

    def _find_workspaces(
        self, device: Device, blocks: Sequence[Block], holders: Holders, subject: LeakSubject
    ) -> tuple[list[Block], Collection[BlockIdentity], Collection[BlockIdentity]]:
        """The blocks that no Python object holds and that a library frees when asked.

        Also the keys of blocks that another thread freed meanwhile, which are no leak, and of those that may be a
        workspace if libraries cannot be asked.
        """
        unclaimed = [block for block in blocks if _is_unclaimed(block, holders)]
        if not unclaimed:
            return [], (), ()
        given_back, others = self._asked(device, unclaimed, subject)
        doubtful: list[BlockIdentity] = []
        if not self._may_ask(device):
            doubtful += [_key(block) for block in unclaimed if block.size in self._sizes(device)]
        return given_back, others, doubtful

    def _asked(
        self, device: Device, blocks: Sequence[Block], subject: LeakSubject
    ) -> tuple[list[Block], Collection[BlockIdentity]]:
        """The blocks that libraries free when asked, and the keys of those that another thread freed. Libraries then
        allocate what they need, so that the next test need not; it is entered as theirs.
        """
        if not self._may_ask(device):
            return [], ()
        recorder = self._tracker.recorder(device)
        own = {block.address for block in self._blocks(device, subject)}
        moment = recorder.moment()
        before = self._live(device, subject)  # the search for holders took time
        recorder.release()
        after = self._live(device, subject)
        theirs = [size for address, size in before.items() if address not in after and address not in own]
        if theirs:  # workspaces from earlier tests
            self._exclude_freed(subject, device, Owned(sum(theirs), len(theirs)), "workspaces of libraries")
        others = {_key(block) for block in blocks if block.address not in before}
        gone = [block for block in blocks if block.address in before and block.address not in after]
        others.update(self._freed_by_others(device, gone, moment))
        given_back = [block for block in gone if _key(block) not in others]
        if given_back or theirs:
            self._attributions.of(device).take_workspaces_again(subject)
            self._readings.clear()
        return given_back, others

    def _may_ask(self, device: Device) -> bool:
        """Whether libraries can be asked for their workspaces: a live CUDA graph may use them in its replays.

        Each graph has a pool of its own as long as it lives. Graphs of the compiler allow it: it clears the workspaces
        itself.
        """
        if not self._tracker.recorder(device).tells_blocks:
            return False  # graphs are not known
        if not self._sizes(device):
            return True
        if capturing():
            return False
        replayed = self._evidence.replay(device)
        return replayed is None or not {*replayed.recording.pools} - compiler_pools()

    def _live(self, device: Device, subject: LeakSubject) -> dict[int | None, int]:
        """Addresses and sizes of live blocks: all, or the test's where blocks record owners.

        This reads the counters, because the window ends with the last read.
        """
        self._left(subject)
        return {block.address: block.size for block in self._attributions.of(device).live(subject)}

    def _sizes(self, device: Device) -> set[int]:
        if device not in self._workspaces:
            self._workspaces[device] = set(self._tracker.recorder(device).workspace_sizes())
        return self._workspaces[device]

    def _steps(self, subject: LeakSubject, holders: BlockHolders) -> list[SettlingStep]:
        """The steps of settling. Most garbage is young, and collecting that costs less than any search; all garbage is
        collected only if no root is known to reach every block. Where garbage of the test may be old by now, that is
        not asked of the whole heap: to collect costs less than to search.
        """
        recorders = self._tracker.recorders
        old = may_have_old_garbage(subject.collector)

        def may_be_garbage() -> bool:
            blocks = self._in_question(subject)
            return not holders.are_known(blocks) and (old or not holders.are_found(blocks))

        steps = [
            SettlingStep("waiting for the device", lambda: _each(recorder.finish for recorder in recorders)),
            SettlingStep(
                "collection of young garbage",
                collect_young_garbage,
                Verdict.CYCLE,
                needed=lambda: bool(self._in_question(subject)),
            ),
            SettlingStep("garbage collection", collect_garbage, Verdict.CYCLE, needed=may_be_garbage),
        ]
        if subject.release_frames is not None:
            steps.insert(0, SettlingStep("clearing the test's traceback", subject.release_frames, Verdict.TRACEBACK))
        return [replace(step, action=partial(self._apart, subject, step)) for step in steps]

    def _apart(self, subject: LeakSubject, step: SettlingStep) -> None:
        """What a step frees of others does not count in the test: memory of ended wider fixtures is theirs. Where
        blocks record owners, neither does garbage of earlier tests that was not collected since.
        """
        others = self._of_others(subject)
        before = [
            (fixture, way, way.blocks(fixture.subject))
            for fixture in subject.over
            for way in map(self._attributions.of, self._left(fixture.subject))
        ]
        step.action()
        for fixture, way, blocks in before:
            device, after = way.recorder.device, {*map(_key, way.blocks(fixture.subject))}
            gone = [block for block in blocks if _key(block) not in after]
            if not gone:
                continue
            freed = Owned(sum(block.size for block in gone), len(gone))
            self._exclude_freed(subject, device, freed, fixture.owner.label)
            if device in others:
                others[device] = others[device].without(freed)
            if freed.bytes >= self._ignore_below(device):
                fixture.freed.append(freed_finding(step.verdict, device, *freed, step.name, gone))
        for device, now in self._of_others(subject).items():
            gone_of_others = others[device].without(now)
            if gone_of_others.bytes > 0:
                self._exclude_freed(subject, device, gone_of_others, "garbage of earlier tests")

    def _exclude_freed(self, subject: LeakSubject, device: Device, freed: Owned, label: str) -> None:
        if subject.phases is not None:
            self._tracker.exclude_freed(subject.phases.whole, device, freed.bytes, freed.blocks, label)

    def _of_others(self, subject: LeakSubject) -> dict[Device, Owned]:
        """What is live now of everything but the test, on devices whose blocks record owners."""
        found = {way.recorder.device: way.others(subject) for way in self._attributions.all}
        return {device: owned for device, owned in found.items() if owned is not None}

    def _blocks(self, device: Device, subject: LeakSubject) -> list[Block]:
        """The test's own live blocks, read again only where something was allocated or freed meanwhile."""
        now = self._tracker.read(self._tracker.recorder(device))
        reading = self._readings.get(device)
        if reading is None or not reading.holds(now):
            reading = self._readings[device] = Reading(now, self._attributions.of(device).blocks(subject))
        return reading.blocks

    def grown(self, recorder: Recorder, start: Counters) -> Grown:
        """What a repeated step allocated since ``start`` and did not give back, with its holders."""
        replayed = self._evidence.replay(recorder.device)
        if replayed is None:
            return Grown()
        now = self._tracker.read(recorder)
        since = moment_of(replayed.recording, start, now)
        fresh = replayed.live_at(since=since, allocations=start.allocations).fresh().blocks
        holders = BlockHolders(self._places).of(recorder.device, fresh)
        findings = leak_findings(fresh, holders, Severity.NOTE)
        lines = texts(findings[:GROWN_SHOWN]).splitlines()
        return Grown(by_size([block.size for block in fresh]), tuple(lines))

    def _freed(
        self,
        settlement: Settlement,
        looked: Mapping[str, Looked],
        remaining: dict[Device, list[Block]],
    ) -> list[Finding]:
        found = []
        then = dict(zip(looked, [*(one.blocks for one in looked.values()), remaining][1:], strict=True))
        for freed in settlement.freed:
            if freed.owned.bytes < self._ignore_below(freed.device):
                continue
            before, after = looked[freed.step], then[freed.step].get(freed.device, [])
            rest = {*map(_key, after)}
            gone = [block for block in before.blocks.get(freed.device, []) if _key(block) not in rest]
            others = self._freed_by_others(freed.device, gone, before.moments.get(freed.device))
            if freed.verdict is Verdict.CYCLE:  # a thread of autograd frees its last tensors some time later
                others.update({_key(block): block.size for block in gone if _in_backward(block)})
            gone = [block for block in gone if _key(block) not in others]
            own = sum(block.size for block in gone)  # the counters include what was freed of earlier tests
            size = min(freed.owned.bytes - sum(others.values()), own)
            if size >= max(1, self._ignore_below(freed.device)):
                blocks = min((freed.owned.blocks or len(gone)) - len(others), len(gone))
                found.append(freed_finding(freed.verdict, freed.device, size, blocks, freed.step, gone))
        return found

    def _moments(self) -> Moments:
        return {recorder.device: recorder.moment() for recorder in self._tracker.recorders}

    def _freed_by_others(self, device: Device, gone: Sequence[Block], since: int | None) -> dict[BlockIdentity, int]:
        """The sizes, by key, of blocks that another thread happened to free since a moment.

        The history of a card does not record who frees: there a block counts as the thread's that allocated it.
        """
        if since is not None:
            elsewhere = self._tracker.recorder(device).freed_elsewhere(since) if gone else ()
            return {_key(block): block.size for block in gone if block.order in elsewhere}
        if threading.current_thread() is not threading.main_thread():
            return {}  # then the test's own stacks begin in a thread as well
        return {_key(block): block.size for block in gone if block.stack.in_thread}


def _key(block: Block) -> BlockIdentity:
    """The identity of a block: on a card, one that is older than its history has no order."""
    return block.order, block.address


def _in_backward(block: Block) -> bool:
    """Whether a thread of torch allocated it, on a card; a cycle that keeps such a block shows in its objects."""
    return not block.stack.frames and block.after is not None


def _each(actions: Iterable[Callable[[], None]]) -> None:
    for action in actions:
        action()


def _is_unclaimed(block: Block, holders: Holders) -> bool:
    holder = holders.get(-1 if block.address is None else block.address)
    return holder is not None and is_unclaimed(block.stack, holder)
