"""Policy: applies known findings, first uses and an audit to findings before they fail a test.

Each process that runs tests judges with the same known findings: workers of pytest-xdist get the file's content from
the controller. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from cudamem_testing.show.places import KNOWN, content_of, name_of

if TYPE_CHECKING:
    from pathlib import Path

    from cudamem_testing.model.findings import Finding
    from cudamem_testing.model.settings import Settings
    from cudamem_testing.records.known import CauseKey, KnownFinding
    from cudamem_testing.verdicts.known import Judging


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
        self._first_use = settings.first_use == "warn"

    @property
    def name(self) -> str:
        """The name of the file in messages."""
        return name_of(self.file, self._root)

    def judged(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings of one test with the severity that they have in this run."""
        found = [*findings]
        return self._judging.judged(found) if found else found

    @cached_property
    def _judging(self) -> Judging:
        from cudamem_testing.verdicts.known import Judging  # few runs find something

        return Judging(self.lines, self.name, first_use=self._first_use, update=self._update, audit=self._audit)

    def _parsed(self) -> Mapping[CauseKey, KnownFinding]:
        from cudamem_testing.records.known import parse

        return parse(self.name, self.content)


def _read(file: Path) -> bytes:
    return content_of(file) or b""
