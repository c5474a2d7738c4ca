"""The cycle check: what the collector found during a test and when what it retained was settled.

Nothing is collected for its sake: automatic collections, those of the test's own and the one of settling are watched,
and garbage without a tensor is passed over at once. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType

from cudamem_testing.cycles import Cycle, CycleWatch, ReferenceCycles
from cudamem_testing.cycles.explain import Question
from cudamem_testing.cycles.results import merged
from cudamem_testing.leaks.verdicts import MEANINGS
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Locator, Stack
from cudamem_testing.plugin.leaks import LeakCheck
from cudamem_testing.plugin.running import Subject
from cudamem_testing.windows.judge import cycles_fail

#: Processor time that explanations may take in one test; collections after that are not looked at.
MOST_SECONDS = 2.0
TOO_MANY = f"the test's collections took more than {MOST_SECONDS:g} s to look at; later ones are not counted"
HARNESS = "the test harness is part of it (an ExceptionInfo in a local variable): no fault of the test"
LIBRARY = "only library objects are part of it: it fails when the same appears again"
UNREAD = "its objects could not be read"
HEADING = "kept by a reference cycle"


class CycleCheck:
    """Watches tests, and judges the cycles that kept memory of a measured device.

    Which signatures were seen is remembered for the life of the process: a cycle of library objects alone may be
    a library's one-time work, and fails from the second time on.
    """

    def __init__(self, leaks: LeakCheck, ignore_below: Callable[[Device], int], locator: Locator) -> None:
        self._leaks = leaks
        self._ignore_below = ignore_below
        self._locator = locator
        self._watch = CycleWatch(self._tell, self._question, failed=self._note)
        self._problems: list[str] = []
        self._subject: Subject | None = None
        self._found: list[list[Cycle]] = []
        self._seen: set[str] = set()
        self._spent = self._asked = 0.0

    def begin(self, subject: Subject) -> None:
        """A test begins."""
        self._subject, self._spent = subject, 0.0
        self._found.clear()
        self._problems.clear()
        self._watch.start()

    def begun(self, subject: Subject) -> None:
        """The test is about to be settled; torch may have come only during it."""
        if self._subject is None:
            self.begin(subject)

    def drop(self) -> None:
        """The test is over, and nobody asks for its cycles."""
        self._watch.stop()
        self._subject = None
        self._found.clear()

    def judge(self, asked: str | None, failed: bool) -> list[Finding]:
        """The findings of the test that is over; ``asked`` is the severity that was asked for, ``None`` the default."""
        subject, found = self._subject, self._found[:]
        self.drop()
        if subject is None or asked == "off" or not (found or self._problems):
            return []
        findings = [_unexplained(problem) for problem in self._problems]
        cycles = merged([cycle for together in found for cycle in together])
        totals: Counter[str] = Counter()
        for cycle in cycles:
            totals.update({name: cycle.on(name).bytes for name in cycle.devices})
        for cycle in cycles:
            for name in cycle.devices:
                device, part = Device.parse(name), cycle.on(name)
                if subject.judged(device) and totals[name] >= self._ignore_below(device):
                    at_once = max(_bytes(together, cycle.signature, name) for together in found)
                    findings.append(self._finding(part, device, at_once, asked, failed))
        self._seen.update(cycle.signature for cycle in cycles)
        return findings

    @staticmethod
    def completed(findings: Sequence[Finding], cycles: Sequence[Finding], asked: str | None) -> Iterator[Finding]:
        """Findings of leaks, in which the remark that a collection freed something gives way to cycles that explain it.

        Where none does, the cycle could not be read: that is a warning.
        """
        explained = {finding.device for finding in cycles}
        for finding in findings:
            if finding.kind is not Kind.CYCLE:
                yield finding
            elif finding.device not in explained and asked != "off":
                severity = Severity.FAIL if asked == "strict" else Severity.WARN
                yield replace(finding, severity=severity, details=(*finding.details, f"   {UNREAD}"))

    def region(self) -> ReferenceCycles:
        """Cycles of a block inside a test; what it finds is the block's own matter."""
        return _Region(self._watch, lambda: self._ask(own=False))

    def _tell(self, cycles: list[Cycle]) -> None:
        self._found.append(cycles)
        self._spent += time.thread_time() - self._asked

    def _note(self, error: Exception) -> None:
        self._problems.append(f"{type(error).__name__}: {error}")

    def _question(self) -> Question | None:
        if self._spent > MOST_SECONDS:
            if TOO_MANY not in self._problems:
                self._problems.append(TOO_MANY)
            return None
        self._asked = time.thread_time()
        return self._ask(own=True)

    def _ask(self, *, own: bool) -> Question:
        stacks: dict[tuple[str, int], Stack] = {}
        measured: set[str] = set()
        unknown: set[str] = set()
        for device in self._leaks.devices:
            measured.add(str(device))
            blocks = self._leaks.live(device, self._subject if own else None)
            if blocks is None:
                unknown.add(str(device))
            else:
                stacks.update(((str(device), block.address or 0), block.stack) for block in blocks)

        def allocated(device: str, address: int) -> Stack | None:
            return Stack() if device in unknown else stacks.get((device, address))

        return Question(self._locator, measured.__contains__, allocated, known_only=own)

    def _finding(self, cycle: Cycle, device: Device, at_once: int, asked: str | None, failed: bool) -> Finding:
        severity, remark = self._severity(cycle, device, asked, failed)
        size = format_size(cycle.bytes)
        tensors = count(len(cycle.tensors), "tensor")
        inflated = (
            f"; up to {format_size(at_once)} at once, by which the peak may be too high" if cycle.count > 1 else ""
        )
        lines = [f"   {line}" for line in cycle.text.splitlines()]
        if remark:
            lines.append(f"   {remark}")
        meaning = MEANINGS[Verdict.CYCLE]
        lines.append(f"   {Verdict.CYCLE.value}: {meaning.text}; {meaning.hint}")
        stack = next((tensor.allocated for tensor in cycle.tensors if tensor.allocated), None)
        return Finding(
            Kind.CYCLE,
            Verdict.CYCLE,
            severity,
            f"cudamem: {size} {HEADING} ({tensors}, {device}){inflated}",
            bytes=cycle.bytes,
            device=device,
            allocated=stack,
            holder=" -> ".join(cycle.chain),
            cause=" | ".join((Kind.CYCLE.value, Verdict.CYCLE.value, *_where(cycle.signature, stack))),
            details=tuple(lines),
        )

    def _severity(self, cycle: Cycle, device: Device, asked: str | None, failed: bool) -> tuple[Severity, str]:
        if cycle.harness and asked != "strict":
            return Severity.NOTE, HARNESS
        wanted = asked or ("fail" if cycles_fail(device) else "warn")
        severity = Severity.WARN if wanted == "warn" or failed else Severity.FAIL
        if asked != "strict" and not cycle.project and cycle.signature not in self._seen:
            return Severity.WARN, LIBRARY
        return severity, ""


class _Region(ReferenceCycles):
    """A block during which the check of the whole test looks away."""

    def __init__(self, outer: CycleWatch, question: Callable[[], Question | None]) -> None:
        super().__init__(question)
        self._outer = outer

    def __enter__(self) -> ReferenceCycles:
        super().__enter__()  # garbage from before the block is the test's
        self._outer.stop()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            self._outer.start()


def _where(signature: str, allocated: str | None) -> Iterator[str]:
    """What names the fault: a cycle of plain lists looks like any other, so the function that allocated helps."""
    if allocated is not None and all(part.startswith("builtins.") for part in signature.split(" | ")):
        line, _, function = allocated.partition(" in ")
        yield f"{line.rpartition(':')[0]}::{function}"
    yield signature


def _unexplained(problem: str) -> Finding:
    message = f"cudamem: garbage with tensors in it was not explained: {problem}"
    return Finding(Kind.CYCLE, Verdict.CYCLE, Severity.NOTE, message)


def _bytes(together: Sequence[Cycle], signature: str, device: str) -> int:
    """Bytes that cycles of one signature kept on a device when one collection found them: they lived at once."""
    return sum(one.on(device).bytes for one in together if one.signature == signature)
