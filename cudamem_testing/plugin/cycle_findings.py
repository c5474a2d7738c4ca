"""What is said of the cycles of a test, and what they do to it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from cudamem_testing.cycles.results import Cycle, merged
from cudamem_testing.leaks.verdicts import MEANINGS
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.windows.judge import cycles_fail

HARNESS = "the test harness is part of it (an ExceptionInfo in a local variable): no fault of the test"
MOCK = "a mock is part of it, and keeps the arguments of its calls until garbage is collected: no fault of the test"
OTHER_HARNESS = "the test harness is part of it: no fault of the test"
LIBRARY = "only library objects are part of it: it fails when the same appears again"
HEADING = "kept by a reference cycle"


class CycleFindings:
    """Makes them.

    Which signatures were seen is remembered for the life of the process: a cycle of library objects alone may be
    a library's one-time work, and fails from the second time on.
    """

    def __init__(self, ignore_below: Callable[[Device], int]) -> None:
        self._ignore_below = ignore_below
        self._seen: set[str] = set()

    def of(
        self, found: Sequence[list[Cycle]], judged: Callable[[Device], bool], asked: str | None, *, failed: bool
    ) -> list[Finding]:
        """Those of a test, by what each collection found; ``judged`` tells which devices count."""
        findings = []
        cycles = merged([cycle for together in found for cycle in together])
        totals: Counter[str] = Counter()
        for cycle in cycles:
            totals.update({name: cycle.on(name).bytes for name in cycle.devices})
        for cycle in cycles:
            for name in cycle.devices:
                device, part = Device.parse(name), cycle.on(name)
                if judged(device) and totals[name] >= self._ignore_below(device):
                    at_once = max(_bytes(together, cycle.signature, name) for together in found)
                    findings.append(self._finding(part, device, at_once, asked, failed))
        self._seen.update(cycle.signature for cycle in cycles)
        return findings

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
            return Severity.NOTE, _harness(cycle)
        wanted = asked or ("fail" if cycles_fail(device) else "warn")
        severity = Severity.WARN if wanted == "warn" or failed else Severity.FAIL
        if asked != "strict" and not cycle.project and cycle.signature not in self._seen:
            return Severity.WARN, LIBRARY
        return severity, ""


def _harness(cycle: Cycle) -> str:
    """Which part of the harness it is; functions that ``autospec`` makes are in no module."""
    if "ExceptionInfo" in cycle.signature:
        return HARNESS
    return MOCK if "mock." in cycle.signature or cycle.signature.startswith("?.") else OTHER_HARNESS


def _where(signature: str, allocated: str | None) -> Iterator[str]:
    """What names the fault: a cycle of plain lists looks like any other, so the function that allocated helps."""
    if allocated is not None and all(part.startswith("builtins.") for part in signature.split(" | ")):
        line, _, function = allocated.partition(" in ")
        yield f"{line.rpartition(':')[0]}::{function}"
    yield signature


def _bytes(together: Sequence[Cycle], signature: str, device: str) -> int:
    """Bytes that cycles of one signature kept on a device when one collection found them: they lived at once."""
    return sum(one.on(device).bytes for one in together if one.signature == signature)
