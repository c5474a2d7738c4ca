"""Makes findings of cycles, with their severity. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cudamem_testing.cycles.results import UNREAD, Cycle
from cudamem_testing.cycles.source import Sources, worded
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import NotExplained
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.remarks import Remark
from cudamem_testing.model.rules import Ignored, pattern_of
from cudamem_testing.model.stacks import Stack
from cudamem_testing.windows.defaults import cycles_fail

#: The cause of a note on garbage that was not explained, in which cycles may remain unfound.
UNEXPLAINED = "cycle | not explained"


class CycleFindings:
    """Makes the findings. A cycle made by a library never fails a test, because the project cannot change it."""

    def __init__(self, ignore_below: Callable[[Device], int], sources: Sources, ignored: Ignored) -> None:
        self._ignore_below = ignore_below
        self._sources = sources
        self._ignored = ignored

    @staticmethod
    def unexplained(**problem: Any) -> Finding:
        """The finding that says which garbage of a test was not explained, and why: the fields of ``NotExplained``.

        It is a warning if memory above the limit was kept, and a collection inside a test had no time to read all.
        """
        fact = NotExplained(**problem)
        severity = Severity.WARN if fact.large or fact.left or fact.cut or fact.stopped else Severity.NOTE
        return Finding(Kind.CYCLE, Verdict.CYCLE, severity, fact, cause=UNEXPLAINED)

    @staticmethod
    def unread(finding: Finding, asked: str | None) -> Finding:
        """The finding of memory that a collection freed, whose cycle could not be read."""
        severity = Severity.FAIL if asked == "strict" else Severity.WARN
        return replace(finding, severity=severity).remarked(Remark.UNREAD)

    def of(
        self,
        found: Sequence[list[Cycle]],
        small: Mapping[str, int],
        judged: Callable[[Device], bool],
        asked: str | None,
        *,
        failed: bool,
    ) -> list[Finding]:
        """The findings of a test, from what each collection found; ``judged`` says which devices count.

        ``small`` is what garbage kept that was too small to be examined, in bytes by device.
        """
        findings = []
        cycles = worded((cycle for together in found for cycle in together), self._sources)
        totals = Counter(small)
        for cycle in cycles:
            totals.update({name: cycle.on(name).bytes for name in cycle.devices})
        for cycle in cycles:
            for name in cycle.devices:
                device, part = Device.parse(name), cycle.on(name)
                if judged(device) and totals[name] >= self._ignore_below(device):
                    at_once = max(_bytes(together, cycle.signature, name) for together in found)
                    findings.append(self._finding(part, device, at_once, small.get(name, 0), asked, failed))
        return findings

    def kept(self, findings: Sequence[Finding]) -> list[Finding]:
        """The findings that no rule of the ini file ignores."""
        return self._ignored.keep(findings)

    def _finding(
        self, cycle: Cycle, device: Device, at_once: int, small: int, asked: str | None, failed: bool
    ) -> Finding:
        severity, remark = self._severity(cycle, device, asked, failed)
        holder = " -> ".join(cycle.chain)
        fact = replace(cycle.fact, at_once=at_once, remark=remark, small=small)
        if not (cycle.project or cycle.harness):
            fact = replace(fact, library=cycle.origin.library or "a library", pattern=pattern_of(holder))
        stack = next((tensor.stack for tensor in cycle.tensors if tensor.stack is not None), None)
        return Finding(
            Kind.CYCLE,
            Verdict.CYCLE,
            severity,
            fact,
            bytes=cycle.bytes,
            device=device,
            allocated=None if stack is None else stack.line,
            holder=holder,
            cause=" | ".join((Kind.CYCLE.value, Verdict.CYCLE.value, *_where(cycle, stack))),
        )

    def _severity(
        self, cycle: Cycle, device: Device, asked: str | None, failed: bool
    ) -> tuple[Severity, Remark | None]:
        if cycle.harness and asked != "strict":
            return Severity.NOTE, cycle.harness
        if cycle.signature == UNREAD and asked != "strict":
            return Severity.WARN, Remark.UNREAD
        wanted = asked or ("fail" if cycles_fail(device) else "warn")
        severity = Severity.WARN if wanted == "warn" or failed else Severity.FAIL
        if cycle.project or asked == "strict":
            return severity, None
        return Severity.WARN, Remark.LIBRARY


def _where(cycle: Cycle, stack: Stack | None) -> Iterator[str]:
    """The parts of the cause: all cycles of plain lists look the same, so theirs name the function that allocated."""
    if stack is not None and stack.where and cycle.plain:
        yield stack.place
    yield cycle.signature


def _bytes(together: Sequence[Cycle], signature: str, device: str) -> int:
    """Bytes that cycles of one signature kept on a device at the same time, found by one collection."""
    return sum(one.on(device).bytes for one in together if one.signature == signature)
