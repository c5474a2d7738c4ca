"""Findings of out-of-memory errors, with what was live when they were raised. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from cudamem_testing.model.facts import Refused
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.stacks import NO_STACK
from cudamem_testing.oom.explain import explain
from cudamem_testing.recorders import cards
from cudamem_testing.safe_access import error_text

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.stacks import Locator
    from cudamem_testing.recorders.base import Recorder
    from cudamem_testing.recorders.capture import Capture
    from cudamem_testing.snapshots.record import Recording


class Evidence(Protocol):
    """The records of the running test (run/evidence.py)."""

    running: str | None

    @property
    def locator(self) -> Locator:
        """Finds the lines of the project."""
        ...

    def recording(self, capture: Capture) -> Recording:
        """A capture with the project's lines and the names of the tests that own its blocks."""
        ...


def findings(evidence: Evidence, recorders: Iterable[Recorder], *, recorded: bool) -> list[Finding]:
    """A finding for each device on which the running test met an out-of-memory error.

    One without a device if the test met one that no recorder shows, because no evidence is ``recorded``.
    """
    found: list[Finding] = []
    for recorder in recorders:
        try:
            found += _of(evidence, recorder)
        except Exception as error:
            found.append(_refused(error_text(error), recorder.device))
    return found if found or recorded else [_refused()]


def _of(evidence: Evidence, recorder: Recorder) -> Iterator[Finding]:
    refusal = recorder.refusal()
    if refusal is None:
        return
    fact = explain(
        evidence.recording(refusal.capture),
        refusal.requested,
        allowed=refusal.allowed,
        base=refusal.base,
        free=refusal.free,
        others=cards.other_processes(recorder.device),
        running=evidence.running,
        source=evidence.locator.source,
    )
    yield Finding(
        Kind.OOM,
        Verdict.OUT_OF_MEMORY,
        Severity.FAIL,
        fact,
        bytes=refusal.requested,
        device=recorder.device,
        allocated=None if fact.where is None else str(fact.where),
        cause=f"oom {NO_STACK if fact.where is None else fact.where.place}",
    )


def _refused(error: str | None = None, device: Device | None = None) -> Finding:
    return Finding(Kind.OOM, Verdict.OUT_OF_MEMORY, Severity.FAIL, Refused(error), device=device)
