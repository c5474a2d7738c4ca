"""Findings of cycles: what those of a test do to it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cudamem_testing.cycles.results import Cycle, merged
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Remark
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.windows.judge import cycles_fail


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
        stack = next((tensor.allocated for tensor in cycle.tensors if tensor.allocated), None)
        return Finding(
            Kind.CYCLE,
            Verdict.CYCLE,
            severity,
            replace(cycle.fact, at_once=at_once, remark=remark),
            bytes=cycle.bytes,
            device=device,
            allocated=stack,
            holder=" -> ".join(cycle.chain),
            cause=" | ".join((Kind.CYCLE.value, Verdict.CYCLE.value, *_where(cycle.signature, stack))),
        )

    def _severity(
        self, cycle: Cycle, device: Device, asked: str | None, failed: bool
    ) -> tuple[Severity, Remark | None]:
        if cycle.harness and asked != "strict":
            return Severity.NOTE, _harness(cycle)
        wanted = asked or ("fail" if cycles_fail(device) else "warn")
        severity = Severity.WARN if wanted == "warn" or failed else Severity.FAIL
        if asked != "strict" and not cycle.project and cycle.signature not in self._seen:
            return Severity.WARN, Remark.LIBRARY
        return severity, None


def _harness(cycle: Cycle) -> Remark:
    """Which part of the harness it is; functions that ``autospec`` makes are in no module."""
    if "ExceptionInfo" in cycle.signature:
        return Remark.HARNESS
    mocked = "mock." in cycle.signature or cycle.signature.startswith("?.")
    return Remark.MOCK if mocked else Remark.OTHER_HARNESS


def _where(signature: str, allocated: str | None) -> Iterator[str]:
    """What names the fault: a cycle of plain lists looks like any other, so the function that allocated helps."""
    if allocated is not None and all(part.startswith("builtins.") for part in signature.split(" | ")):
        line, _, function = allocated.partition(" in ")
        yield f"{line.rpartition(':')[0]}::{function}"
    yield signature


def _bytes(together: Sequence[Cycle], signature: str, device: str) -> int:
    """Bytes that cycles of one signature kept on a device when one collection found them: they lived at once."""
    return sum(one.on(device).bytes for one in together if one.signature == signature)
