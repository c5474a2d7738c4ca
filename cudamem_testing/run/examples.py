"""The examples of a test: runs of its body with inputs that a library generates, each a region of its own.

An example that breaks a limit is run once more, warm, before it fails: what the first call of a function allocates
once is no property of the input, and an example that fails only once would be called flaky. Limits of markers on the
call hold for each example. Counts are judged for each example alone, because their sum depends on the number of
examples; peaks are judged for all of them together as well. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from cudamem_testing import torch_api
from cudamem_testing.model.errors import exception_chain
from cudamem_testing.model.evidence import Shown
from cudamem_testing.model.facts import OverLimit
from cudamem_testing.model.findings import Finding, Severity
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.safe_access import is_a, is_one_of
from cudamem_testing.windows.regions import OverBudget

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.windows import Window
    from cudamem_testing.run.running import ActiveTest
    from cudamem_testing.verdicts.policy import Policy
    from cudamem_testing.windows.judge import Judge
    from cudamem_testing.windows.spans import Span
    from cudamem_testing.windows.tracker import Tracker

KEPT = 100
"""Examples whose windows are reported, besides that with the highest peak."""


@dataclass(frozen=True, slots=True)
class Example:
    """One that was run to its end: the windows of its region, and those of regions inside."""

    number: int
    arguments: str
    windows: tuple[Window, ...]
    inner: tuple[Window, ...] = ()

    def __str__(self) -> str:
        return f"{self.number}: {self.arguments}" if self.arguments else f"{self.number}"

    def window(self, device: Device) -> Window | None:
        """Its window on a device."""
        return next((one for one in self.windows if one.device == device), None)


@dataclass(slots=True)
class Examples:
    """Those of one test so far.

    ``rejected`` are the errors with which the library ends an example that does not count; ``drop`` clears the frames
    of an error.
    """

    running: ActiveTest
    tracker: Tracker
    judge: Judge
    policy: Policy
    rejected: tuple[type[BaseException], ...] = ()
    drop: Callable[[BaseException], None] = lambda error: None
    begun: int = 0
    ended: int = 0
    broken: int = 0
    cold: int = 0
    """Those over a limit in the first run alone."""
    inside: bool = False
    used: float | None = None
    """The largest used share of a limit."""
    _kept: list[Example] = field(default_factory=list)
    _highest: dict[Device, Example] = field(default_factory=dict)
    _retaining: list[Example] = field(default_factory=list)
    _last: tuple[Example, ...] = ()
    _found: list[Finding] = field(default_factory=list)
    _told: list[Finding] = field(default_factory=list)

    def runs(self, describe: Callable[[], str]) -> Iterator[Run]:
        """The runs of the next example: enter each with ``with``. A second one follows if the first broke a limit."""
        self.begun += 1
        run = Run(self, self.begun, describe)
        yield run
        if run.again:
            yield run

    @property
    def place(self) -> str:
        """What the name of a region inside the current example begins with; empty outside of one."""
        return f"example {self.begun}: " if self.inside else ""

    def add(self, example: Example, found: Sequence[Finding], *, broke: bool) -> None:
        """One has ended, with what it found."""
        self.ended += 1
        self._last = (example,)
        self.broken += broke
        self._found += found
        if self.running.budgets:
            shares = self.used, self.judge.used(self.running.budgets, example.windows)
            self.used = max((share for share in shares if share is not None), default=None)
        for window in example.windows:
            if self.is_highest(window):
                self._highest[window.device] = example
        if any(window.retained is None or window.retained > 0 for window in example.windows):
            self._retaining.append(example)
        if len(self._kept) < KEPT:
            self._kept.append(example)

    def is_highest(self, window: Window) -> bool:
        """Whether a window's peak is higher than those of all examples before."""
        example = self._highest.get(window.device)
        before = None if example is None else example.window(window.device)
        return before is None or (window.peak or 0) > (before.peak or 0)

    def finish(self, error: BaseException | None) -> None:
        """All have ended, with the ``error`` of the example that is reported if one failed: keep its findings alone."""
        running = self.running
        told = (
            [] if error is None else [one for part in exception_chain(error) for one in getattr(part, "findings", ())]
        )
        self._told = [one for one in self._found if one in told]
        running.findings += self._told or _first_of_each(self._found)
        if self._told and self.broken > 1:
            running.notes.append(f"{self.broken} examples broke a limit; the smallest one found is shown")
        if self.cold:
            running.notes.append(f"{count(self.cold, 'example')} exceeded a limit in the first run, not in a warm one")
        kept = {one.number: one for one in chain(self._kept, self._highest.values())}
        for one in kept.values():
            running.windows.extend((*one.windows, *one.inner))
        if self.ended > len(kept):
            some = f"the first {KEPT} and of that with the highest peak"
            running.notes.append(f"{self.ended} examples: the report has the windows of {some}")

    def judge_call(self, windows: Sequence[Window]) -> list[Finding]:
        """The limits on all examples together, but for those that the reported example broke."""
        budgets, judge = self.running.budgets, self.judge
        windows = [self._warm(one) for one in windows] if self.cold else windows
        told = [(one.fact.breach.limit, one.device) for one in self._told if isinstance(one.fact, OverLimit)]
        found = [
            self._explained(one, one.fact)
            for one in judge.call(budgets, windows, summed=False)
            if isinstance(one.fact, OverLimit) and (one.fact.breach.limit, one.device) not in told
        ]
        shares = self.used, judge.used(budgets, windows, summed=False)
        self.running.used = max((share for share in shares if share is not None), default=None)
        return found

    def _warm(self, window: Window) -> Window:
        """The window of a call with the highest peak of all examples, without first runs that did not count."""
        example = self._highest.get(window.device)
        highest = None if example is None else example.window(window.device)
        return window if highest is None else window._replace(peak=highest.peak)

    def _explained(self, finding: Finding, fact: OverLimit) -> Finding:

        example = None if finding.device is None else self._highest.get(finding.device)
        if example is None:
            return finding
        line = f"highest in example {example} ({count(self.ended, 'example')} judged together)"
        return replace(finding, fact=replace(fact, evidence=(Shown((line,)), *fact.evidence)))

    def explained(self, found: Sequence[Finding]) -> list[Finding]:
        """Findings of what the whole test retains: with the example that retained most."""
        return [self._with_largest(one) for one in found]

    def _with_largest(self, finding: Finding) -> Finding:

        windows = [(one, None if finding.device is None else one.window(finding.device)) for one in self._retaining]
        kept = [(window.retained or 0, one) for one, window in windows if window is not None]
        most, example = max(kept, key=lambda pair: pair[0], default=(0, None))
        if most <= 0 or not isinstance(finding.fact, OverLimit):
            return finding
        line = f"retained most in example {example}: {format_size(most)}"
        return replace(finding, fact=replace(finding.fact, evidence=(Shown((line,)), *finding.fact.evidence)))

    def name_of(self, block: Block) -> str | None:
        """The example that allocated a block; ``None`` if that is unknown, or none did."""
        if block.order is None:
            return None
        # Those that are kept or last may have left as much as they freed of what earlier ones had left.
        for example in chain(self._retaining, self._kept, self._last):
            window = example.window(block.device)
            if window is None or window.opened is None or window.closed is None:
                continue
            first, last = window.opened.allocations, window.closed.allocations
            if first is not None and last is not None and first < block.order <= last:
                return str(example)
        return None


