"""What policy adds to a finding, and findings of one line. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from cudamem_testing.model.facts import Note, NotJudged, NotRepeatable, OnRecord
from cudamem_testing.model.findings import Finding
from cudamem_testing.model.remarks import Remark
from cudamem_testing.model.sizes import format_size

_REMARKS = {
    Remark.HARNESS: "the test harness is part of it (an ExceptionInfo in a local variable): not the test's fault",
    Remark.MOCK: ("a mock is part of it and keeps its call arguments until garbage is collected: not the test's fault"),
    Remark.OTHER_HARNESS: "the test harness is part of it: not the test's fault",
    Remark.LIBRARY: "only a warning: the project cannot change a library",
    Remark.UNREAD: "its objects could not be read",
    Remark.FIRST_USE: "first use: fails if the same cause keeps more later",
    Remark.RECORDED: "recorded as known",
}


def remark(note: Note) -> str:
    """One remark as a line below a finding."""
    if isinstance(note, Remark):
        return f"   {_REMARKS[note]}"
    return f"   {_on_record(note)} ({note.file}:{note.number})"


def not_repeatable(finding: Finding, fact: NotRepeatable) -> list[str]:
    """Which run of a body failed."""
    measured = f"the measured run, after {fact.runs} that passed,"
    which = measured if fact.run is None else f"warm-up run {fact.run} of {fact.runs}"
    return [f"{which} failed: {finding.verdict.value}"]


def not_judged(finding: Finding, fact: NotJudged) -> list[str]:
    """Why the memory that a test retains could not be judged."""
    return [f"what the test retains could not be judged: {fact.error}"]


def _on_record(note: OnRecord) -> str:
    if note.larger_than is None:
        return f"known: {note.reason or 'no reason given'}"
    return f"larger than the recorded {format_size(note.larger_than)}, {note.tolerance} more allowed"
