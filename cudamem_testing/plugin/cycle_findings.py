"""What is said of the cycles of a test, and what they do to it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from cudamem_testing.cycles.results import Cycle
from cudamem_testing.cycles.source import Sources, worded
from cudamem_testing.leaks.rules import Ignored
from cudamem_testing.leaks.verdicts import MEANINGS
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.windows.judge import cycles_fail

HARNESS = "the test harness is part of it (an ExceptionInfo in a local variable): no fault of the test"
LIBRARY = "made by {library}, not by the project: a warning, never a failure"
IGNORE = "ignored with a line of cudamem_ignore: holder: {holder}  # made by {library}"
SMALL = "garbage of the test below that size freed {size} before, which was not looked at"
HEADING = "kept by a reference cycle"
#: The cause of a note that says which garbage was not explained: cycles that are not found may still be there.
UNEXPLAINED = "cycle | not explained"


class CycleFindings:
    """Makes them; a cycle that a library makes never fails a test, for nothing in the project can change it."""

    def __init__(self, ignore_below: Callable[[Device], int], sources: Sources, ignored: Ignored) -> None:
        self._ignore_below = ignore_below
        self._sources = sources
        self._ignored = ignored

    @staticmethod
    def unexplained(problem: str) -> Finding:
        """The note that says which garbage of a test was not explained, and why."""
        message = f"cudamem: garbage with tensors in it was not explained: {problem}"
        return Finding(Kind.CYCLE, Verdict.CYCLE, Severity.NOTE, message, cause=UNEXPLAINED)

    def of(
        self,
        found: Sequence[list[Cycle]],
        small: Mapping[str, int],
        judged: Callable[[Device], bool],
        asked: str | None,
        *,
        failed: bool,
    ) -> list[Finding]:
        """Those of a test, by what each collection found; ``judged`` tells which devices count.

        ``small`` is what garbage kept that was too small to be looked at, in bytes by device.
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
        """Those that no rule of the ini file ignores."""
        return self._ignored.keep(findings)

    def _finding(
        self, cycle: Cycle, device: Device, at_once: int, small: int, asked: str | None, failed: bool
    ) -> Finding:
        severity, remarks = self._severity(cycle, device, asked, failed)
        size = format_size(cycle.bytes)
        tensors = count(len(cycle.tensors), "tensor")
        inflated = (
            f"; up to {format_size(at_once)} at once, by which the peak may be too high" if cycle.count > 1 else ""
        )
        lines = [f"   {line}" for line in cycle.text.splitlines()]
        lines += [f"   {remark}" for remark in remarks]
        if small:
            lines.append(f"   {SMALL.format(size=format_size(small))}")
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

    def _severity(
        self, cycle: Cycle, device: Device, asked: str | None, failed: bool
    ) -> tuple[Severity, tuple[str, ...]]:
        if cycle.harness and asked != "strict":
            return Severity.NOTE, (HARNESS,)
        wanted = asked or ("fail" if cycles_fail(device) else "warn")
        severity = Severity.WARN if wanted == "warn" or failed else Severity.FAIL
        if cycle.project:
            return severity, ()
        library = cycle.origin.library or "a library"
        remarks = LIBRARY.format(library=library), IGNORE.format(holder=_pattern(cycle.chain), library=library)
        return (severity, remarks[1:]) if asked == "strict" else (Severity.WARN, remarks)


def _pattern(chain: Sequence[str]) -> str:
    """What a rule may match: the chain, whatever the numbers in it."""
    return re.sub(r"\[\d+\]", "[*]", re.sub(r"(?<=hook )\d+", "*", " -> ".join(chain)))


def _where(signature: str, allocated: str | None) -> Iterator[str]:
    """What names the fault: a cycle of plain lists looks like any other, so the function that allocated helps."""
    if allocated is not None and all(part.startswith("builtins.") for part in signature.split(" | ")):
        line, _, function = allocated.partition(" in ")
        yield f"{line.rpartition(':')[0]}::{function}"
    yield signature


def _bytes(together: Sequence[Cycle], signature: str, device: str) -> int:
    """Bytes that cycles of one signature kept on a device when one collection found them: they lived at once."""
    return sum(one.on(device).bytes for one in together if one.signature == signature)
