"""The report as a page: what its scripts show, made of a run's record alone.

A page has at most ``MOST_BYTES`` of data for 1,000 tests: where there is more, curves get fewer points, and in the end
tests lose theirs, which the page says. Texts are safe to show, and none of them is read as HTML. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from cudamem_testing.model import facts
from cudamem_testing.model.baselines import Measured
from cudamem_testing.model.causes import Cause, causes, key_of
from cudamem_testing.model.checked import Checked
from cudamem_testing.model.curves import Curve
from cudamem_testing.model.findings import Finding, Severity
from cudamem_testing.model.records import RunRecord, TestRecord
from cudamem_testing.model.references import Path
from cudamem_testing.model.sizes import count
from cudamem_testing.model.windows import Window
from cudamem_testing.records.known import KnownFinding, places
from cudamem_testing.report.codec import Json
from cudamem_testing.report.compare import Compared
from cudamem_testing.report.curves import StackNumbers, write_curve
from cudamem_testing.report.failures import failure_lines, notes, unchecked_lines
from cudamem_testing.show.atomic_files import replace_file
from cudamem_testing.show.pages import Listing, in_script, page_pieces, script_pieces
from cudamem_testing.show.printable import elide, one_line, printable
from cudamem_testing.wording.findings import details, headline
from cudamem_testing.wording.runs import verdict

MOST_BYTES = 4_300_000
LEAST_FOR_CURVES = 1_000_000
#: Points of a curve and stacks at its peak, in the order in which a page tries them.
_DETAIL = ((400, 200), (200, 80), (100, 40), (50, 15), (25, 6))
#: How many curves are measured to estimate the room that all of them need.
_SAMPLE = 40
_LONGEST_TEXT, _LONGEST_LINE = 20_000, 600


def run_page(run: RunRecord) -> Iterator[str]:
    """The page of one run, in pieces: one test after the other becomes text."""
    return page_pieces("Memory report", run_data(run), "report")


def compare_page(before: RunRecord, after: RunRecord, compared: Compared) -> Iterator[str]:
    """The page of two runs, in pieces: what changed, and every test of the later one."""
    data = run_data(after, before)
    data["compared"] = _compared(before, after, compared)
    return page_pieces("Memory reports compared", data, "report")


def run_data(run: RunRecord, earlier: RunRecord | None = None) -> Json:
    """What the scripts of the page read; tests and findings are a :class:`Listing`.

    Of an ``earlier`` run it holds the memory over time of tests that have one in both.
    """
    found = causes(run)
    by_key = {cause.key: number for number, cause in enumerate(found)}

    def of_tests() -> Iterator[Json]:
        return (_finding(one, number, by_key) for number, test in enumerate(run.tests) for one in test.findings)

    devices = [*dict.fromkeys(str(one.device) for test in run.tests for one in _used((*test.windows, *test.whole)))]
    state, text = verdict(run)
    data: Json = {
        "state": state,
        "verdict": text,
        "environment": [*run.environment],
        "flags": shlex.join(run.flags),
        "devices": devices,
        "tests": Listing(lambda: (_test(test, devices) for test in run.tests)),
        "findings": Listing(lambda: chain(of_tests(), (_finding(one, None, by_key) for one in run.findings))),
        "causes": [_cause(cause, run) for cause in found],
        "ledger": [[one.device, one_line(one.owner), one.bytes, one.blocks] for one in run.ledger],
        "fixtures": [
            [one_line(one.name), one.scope, one.first_used_by, [_window(window, devices) for window in one.windows]]
            for one in run.fixtures
        ],
        "notes": [*map(printable, notes(run))],
        "failures": failure_lines(run.failures, most=100),
        "unchecked": [*map(one_line, unchecked_lines(run))],
        "expected": [_expected(one) for one in run.checked if one.actual is not None],
    }
    some = [*_curves_of(run.tests, {} if earlier is None else {one_line(one.nodeid): one for one in earlier.tests})]
    if not some:
        return {**data, **_written((), 0, 0)[0]}
    return {**data, **_curves(some, MOST_BYTES - sum(map(len, script_pieces(data))))}


def _test(test: TestRecord, devices: Sequence[str]) -> Json:
    data: Json = {
        "id": one_line(test.nodeid),
        "o": test.outcome,
        "w": [_window(one, devices) for one in _used(test.windows)],
        "all": [_window(one, devices) for one in _used(test.whole)],
    }
    optional = {
        "a": test.attempt if test.attempt > 1 else None,
        "used": test.budget_used,
        "notes": [*map(printable, test.notes)],
        "unjudged": [*test.unjudged],
        "exhibits": [[one.title, one.text] for one in test.exhibits],
        "m": [_measured(one) for one in test.measured],
    }
    return {**data, **{key: value for key, value in optional.items() if value}}


def _used(windows: Iterable[Window]) -> Iterator[Window]:
    """Without those of pinned host memory in which none was used."""
    return (one for one in windows if not one.device.pseudo or one.peak_growth or one.retained)


def _measured(one: Measured) -> list[object]:
    """Device, what the numbers depend on, ``[lowest, highest]`` by metric, and the same of what is recorded."""
    values, recorded = (
        {metric: [spread.low, spread.high] for metric, spread in some.items()} for some in (one.values, one.recorded)
    )
    return [str(one.device), one.environment, values, *([recorded] if recorded else [])]


def _window(one: Window, devices: Sequence[str]) -> list[object]:
    """Name, device, start, peak, end, reserved peak, retained, allocations, retries, whether it is complete, notes."""
    row: list[object] = [
        one_line(one.name),
        devices.index(str(one.device)) if str(one.device) in devices else str(one.device),
        one.start,
        one.peak,
        one.end,
        one.reserved_peak,
        one.retained,
        one.allocations,
        one.retries,
        int(one.complete),
    ]
    return [*row, [*map(one_line, one.notes)]] if one.notes else row


def _finding(one: Finding, test: int | None, by_key: dict[tuple[str, str], int]) -> Json:
    key = key_of(one)
    data: Json = {
        "k": one.kind.value,
        "v": one.verdict.value,
        "anchor": one.verdict.anchor,
        "s": one.severity.value,
        "b": one.bytes,
        "d": None if one.device is None else str(one.device),
        "t": elide(headline(one), _LONGEST_LINE),
        "x": [*details(one)],
        "c": None if key is None else by_key.get(key),
        "n": test,
        "st": None if one.standing is None else one.standing.value,
        "at": one.allocated,
    }
    return {key: value for key, value in {**data, **_picture(one)}.items() if value is not None}


def _picture(one: Finding) -> Json:
    """What of the facts is drawn."""
    fact = one.fact
    if isinstance(fact, facts.FixtureGrew):
        fact = fact.left
    if isinstance(fact, facts.Retained):
        chains = [
            [block.name or "", block.bytes, *_chain(block.path)] for block in fact.shown if block.path is not None
        ]
        return {"chains": chains} if chains else {}
    if isinstance(fact, facts.CycleKept):
        return {"cycle": [one_line(piece) for piece in fact.chain], "keeps": [*map(one_line, fact.tensors)]}
    if isinstance(fact, facts.OverLimit):
        breach = fact.breach
        start = 0 if breach.limit.absolute else breach.window.start
        limit = breach.limit
        return {"limit": [limit.metric, limit.side, breach.bound, breach.measured, start, one_line(breach.window.name)]}
    if isinstance(fact, facts.Changed):
        change = fact.change
        both = [[spread.low, spread.high] for spread in (change.before, change.after)]
        grown = [
            [one.place, None if one.line is None else str(one.line), one.before, one.hidden, one.after]
            for one in fact.places
        ]
        return {"change": [change.metric, *both, change.slack, grown]}
    return {}


def _chain(path: Path) -> list[object]:
    """The root, and the text and the type of each step."""
    steps = [
        [one_line(step.reference.text), step.reference.kind.value, one_line(step.type_name)] for step in path.steps
    ]
    return [one_line(path.root), path.root_kind.value, steps]


def _cause(cause: Cause, run: RunRecord) -> Json:
    line = KnownFinding(cause.text, cause.device, cause.largest, places(cause.tests))
    return {
        "text": elide(one_line(cause.place), _LONGEST_TEXT),
        "key": f"{cause.device} {one_line(cause.text)}",
        "device": cause.device,
        "k": cause.kind.value,
        "v": cause.verdict.value,
        "anchor": cause.verdict.anchor,
        "s": cause.severity.value,
        "st": None if cause.standing is None else cause.standing.value,
        "b": cause.bytes,
        "largest": cause.largest,
        "findings": cause.findings,
        "tests": [*map(one_line, cause.tests)],
        "known": str(line),
    }


def _expected(one: Checked) -> list[object]:
    """Test, device, where the text lies, the wanted and the found text."""
    wanted = one.expected
    if wanted is not None and not isinstance(wanted, str):
        wanted = wanted.get(one.device or "", None)
    place = one.file if one.call is None else f"{one.file}:{one.call.line}"
    texts = [None if text is None else printable(text)[:_LONGEST_TEXT] for text in (wanted, one.actual)]
    return [one_line(one.test), one.device, one_line(place), *texts]


def _curves_of(tests: Sequence[TestRecord], earlier: Mapping[str, TestRecord]) -> Iterator[tuple[str, Curve]]:
    """Curves by the number of their test, and under ``before NUMBER`` those of the same test in an earlier run."""
    for number, test in enumerate(tests):
        yield from ((str(number), curve) for curve in test.curves)
        other = earlier.get(one_line(test.nodeid))
        kinds = {(curve.device, curve.by) for curve in test.curves}
        if other is not None:
            shared = (curve for curve in other.curves if (curve.device, curve.by) in kinds)
            yield from ((f"before {number}", replace(curve, live=())) for curve in shared)


def _curves(whole: Sequence[tuple[str, Curve]], room: int) -> Json:
    """Curves by their key, in the most detail for which there is room."""
    room = max(room, LEAST_FOR_CURVES)
    some = whole[:: max(len(whole) // _SAMPLE, 1)]
    sizes: list[int] = []
    for points, stacks in _DETAIL:
        if sum(_written(some, points, stacks)[1]) * len(whole) > room * len(some) * 1.2:
            continue  # by a sample far too large: writing all of them would show no more
        made, sizes = _written(whole, points, stacks)
        if sum(sizes) <= room:
            return made
    sizes = sizes or _written(whole, *_DETAIL[-1])[1]
    kept = 0
    for size in sizes:
        room -= size
        kept += room >= 0
        if room < 0:
            break
    made, _ = _written(whole[:kept], *_DETAIL[-1])
    left = len({key.rpartition(" ")[2] for key, _ in whole[kept:]})
    return {
        **made,
        "dropped": f"the memory over time of {count(left, 'test')} is left out: the page would be too large",
    }


def _written(some: Sequence[tuple[str, Curve]], points: int, stacks: int) -> tuple[Json, list[int]]:
    """The curves with their stacks, and about how many bytes each takes."""
    numbers = StackNumbers()
    curves: dict[str, list[Json]] = {}
    sizes = []
    for key, curve in some:
        data = write_curve(curve.thinned(points, stacks), numbers)
        curves.setdefault(key, []).append(data)
        sizes.append(len(in_script(data)))
    shared = {"frames": [*numbers.frames()], "stacks": [*numbers.stacks()]}
    if sizes:
        sizes[0] += len(in_script(shared))
    return {"curves": curves, **shared}, sizes


def _compared(before: RunRecord, after: RunRecord, compared: Compared) -> Json:
    old, new = ({one_line(test.nodeid): test for test in run.tests} for run in (before, after))
    keys = [{cause.key: cause for cause in causes(run)} for run in (before, after)]
    return {
        "environment": [[*before.environment], [*after.environment]],
        "lines": compared.lines,
        "rows": [
            [
                one_line(row.test),
                str(row.device),
                row.change.metric,
                [row.change.before.low, row.change.before.high],
                [row.change.after.low, row.change.after.high],
                row.change.growth,
                int(row.broken),
            ]
            for row in compared.rows
        ],
        "gone": [name for name in old if name not in new],
        "added": [name for name in new if name not in old],
        "causes": [*_cause_changes(*keys)],
        "places": _places(old, new),
    }


def _cause_changes(before: dict[tuple[str, str], Cause], after: dict[tuple[str, str], Cause]) -> Iterator[list[object]]:
    """Causes that failed or warned in one of the runs: text, kind, verdict, tests and bytes before and after."""
    for key in dict.fromkeys((*after, *before)):
        both = [run.get(key) for run in (before, after)]
        some = [one for one in both if one is not None and one.severity is not Severity.NOTE]
        if some:
            numbers = [[len(one.tests), one.bytes] if one in some and one is not None else None for one in both]
            yield [one_line(some[0].place), some[0].kind.value, some[0].verdict.value, *numbers]


def _places(old: dict[str, TestRecord], new: dict[str, TestRecord]) -> Json:
    """For tests of both runs whose live set at the peak was noted: bytes of each place before and after."""
    found: Json = {}
    for name, test in new.items():
        tops = [
            {place.name: place.bytes for one in record.measured for place in one.top or ()}
            for record in (old.get(name), test)
            if record is not None
        ]
        if len(tops) == 2 and all(tops) and tops[0] != tops[1]:
            names = sorted({*tops[0], *tops[1]}, key=lambda name: -(tops[1].get(name, 0) - tops[0].get(name, 0)))
            found[name] = [[one, tops[0].get(one), tops[1].get(one)] for one in names]
    return found


def write_html(run: RunRecord, path: pathlib.Path) -> None:
    """Write the report as a page to ``path``, whole or not at all.

    Raises:
        OSError: when it cannot be written; what stood at ``path`` is then untouched.
    """
    replace_file(path, (piece.encode() for piece in run_page(run)))


def write_comparison(before: RunRecord, after: RunRecord, compared: Compared, path: pathlib.Path) -> None:
    """Write a page that shows two reports and what changed between them, whole or not at all.

    Raises:
        OSError: when it cannot be written; what stood at ``path`` is then untouched.
    """
    replace_file(path, (piece.encode() for piece in compare_page(before, after, compared)))
