"""Findings: the only thing that fails a test, with its closed lists of kinds, verdicts and severities.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from cudamem_testing.model.sizes import format_size
from cudamem_testing.show.printable import one_line

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.facts import Fact, Note


class Kind(str, Enum):
    """The kind of fault."""

    LEAK = "leak"
    CYCLE = "cycle"
    BUDGET = "budget"
    BASELINE = "baseline"
    OOM = "oom"
    POOL = "pool"
    OUTSIDE = "outside allocator"
    OTHER = "other"


#: Kinds whose findings have a cause in common; limits and out-of-memory errors are judged one by one.
GROUPED = frozenset({Kind.LEAK, Kind.CYCLE, Kind.POOL, Kind.OUTSIDE})


class Severity(str, Enum):
    """What a finding does: fail the test, warn in the summary, or be a note."""

    FAIL = "fail"
    WARN = "warn"
    NOTE = "note"


class Standing(str, Enum):
    """How a finding relates to the known findings."""

    #: Its cause is recorded: a note.
    KNOWN = "known"
    #: Its cause is recorded with fewer bytes.
    LARGER = "larger than known"
    #: A cache that was filled for the first time in this process.
    FIRST_USE = "first use"


class Verdict(str, Enum):
    """The reason of a finding: for leaks and cycles why a block is still live, for limits which side was broken.

    ``docs/verdicts.md`` has a section for each; ``explain`` prints it.
    """

    OVER = "over budget"
    UNDER = "under lower bound"
    IMPROVED = "improved"
    NO_BASELINE = "no baseline"
    OUT_OF_MEMORY = "out of memory"
    NOT_RECOVERED = "not recovered"
    REACHABLE = "reachable"
    HELD_BY_CPP = "held by C++"
    RAW = "raw allocation"
    CYCLE = "cycle"
    TRACEBACK = "traceback"
    TEST_INSTANCE = "test instance"
    WORKSPACE = "library workspace"
    COMPILER_CACHE = "compiler cache"
    FIXTURE = "fixture"
    HARNESS = "test harness"
    UNATTRIBUTED = "unattributed"
    NOT_REPEATABLE = "body is not repeatable"

    @property
    def anchor(self) -> str:
        """Its words joined by hyphens, as in links to its section and on the command line."""
        return self.value.lower().replace(" ", "-").replace("+", "")


#: Verdicts that fail a test by default: the memory is leaked.
LEAKED = frozenset({Verdict.REACHABLE, Verdict.HELD_BY_CPP, Verdict.RAW})


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a test or of the run: a fact, and what policy decides about it.

    ``bytes`` is its size: the excess of a budget, the retained bytes of a leak; ``None`` if it is not
    a number of bytes. ``allocated`` is the line that allocated, ``holder`` the chain of references that holds,
    ``cause`` the key by which findings are grouped. ``owner`` is the wider fixture that is judged, ``None`` for the
    test itself. ``standing`` is ``None`` for an unknown cause, ``remarks`` are what policy adds.

    ``wording`` creates its text. ``allocated`` and ``holder`` are safe to print, also with quoted text;
    ``cause`` is unchanged, because it is a key.
    """

    kind: Kind
    verdict: Verdict
    severity: Severity
    fact: Fact
    bytes: int | None = None
    device: Device | None = None
    allocated: str | None = None
    holder: str | None = None
    cause: str | None = None
    standing: Standing | None = None
    owner: str | None = None
    remarks: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "allocated", self.allocated and one_line(self.allocated))
        object.__setattr__(self, "holder", self.holder and one_line(self.holder))

    def remarked(self, remark: Note, standing: Standing | None = None) -> Finding:
        """A copy with one more remark, and another standing if one is given."""
        return replace(self, remarks=(*self.remarks, remark), standing=standing or self.standing)

    def __str__(self) -> str:
        size = "" if self.bytes is None else f" of {format_size(self.bytes)}"
        return f"{self.kind.value}, {self.verdict.value}, {self.severity.value}{size}"
