"""Groups findings by cause: those that one change would fix.

A cause is identified by its text (kind, verdict, allocating ``file::qualname``, holder with keys and indices as
``[*]``) and by the kind of device, because sizes differ between them. Limits and out-of-memory errors are judged one by
one and have none.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from cudamem_testing.model.findings import GROUPED, Finding, Kind, Severity, Standing, Verdict
from cudamem_testing.model.records import RunRecord
from cudamem_testing.model.sizes import count, format_size

T = TypeVar("T")
#: The standing of a cause if its findings differ: the first of these that one of them has.
_STANDINGS = (Standing.LARGER, None, Standing.KNOWN, Standing.FIRST_USE)
_SEVERITIES = (Severity.FAIL, Severity.WARN, Severity.NOTE)


@dataclass(frozen=True, slots=True)
class Cause:
    """The findings of one cause on one kind of device.

    ``bytes`` is the sum over all of them, ``largest`` the largest single one; ``tests`` are ids in the order in which
    the tests ended, without those of the run itself. ``example`` is the first of the largest findings.
    """

    text: str
    device: str
    kind: Kind
    verdict: Verdict
    severity: Severity
    standing: Standing | None
    bytes: int
    largest: int
    findings: int
    tests: tuple[str, ...]
    example: Finding

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the cause."""
        return self.text, self.device

    @property
    def place(self) -> str:
        """The cause without its kind and verdict: the allocating function, and the holder."""
        return self.text.removeprefix(f"{self.kind.value} | {self.verdict.value} | ")

    def __str__(self) -> str:
        return f"{count(len(self.tests), 'test')}, {format_size(self.bytes)}: {self.text} ({self.device})"


def key_of(finding: Finding) -> tuple[str, str] | None:
    """The cause of a finding with its kind of device; ``None`` if findings of its kind have no cause."""
    if finding.cause is None or finding.kind not in GROUPED:
        return None
    return finding.cause, "any" if finding.device is None else finding.device.kind


def kind_of(cause: str) -> str:
    """The kind of the findings of a cause, by its text."""
    return cause.partition(" | ")[0]


def has_cause(finding: Finding) -> bool:
    """Whether a finding is grouped with others: it fails or warns, or would if it were not known."""
    return key_of(finding) is not None and (finding.severity is not Severity.NOTE or finding.standing is Standing.KNOWN)


def causes(run: RunRecord) -> tuple[Cause, ...]:
    """The causes of a run's findings, the largest first."""
    groups: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
    for nodeid, finding in run.all_findings:
        key = key_of(finding)
        if key is not None and has_cause(finding):
            groups.setdefault(key, []).append((nodeid, finding))
    found = [_cause(*key, group) for key, group in groups.items()]
    return tuple(sorted(found, key=lambda cause: (-cause.bytes, cause.key)))


def _cause(text: str, device: str, group: list[tuple[str, Finding]]) -> Cause:
    findings = [finding for _, finding in group]
    sizes = [finding.bytes or 0 for finding in findings]
    example = max(findings, key=lambda finding: finding.bytes or 0)
    return Cause(
        text,
        device,
        example.kind,
        example.verdict,
        _first(_SEVERITIES, (finding.severity for finding in findings)),
        _first(_STANDINGS, (finding.standing for finding in findings)),
        sum(sizes),
        max(sizes),
        len(findings),
        tuple(dict.fromkeys(nodeid for nodeid, _ in group if nodeid)),
        example,
    )


def _first(order: Iterable[T], present: Iterable[T]) -> T:
    there = {*present}
    return next(one for one in order if one in there)
