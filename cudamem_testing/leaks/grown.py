"""Fixtures that grow: one use after the other leaves more in a wider fixture.

What a test leaves in a fixture that outlives it is a note: a model has gradients after its first use, a cache its first
entries. Where three uses of one value in a row each left more, it is no plateau, and the third one fails. A use that
puts something in the place of what another left has left nothing more: what counts is what the test added in all.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.sizes import format_size

USES = 3
HINT = "bound what the fixture keeps, or take out at the end of each test what it put in"
_FIXTURE = re.compile(r"fixture '(?P<name>[^']*)'")
Key = tuple[str, int | None, Device]
#: Leaks that are gone by now, or are not counted in the test's window.
_NOT_COUNTED = frozenset({Verdict.TRACEBACK, Verdict.WORKSPACE, Verdict.FIXTURE})


class GrownFixtures:
    """Remembers of each fixture and device what each use of the running row left in it, in bytes.

    A fixture is a name and a number: others of its name, in another folder say, may live beside it.
    """

    def __init__(self) -> None:
        self._rows: dict[Key, list[int]] = {}

    @property
    def watching(self) -> bool:
        """Whether a row is running: then a test without a finding may end it."""
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
        kept: dict[Key, list[Finding]] = {}
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
    match = _FIXTURE.match(finding.holder or "") if finding.verdict is Verdict.FIXTURE else None
    return None if match is None else match["name"]


def _grown(finding: Finding, name: str, row: Sequence[int], severity: Severity) -> Finding:
    from cudamem_testing.leaks.verdicts import MEANINGS, more

    total, each = sum(row), sum(row) // len(row)
    kind, verdict, place, *_ = (finding.cause or "").split(" | ")
    meaning = f"   {Verdict.FIXTURE.value}: {MEANINGS[Verdict.FIXTURE].text}"
    return replace(
        finding,
        severity=severity,
        message=f"cudamem: fixture {name!r} grows by {format_size(each)} per test: {format_size(total)} in {len(row)} "
        f"uses in a row ({finding.device})",
        cause=" | ".join((kind, verdict, place, f"fixture {name!r}")),
        details=(
            *(line for line in finding.details if line != meaning),
            f"   hint: {HINT}",
            more(Verdict.FIXTURE),
        ),
    )
