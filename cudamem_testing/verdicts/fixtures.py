"""Finds fixtures that grow: each use leaves more in a wider fixture.

What a test leaves in a fixture that outlives it is a note: a model has gradients after its first use, a cache its first
entries. If three uses in a row each left more, the third one fails. A use that replaces what another left has left
nothing more: the total that a test added counts. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import FixtureGrew, Retained
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.references import RootKind
from cudamem_testing.model.stacks import NO_STACK

USES = 3
FixtureKey = tuple[str, int | None, Device]
#: Leaks that are freed by now, or do not count in the test's window.
_NOT_COUNTED = frozenset({Verdict.TRACEBACK, Verdict.WORKSPACE, Verdict.FIXTURE})


class GrownFixtures:
    """Remembers of each fixture and device what each use of the running row left in it, in bytes.

    A fixture is a name and a number: others of its name, in another folder say, may live beside it.
    """

    def __init__(self) -> None:
        self._rows: dict[FixtureKey, list[int]] = {}

    @property
    def watching(self) -> bool:
        """Whether a row has begun: then a test without a finding may end it."""
        return bool(self._rows)

    def ended(self, name: str, number: int) -> None:
        """The fixture is torn down: what uses of its next value leave is no growth of this one."""
        for key in [key for key in self._rows if key[0] == name and key[1] in (number, None)]:
            del self._rows[key]

    def judged(
        self,
        findings: Sequence[Finding],
        used: Mapping[str, int | None],
        gained: Mapping[Device, int | None],
        severity: Severity,
    ) -> list[Finding]:
        """The findings of one test; that of a fixture which has grown long enough has ``severity``.

        ``used`` are the fixtures that the test used, their numbers by name, ``gained`` the bytes by which each device's
        memory grew from the test's start to its end.
        """
        kept: dict[FixtureKey, list[Finding]] = {}
        for finding in findings:
            name = _fixture_of(finding)
            if name is not None and finding.device is not None:
                kept.setdefault((name, used.get(name), finding.device), []).append(finding)
        for key in [key for key in self._rows if key[:2] in used.items() and key not in kept]:
            del self._rows[key]
        judged = [*findings]
        for key, found in kept.items():
            name, _, device = key
            more = _more(found, findings, device, gained.get(device))
            if more <= 0:
                self._rows.pop(key, None)
                continue
            row = self._rows.setdefault(key, [])
            row.append(more)
            if len(row) == USES:
                largest = max(found, key=lambda finding: finding.bytes or 0)
                judged[judged.index(largest)] = _grown(largest, name, row, severity)
        return judged


def _more(found: Iterable[Finding], every: Iterable[Finding], device: Device, gained: int | None) -> int:
    """What a test added to a fixture: at most what the device's memory grew by, beside the test's other leaks."""
    left = sum(finding.bytes or 0 for finding in found)
    if gained is None:
        return left
    others = (
        one for one in every if one.kind is Kind.LEAK and one.device == device and one.verdict not in _NOT_COUNTED
    )
    return min(left, gained - sum(one.bytes or 0 for one in others))


def _fixture_of(finding: Finding) -> str | None:
    """The fixture that holds what a test left in it."""
    path = finding.fact.path if isinstance(finding.fact, Retained) else None
    held = finding.verdict is Verdict.FIXTURE and path is not None and path.root_kind is RootKind.FIXTURE
    return path.root_name if held and path is not None else None


def _grown(finding: Finding, name: str, row: Sequence[int], severity: Severity) -> Finding:
    if not isinstance(finding.fact, Retained):
        return finding
    line = finding.fact.line
    place = NO_STACK if line is None else line.place
    cause = " | ".join((finding.kind.value, finding.verdict.value, place, f"fixture {name!r}"))
    return replace(finding, severity=severity, fact=FixtureGrew(name, tuple(row), finding.fact), cause=cause)