class Run:
    """One run of an example, which is judged at its end."""

    def __init__(self, examples: Examples, number: int, describe: Callable[[], str]) -> None:
        self._examples = examples
        self._number = number
        self._describe = describe
        self._span: Span | None = None
        self._before = 0, 0
        self._cold: tuple[BaseException, list[Finding]] | None = None

    @property
    def again(self) -> bool:
        """Whether the first run was over a limit, so that a warm one decides."""
        return self._cold is not None

    def __enter__(self) -> None:
        examples, running = self._examples, self._examples.running
        self._before = len(running.windows), len(running.findings)
        self._span = examples.tracker.open(f"example {self._number}")
        examples.inside = True

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        __tracebackhide__ = True
        examples = self._examples
        examples.inside = False
        windows = () if self._span is None else examples.tracker.close(self._span)
        inner, found = self._taken()
        if error is not None and is_one_of(error, *examples.rejected):
            examples.drop(error)
            if self._cold is None:
                return False
        failure = error
        if error is None:
            failure, over = self._judged(windows)
            found += over
        if self._cold is None and failure is not None and _is_breach(failure):
            examples.drop(failure)
            self._cold = failure, found
            return True
        cold, self._cold = self._cold, None
        if cold is not None and not _is_breach(failure):
            if failure is None:
                examples.cold += 1
            else:  # its inputs cannot be used twice
                failure, found = cold
        example = Example(self._number, self._arguments(windows), windows, tuple(inner))
        examples.add(example, found, broke=_is_breach(failure))
        if failure is not None and failure is not error:
            raise failure
        return False

    def _taken(self) -> tuple[list[Window], list[Finding]]:
        """What its regions added to the test."""
        running, (windows, findings) = self._examples.running, self._before
        taken = running.windows[windows:], running.findings[findings:]
        del running.windows[windows:], running.findings[findings:]
        return taken

    def _judged(self, windows: Sequence[Window]) -> tuple[BaseException | None, list[Finding]]:
        """The limits of markers: the error, and what was found."""
        examples, budgets = self._examples, self._examples.running.budgets
        found = examples.judge.each(budgets, windows) if budgets else []
        found = examples.policy.judged(found) if found else []
        failing = [one for one in found if one.severity is Severity.FAIL]
        return (OverBudget(failing) if failing else None), found

    def _arguments(self, windows: Sequence[Window]) -> str:
        """The arguments in words, if a report may need them."""
        examples = self._examples
        asked = len(examples._kept) < KEPT or any(one.retained != 0 or examples.is_highest(one) for one in windows)
        return self._describe() if asked else ""


def _is_breach(error: BaseException | None) -> bool:

    return error is not None and (is_a(error, OverBudget) or torch_api.is_out_of_memory(error))


def _first_of_each(found: Sequence[Finding]) -> list[Finding]:
    """The first finding of each cause: a test that handles what its examples break has one in each."""
    first: dict[tuple[object, ...], Finding] = {}
    for one in found:
        first.setdefault((one.kind, one.cause, one.device), one)
    return [*first.values()]
