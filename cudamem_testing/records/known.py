"""Known findings: faults that are recorded instead of fixed, one line a cause.

A line is JSON with the keys ``cause``, ``device`` (its kind), ``bytes`` (what one test may keep by it), ``tests`` and
``reason`` (for people: why it may stay, or who will fix it). Lines are sorted, so that branches that add causes meet in
few places, where each line can be kept or dropped by itself. A finding whose cause has a line is a note; if it is
larger by more than the tolerance, it fails like a new one. A line written by hand may have ``*`` in its cause for any
text; such a pattern applies to causes without their own line. Pure: text in, text out. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from cudamem_testing.model.causes import Cause, has_cause, key_of, kind_of
from cudamem_testing.model.changes import Tolerance
from cudamem_testing.model.facts import Note, OnRecord
from cudamem_testing.model.findings import Finding, Severity, Standing
from cudamem_testing.model.nodeids import file_of, function_of
from cudamem_testing.model.records import RunRecord, TestRecord, Unseen
from cudamem_testing.model.sizes import format_size
from cudamem_testing.records import store
from cudamem_testing.records.cause_text import current, pattern_of
from cudamem_testing.records.store import Row, Store, check_keys, text_of

TOLERANCE = Tolerance.parse("1%|64KiB")
#: If more test functions have a cause, the line names their files.
MOST_TESTS = 50
_KEYS = ("cause", "device", "bytes", "tests", "reason")

CauseKey = tuple[str, str]
Lines = Mapping[CauseKey, "KnownFinding"]


@dataclass(frozen=True, slots=True)
class KnownFinding:
    """One line: ``tests`` are ids without parameters, or files; ``number`` is the line's, 0 for one not yet written."""

    cause: str
    device: str
    bytes: int
    tests: tuple[str, ...] = ()
    reason: str = ""
    number: int = field(default=0, compare=False)

    @property
    def key(self) -> CauseKey:
        """Its cause and device."""
        return self.cause, self.device

    @property
    def kind(self) -> str:
        """The kind of its findings."""
        return kind_of(self.cause)

    @property
    def is_pattern(self) -> bool:
        """Whether it may match several causes."""
        return pattern_of(self.cause) is not None

    def matches(self, key: CauseKey) -> bool:
        """Whether it matches a cause."""
        pattern = pattern_of(self.cause)
        return key == self.key or (
            pattern is not None and key[1] == self.device and pattern.fullmatch(key[0]) is not None
        )

    def allows(self, size: int) -> bool:
        """Whether a finding of so many bytes is within what is known."""
        return size <= self.bytes + TOLERANCE.slack("retained", self.bytes)

    def __str__(self) -> str:
        values = {key: getattr(self, key) for key in _KEYS}
        text = json.dumps(values, ensure_ascii=False)
        return text if text.isprintable() else json.dumps(values)


def parse(name: str, content: bytes) -> dict[CauseKey, KnownFinding]:
    """The lines of a file by cause and device; ``name`` is for errors.

    Lines of older files that are one cause now become one line, with the sum of their bytes.

    Raises:
        RecordError: naming the line and the reason.
    """
    rows = store.rows(name, store.lines(name, content))
    found: dict[CauseKey, KnownFinding] = {}
    for line in store.entries(name, rows, _line, "cause and device").values():
        one = replace(line, cause=current(line.cause))
        found[one.key] = _together(found[one.key], one) if one.key in found else one
    return found


def render(lines: Lines) -> bytes:
    """The content of a file: one line a cause, sorted."""
    return "".join(f"{lines[key]}\n" for key in sorted(lines)).encode()


def line_of(lines: Lines, key: CauseKey) -> KnownFinding | None:
    """The line for a cause: its own, else the longest pattern that matches."""
    if key in lines:
        return lines[key]
    matching = [line for line in lines.values() if line.matches(key)]
    return max(matching, key=lambda line: (len(line.cause), line.cause), default=None)


def judged(finding: Finding, lines: Lines, name: str) -> Finding:
    """The finding judged by the known ones: a note, larger than known, or unchanged.

    ``name`` is the file's, for people.
    """
    key = key_of(finding)
    line = None if key is None or not has_cause(finding) else line_of(lines, key)
    if line is None:
        return finding
    if line.allows(finding.bytes or 0):
        return noted(finding, OnRecord(name, line.number, line.reason))
    larger = OnRecord(name, line.number, line.reason, line.bytes, str(TOLERANCE))
    return finding.remarked(larger, Standing.LARGER)


