"""Policy: applies known findings, first uses and an audit to findings before they fail a test.

Each process that runs tests judges with the same known findings: workers of pytest-xdist get the file's content from
the controller. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cudamem_testing.model.findings import Finding, Severity
from cudamem_testing.show.places import KNOWN

if TYPE_CHECKING:
    from pathlib import Path

    from cudamem_testing.model.settings import Settings
    from cudamem_testing.records.known import CauseKey, KnownFinding
    from cudamem_testing.verdicts.first_use import FirstUse


class Policy:
    """Decides what a finding does.

    ``known`` is the content of the file of known findings, where another process has read it.

    Raises:
        RecordError: when the file is broken.
        OSError: when it cannot be read.
    """

    def __init__(self, settings: Settings, root: Path, known: bytes | None = None) -> None:
        self._update = "known" in settings.update
        self._audit = settings.audit
        self._root = root
        self.file = settings.known or self._root / KNOWN
        """The file of known findings."""
        self.content = b"" if not settings.on else _read(self.file) if known is None else known
        self.lines = self._parsed() if self.content else {}
        self._first_use = _first_use() if settings.first_use == "warn" else None

    @property
    def name(self) -> str:
        """The name of the file in messages."""
        from cudamem_testing.records.known_file import name_of

        return name_of(self.file, self._root)

    def judged(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings of one test with the severity that they have in this run."""
        found = [*findings]
        if not found:
            return found
        from cudamem_testing.model.causes import key_of
        from cudamem_testing.model.remarks import Remark
        from cudamem_testing.records.known import is_recordable, judged, line_of, noted

        if self._first_use is not None:
            keys = {*filter(None, map(key_of, found))}
            found = self._first_use.judged(found, {key for key in keys if line_of(self.lines, key) is not None})
        found = [judged(finding, self.lines, self.name) for finding in found]
        if self._update:
            found = [noted(finding, Remark.RECORDED) if is_recordable(finding) else finding for finding in found]
        if self._audit:
            found = [replace(one, severity=Severity.WARN) if one.severity is Severity.FAIL else one for one in found]
        return found

    def _parsed(self) -> Mapping[CauseKey, KnownFinding]:
        from cudamem_testing.records.known import parse

        return parse(self.name, self.content)


def _first_use() -> FirstUse:
    from cudamem_testing.verdicts.first_use import FirstUse

    return FirstUse()


def _read(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""
