"""Runs a step once for each of its allocations, with that one failing, and judges what each failure leaves.

Two runs warm up (they fill caches, and optimizers make their state), one is counted; its places are tried in a fixed
order. After each failure the step runs again without one, so that every failure starts from a complete run. What a
complete run leaves as well (gradients, a cache with one entry for each size) is no fault. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from cudamem_testing import torch_api
from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.facts import Retained
from cudamem_testing.model.failing import Sweep, Wanted
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.recovery import HalfChanged, NotRecovered, NotRestored, NotTried
from cudamem_testing.model.retained import Allocation
from cudamem_testing.oom.places import (
    Request,
    allocated_since,
    in_order,
    number_of_places,
    requests_of_calls,
    requests_of_record,
    with_operators,
)
from cudamem_testing.oom.reach import Reached
from cudamem_testing.oom.state import Gradients, NamedState, Snapshot, StateChange, half_changed, written_in_part
from cudamem_testing.originals import Original
from cudamem_testing.run.left_behind import LeftBehind, Live, inner
from cudamem_testing.safe_access import error_text
from cudamem_testing.snapshots.evidence import moment_of
from cudamem_testing.torch_api.ambient import Setting, settings
from cudamem_testing.windows.failing import DoesNotRecover

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.counters import Counters
    from cudamem_testing.recorders.base import Recorder, Trap
    from cudamem_testing.snapshots.evidence import Records
    from cudamem_testing.snapshots.record import Recording
    from cudamem_testing.windows.regions import Tell
    from cudamem_testing.windows.tracker import Tracker

SHOWN = 3
PROGRESS_SECONDS = 2.0
#: Settings that only their owner can restore: later runs would differ.
_STOPS = ("inference mode", "torch function modes", "torch dispatch modes")


@dataclass(frozen=True, slots=True)
class Options:
    """How a step is tried.

    ``sample`` is how many of its allocations fail at most, ``seconds`` the limit for all runs; ``None``: no limit.
    """

    check: Callable[[], object] | None = None
    sample: int | None = None
    seconds: float | None = None
    progress: Callable[[str], object] | None = None


class Before:
    """What a run may change, at its start."""

    def __init__(self, state: Snapshot, gradients: Snapshot, ambient: Sequence[Setting], live: Live) -> None:
        self.state, self.gradients, self.settings, self.live = state, gradients, ambient, live


class SweepRun:
    """One sweep over a step. ``state`` are objects by name, ``gradients`` what has gradients that are judged."""

    def __init__(
        self,
        records: Records,
        tracker: Tracker,
        recorder: Recorder,
        step: Callable[[], object],
        options: Options,
        state: Mapping[str, object],
        gradients: object,
    ) -> None:
        self._records, self._tracker, self._recorder, self._step = records, tracker, recorder, step
        self._options = options
        self._state = NamedState(state)
        self._gradients = Gradients({} if gradients is None else {"gradients": gradients})
        self._reached = Reached(step, state)
        self._usual_state: Mapping[str, StateChange] = {}
        self._usual_gradients: Mapping[str, StateChange] = {}
        self._usual_writes: Mapping[str, int] = {}
        self._usual_settings: frozenset[str] = frozenset()
        self._counted: Trap | None = None
        self._unreached = 0
        beside = step, *state.values()
        named = partial(_addresses, self._state, self._gradients)
        self._left = LeftBehind(tracker.recorders, records.locator, named, beside)
        self._stopped: str | None = None

    def run(self) -> Sweep:
        """Try the allocations.

        Raises:
            ValueError: if the step allocates nothing.
        """
        started = Original.monotonic()
        for _ in range(2):
            self._call()
        self._check_first()
        requests = self._count()
        if not requests:
            raise ValueError(f"the step allocates nothing on {self._recorder.device}: no allocation can fail")
        order = in_order(requests)[: self._options.sample]
        faults: dict[tuple[object, ...], NotRecovered] = {}
        tried: list[Request] = []
        told = started
        for request in order:
            now = Original.monotonic()
            if self._options.seconds is not None and now - started > self._options.seconds:
                self._stopped = f"the limit of {self._options.seconds:g} s was reached"
            if self._stopped is not None:
                break
            if self._options.progress is not None and now - told > PROGRESS_SECONDS:
                told = now
                self._options.progress(f"{len(tried)} of {len(order)} allocations tried, {now - started:.0f} s")
            fault = self._fail(request, len(requests))
            tried.append(request)
            if fault is not None and not fault.is_empty:
                key = (request.stack, *_kinds(fault))
                known = faults.get(key)
                faults[key] = fault if known is None else replace(known, times=known.times + 1)
        named = self._named(requests) if faults else requests
        found = [self._finding(one, named[one.number - 1]) for one in faults.values()]
        if self._stopped is not None:
            found.append(self._not_tried(len(tried), len(requests)))
        return Sweep(
            self._recorder.device,
            len(requests),
            len(tried),
            number_of_places(requests),
            number_of_places(tried),
            Original.monotonic() - started,
            tuple(found),
            tuple(self._notes(len(tried), requests)),
        )

    def _call(self) -> None:
        self._step()  # its result is dropped at once

    def _check_first(self) -> None:
        """The caller's check must hold without a failure: its error is the caller's."""
        if self._options.check is not None and self._options.check() is False:
            raise ValueError("check() is false after a run without a failure")

    def _look(self) -> Before:
        state, gradients = self._state.read(), self._gradients.read()
        return Before(state, gradients, [*settings(), *self._reached.settings()], self._left.look())

    def _count(self) -> list[Request]:
        """A complete run: its allocations, and what it changes and leaves."""
        before = self._look()
        start = self._tracker.read(self._recorder)
        with CollectorPaused():
            self._counted = trap = self._recorder.trap(Wanted())
            try:
                self._call()
            finally:
                trap.lift()
            recorded = self._recorded(start)  # before anything else allocates
            self._left.allow(before.live, frozenset() if recorded is None else allocated_since(*recorded))
        found = self._requests(trap, recorded)
        self._usual_writes = self._state.writes(before.state)
        self._usual_state = self._state.changes(before.state)
        self._usual_gradients = self._gradients.changes(before.gradients)
        self._usual_settings = frozenset(one.what for one in self._unlike(before))
        return [replace(one, stack=inner(one.stack)) for one in found]

    def _recorded(self, start: Counters) -> tuple[Recording, int] | None:
        """The record of the device and the moment of ``start`` in it; ``None`` if no events are recorded."""
        replayed = self._records.replay(self._recorder.device)
        if replayed is None:
            return None
        recording = replayed.recording
        return recording, moment_of(recording, start, self._tracker.read(self._recorder))

    def _requests(self, trap: Trap, recorded: tuple[Recording, int] | None) -> list[Request]:
        """What the counted run requested; without stacks if no events are recorded."""
        if trap.calls is not None:
            return requests_of_calls(trap.calls, self._records.locator)
        number = trap.look().requests
        if recorded is None:
            return [Request(place, 0) for place in range(1, number + 1)]
        return requests_of_record(*recorded, number)

    def _fail(self, request: Request, of: int) -> NotRecovered | None:
        """Run with one allocation failing; what did not recover. ``None`` if the run did not come to it."""
        before = self._look()
        raised, again = None, None
        handled = False
        with CollectorPaused():
            trap = self._recorder.trap(Wanted(nth=request.number), self._counted)
            try:
                self._call()
                handled = True
            except Exception as error:
                raised = _replaced(error)
            finally:
                trap.lift()
            if not trap.look().failed:
                self._unreached += 1
                return None
            left = self._left.unexplained(before.live)
            half = self._half(before)
            part = None if handled or half else written_in_part(self._state.writes(before.state), self._usual_writes)
            unlike = self._restore(before)
            check = self._checked()
            replaces = handled and bool(left)  # what it has made in another way, the next run replaces
            if replaces:
                again = self._again()
                left = self._left.still_live(left)
            found, cycled = self._left.judge(left)
        if not replaces:
            again = self._again()
        fault = NotRecovered(Allocation.of(request.stack), request.size, request.number, of)
        fault = replace(fault, raised=raised, half=half, written=part, settings=unlike, check=check, again=again)
        return _with_left(fault, found, cycled)

    def _half(self, before: Before) -> tuple[HalfChanged, ...]:
        state = half_changed(self._state.changes(before.state), self._usual_state)
        gradients = half_changed(self._gradients.changes(before.gradients), self._usual_gradients, may_go=True)
        return tuple(one for one in (state, gradients) if one is not None)

    def _unlike(self, before: Before) -> list[NotRestored]:
        then = {one.name: one.value for one in before.settings}
        return [
            NotRestored(one.name, str(then[one.name]), str(one.value))
            for one in (*settings(), *self._reached.settings())
            if one.name in then and one.value != then[one.name] and one.name not in self._usual_settings
        ]

    def _restore(self, before: Before) -> tuple[NotRestored, ...]:
        """What a failure left set, which is set back as far as possible, so that the next run is like the first."""
        found = self._unlike(before)
        names = {one.what for one in found}
        for setting in before.settings:
            if setting.name in names and setting.restore is not None:
                setting.restore(setting.value)
        stops = [one.what for one in found if one.what in _STOPS]
        if stops:
            self._stopped = f"{stops[0]} was left changed, and cannot be restored from outside"
        return tuple(found)

    def _checked(self) -> str | None:
        if self._options.check is None:
            return None
        try:
            return "it returned False" if self._options.check() is False else None
        except Exception as error:
            return _short(error)

    def _again(self) -> str | None:
        try:
            self._call()
        except Exception as error:
            return _short(error)
        return None

    def _named(self, requests: list[Request]) -> list[Request]:
        """The requests with their operators, from one more run."""
        if requests[0].operator is not None:
            return requests
        trap = self._recorder.operators()
        try:
            self._call()
        except Exception:
            return requests
        finally:
            trap.lift()
        calls = [(call, inner(self._records.locator.stack(call.frames))) for call in trap.calls or ()]
        return with_operators(requests, calls)

    def _finding(self, fault: NotRecovered, request: Request) -> Finding:
        first = fault.left[0] if fault.left else None
        return Finding(
            Kind.OOM,
            Verdict.NOT_RECOVERED,
            Severity.FAIL,
            replace(fault, operator=request.operator),
            bytes=fault.left_bytes or None,
            device=self._recorder.device,
            allocated=request.stack.line,
            holder=None if first is None or first.path is None else first.path.text,
            cause=f"oom | {Verdict.NOT_RECOVERED.value} | {request.stack.place}",
        )

    def _not_tried(self, tried: int, of: int) -> Finding:
        fact = NotTried(tried, of, self._stopped or "")
        device = self._recorder.device
        return Finding(Kind.OTHER, Verdict.NOT_RECOVERED, Severity.WARN, fact, device=device)

    def _notes(self, tried: int, requests: Sequence[Request]) -> list[str]:
        notes = []
        if tried < len(requests):
            why = self._stopped or f"sample={self._options.sample}"
            notes.append(f"{len(requests) - tried} of {len(requests)} allocations were not tried: {why}")
        if self._unreached:
            notes.append(f"{self._unreached} runs made fewer allocations than the counted one: nothing failed in them")
        unknown = sum(1 for one in requests if not one.stack.frames)
        if unknown:
            notes.append(f"{unknown} allocations have no Python stack, and count as one place")
        if self._state.values_unknown or self._gradients.values_unknown:
            how = "state counts as changed if it was written in place, unless through .data"
            notes.append(f"the card has no values to compare: {how}")
        return notes + self._left.notes()


def sweep(
    records: Records,
    tracker: Tracker,
    tell: Tell | None,
    recorder: Recorder,
    step: Callable[[], object],
    *,
    check: Callable[[], object] | None,
    sample: int | None,
    seconds: float | None,
    progress: Callable[[str], object] | None,
    gradients: object,
    state: Mapping[str, object],
) -> Sweep:
    """See ``Memory.fail_each_allocation``.

    Raises:
        DoesNotRecover: with the places that did not.
    """
    __tracebackhide__ = True
    options = Options(check, sample, seconds, progress)
    found = SweepRun(records, tracker, recorder, step, options, state, gradients).run()
    enforced = tell is None or not found.findings or tell((), found.findings)
    if enforced and any(one.severity is Severity.FAIL for one in found.findings):
        raise DoesNotRecover(found)
    return found


def _addresses(*states: NamedState) -> frozenset[int]:
    """The addresses of all named tensors; no method, which would make a cycle that keeps the step."""
    return frozenset().union(*(state.addresses() for state in states))


def _kinds(fault: NotRecovered) -> tuple[object, ...]:
    """What is the same for all faults of one finding, besides their place."""
    holder = fault.left[0].path.stable if fault.left and fault.left[0].path is not None else bool(fault.left)
    names = tuple(one.what for one in fault.settings)
    half = len(fault.half), fault.written is not None
    return holder, fault.cycles > 0, half, names, fault.raised, fault.check, fault.again


def _with_left(fault: NotRecovered, left: Sequence[Finding], cycled: Sequence[Block]) -> NotRecovered:
    facts = [one.fact for one in left if isinstance(one.fact, Retained)]
    lines = dict.fromkeys(block.stack.line for block in sorted(cycled, key=lambda block: -block.size))
    return replace(
        fault,
        left=tuple(fact.shown[0] for fact in facts[:SHOWN]),
        count=sum(fact.count for fact in facts),
        left_bytes=sum(one.bytes or 0 for one in left),
        cycles=sum(block.size for block in cycled),
        cycle_lines=tuple(lines)[:SHOWN],
    )


def _replaced(error: Exception) -> str | None:
    """The text of an error that hides that memory ran out; ``None`` for one that says so, or names it as its cause."""
    cause: BaseException | None = error
    while cause is not None:
        if torch_api.is_out_of_memory(cause) or "out of memory" in error_text(cause).lower():
            return None
        cause = cause.__cause__
    return _short(error)


def _short(error: BaseException) -> str:
    return error_text(error).partition("\n")[0]
