"""First use: what a module, a class or a cache keeps when it is filled for the first time.

One-time caches (a table that is computed once, an ``lru_cache``) look like leaks of the test that runs first. If the
project says so, the first finding of each cause is a warning. If the cause keeps more later, it is no one-time cache.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from cudamem_testing.model.causes import key_of
from cudamem_testing.model.facts import Retained
from cudamem_testing.model.findings import Finding, Severity, Standing, Verdict
from cudamem_testing.model.references import RootKind
from cudamem_testing.model.remarks import Remark

_CACHES = (RootKind.MODULE, RootKind.CLASS, RootKind.LRU_CACHE)


class FirstUse:
    """Remembers the causes that were found in this process."""

    def __init__(self) -> None:
        self._met: set[str] = set()

    def judged(self, findings: Iterable[Finding], known: Container[tuple[str, str] | None] = ()) -> list[Finding]:
        """The findings of one test; those that are the first of their cause are warnings.

        One whose cause is recorded, among ``known``, is no first use: it is compared with what is recorded.
        """
        findings = [*findings]
        judged = [
            _first(finding) if self._is_first(finding) and key_of(finding) not in known else finding
            for finding in findings
        ]
        self._met.update(finding.cause for finding in findings if finding.cause is not None)
        return judged

    def _is_first(self, finding: Finding) -> bool:
        path = finding.fact.path if isinstance(finding.fact, Retained) else None
        held = finding.verdict is Verdict.REACHABLE and path is not None and path.root_kind in _CACHES
        return held and finding.cause is not None and finding.cause not in self._met


def _first(finding: Finding) -> Finding:
    severity = Severity.WARN if finding.severity is Severity.FAIL else finding.severity
    return replace(finding, severity=severity).remarked(Remark.FIRST_USE, Standing.FIRST_USE)