def noted(finding: Finding, remark: Note) -> Finding:
    """The finding as a note with a remark, because it is recorded."""
    return replace(finding, severity=Severity.NOTE).remarked(remark, Standing.KNOWN)


def is_recordable(finding: Finding) -> bool:
    """Whether it is to be recorded. A cache filled for the first time is not, until it grows."""
    return has_cause(finding) and finding.standing is not Standing.FIRST_USE


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a run says about causes that it did not find.

    ``tests`` says for each id whether the test ended with complete findings; ``whole`` for a file whether all of its
    tests were selected; ``exists`` whether there is such a file; ``looked`` for a line whether its kind of finding was
    searched for on its kind of device; ``unjudged`` has kinds of findings that are incomplete, by test.
    """

    tests: Mapping[str, bool] = field(default_factory=dict)
    whole: Callable[[str], bool] = lambda file: False
    exists: Callable[[str], bool] = lambda file: True
    looked: Callable[[KnownFinding], bool] = lambda line: True
    unjudged: Mapping[str, Collection[str]] = field(default_factory=dict)

    def told(self) -> Callable[[str, str], bool]:
        """A function of a place (a test function or a file) and a kind: whether a finding that did not appear no longer
        exists.

        That is so if one of its tests ran; and if the test no longer exists, while others of its file do or the file is
        gone. It is not so if one of these tests has incomplete findings of the kind.
        """
        ran: dict[str, bool] = {}
        for nodeid, complete in self.tests.items():
            for place in (function_of(nodeid), file_of(nodeid)):
                ran[place] = ran.get(place, False) or complete
        open_ = {
            (place, kind)
            for nodeid, kinds in self.unjudged.items()
            for kind in kinds
            for place in (function_of(nodeid), file_of(nodeid))
        }

        def is_told(place: str, kind: str) -> bool:
            file = file_of(place)
            if not self.whole(file):
                return False
            if place in ran:
                return ran[place] and (place, kind) not in open_
            return (file in ran and (file, kind) not in open_) or not self.exists(file)

        return is_told


def evidence_of(run: RunRecord, exists: Callable[[str], bool]) -> Evidence:
    """What a run says about causes that it did not find; ``exists`` says whether a file exists below rootdir."""
    ran: dict[str, bool] = {}
    unjudged: dict[str, set[str]] = {}
    devices: set[str] = set()
    small: set[tuple[str, str]] = set()  # tests, and their files, that retained too little on a device to be judged
    for test in run.tests:
        ran[test.nodeid] = ran.get(test.nodeid, False) or _is_complete(test)
        if test.unjudged and test.outcome != "rerun":
            unjudged.setdefault(test.nodeid, set()).update(test.unjudged)
        devices |= {window.device.kind for window in test.windows if window.complete}
        for window in test.whole:
            if 0 < (window.retained or 0) < run.extent.judged_from(window.device.kind):
                places_of = function_of(test.nodeid), file_of(test.nodeid)
                small.update((place, window.device.kind) for place in places_of)
    kinds = {*run.extent.kinds}

    def looked(line: KnownFinding) -> bool:
        if line.bytes < run.extent.judged_from(line.device) and any(
            (place, line.device) in small for place in line.tests
        ):
            return False
        return line.device in devices and line.kind in kinds

    return Evidence(ran, run.extent.covers(), exists, looked, unjudged)


@dataclass(frozen=True, slots=True)
class Update:
    """Lines after an update and before it, and how many causes are new, or have other bytes or tests."""

    lines: Lines
    new: int = 0
    changed: int = 0
    same: int = 0
    dropped: int = 0
    before: Lines = field(default_factory=dict, compare=False)

    @property
    def sizes(self) -> list[str]:
        """A line for each cause that is new or has another size: ``256.0 KiB  leak | ... (cpu)``."""
        found = []
        for key, line in sorted(self.lines.items()):
            old = self.before.get(key)
            if old is None or old.bytes != line.bytes:
                was = "" if old is None else f"{format_size(old.bytes)} to "
                found.append(f"{was}{format_size(line.bytes)}  {line.cause} ({line.device})")
        return found

    def __str__(self) -> str:
        words = (("new", self.new), ("changed", self.changed), ("the same", self.same), ("dropped", self.dropped))
        return ", ".join(f"{number} {word}" for word, number in words if number) or "none"


def recorded(lines: Lines, causes: Iterable[Cause], evidence: Evidence) -> Update:
    """The lines updated with what a run has found; reasons stay.

    Tests of a line that the run says nothing about stay; while there are any, its bytes do not shrink.
    """
    told = evidence.told()
    kept = dict(lines)
    new = changed = 0
    by_line: dict[CauseKey, list[Cause]] = {}
    for cause in causes:
        if cause.standing is not Standing.FIRST_USE:
            line = line_of(lines, cause.key)
            by_line.setdefault(cause.key if line is None else line.key, []).append(cause)
    for key, some in by_line.items():
        largest, tests = max(cause.largest for cause in some), [test for cause in some for test in cause.tests]
        old = lines.get(key)
        if old is None:
            kept[key] = KnownFinding(*key, largest, places(tests))
            new += 1
            continue
        rest = [place for place in old.tests if not told(place, old.kind)]
        size = max(old.bytes, largest) if rest else largest
        slack = TOLERANCE.slack("retained", old.bytes)
        one = replace(old, bytes=old.bytes if abs(size - old.bytes) <= slack else size, tests=places(tests, rest))
        kept[key] = one
        changed += one != old
    return Update(kept, new, changed, len(by_line) - new - changed, before=lines)


def unseen(lines: Lines, causes: Iterable[Cause], evidence: Evidence) -> list[KnownFinding]:
    """Lines whose cause a run should have found and did not; never one that names no tests."""
    told = evidence.told()
    met = {cause.key for cause in causes}
    return [
        line
        for line in lines.values()
        if line.tests and evidence.looked(line) and all(told(place, line.kind) for place in line.tests)
        if not any(map(line.matches, met))
    ]


def open_lines(lines: Lines, causes: Iterable[Cause], gone: Collection[KnownFinding]) -> int:
    """The number of lines that a run neither found nor judged gone; those that name no tests do not count."""
    met = {cause.key for cause in causes}
    rest = (line for line in lines.values() if line.tests and line not in gone)
    return sum(not any(map(line.matches, met)) for line in rest)


def last_matches(lines: Lines, run: RunRecord) -> dict[CauseKey, tuple[str, str]]:
    """For each line by its key, the last cause of a run that it matched, and the test (empty for the run itself)."""
    last: dict[CauseKey, tuple[str, str]] = {}
    for nodeid, finding in run.all_findings:
        key = key_of(finding)
        if key is not None and has_cause(finding):
            last.pop(key, None)
            last[key] = key[0], nodeid
    return {line.key: met for key, met in last.items() for line in lines.values() if line.matches(key)}


def named(gone: Iterable[KnownFinding], flag: str) -> Unseen:
    """The causes of some lines as a run keeps them; ``flag`` removes them."""
    return Unseen(flag, tuple(f"{line.cause} ({line.device})" for line in gone))


def without(lines: Lines, gone: Iterable[KnownFinding]) -> Update:
    """The lines without some, unless these have changed."""
    left = {key: line for key, line in lines.items() if line not in {*gone}}
    return Update(left, dropped=len(lines) - len(left), before=lines)


def places(nodeids: Iterable[str], others: Iterable[str] = ()) -> tuple[str, ...]:
    """Test functions, or their files if there are many; ``others`` are such places already."""
    functions = {*map(function_of, nodeids), *others}
    files = {place for place in functions if "::" not in place}
    functions = {place for place in functions if file_of(place) not in files} | files
    return tuple(sorted(functions if len(functions) <= MOST_TESTS else {*map(file_of, functions)}))


def _is_complete(test: TestRecord) -> bool:
    """Whether the test was completed: then its findings are complete."""
    return test.outcome in ("passed", "xpassed") or bool(test.failing)


def _together(one: KnownFinding, other: KnownFinding) -> KnownFinding:
    reason = "; ".join(dict.fromkeys(filter(None, (one.reason, other.reason))))
    return replace(one, bytes=one.bytes + other.bytes, tests=places((), (*one.tests, *other.tests)), reason=reason)


def _line(row: Row) -> tuple[CauseKey, KnownFinding]:
    number, data = row
    check_keys(data, ("cause", "device", "bytes", "tests"), optional=("reason",))
    cause, device, reason = (text_of(key, data.get(key, "")) for key in ("cause", "device", "reason"))
    size, tests = data["bytes"], data["tests"]
    if type(size) is not int or size < 0:
        raise ValueError("bytes is no whole number of 0 or more")
    if not isinstance(tests, list):
        raise ValueError("tests is no list")
    line = KnownFinding(cause, device, size, tuple(text_of("tests", one) for one in tests), reason, number)
    return line.key, line


#: Files of known findings.
KNOWN_FILES: Store[CauseKey, KnownFinding] = Store(parse, render, keeps_empty=True)
