"""Snapshots as a page: the shell and the drawings of the report, with sections for what was asked for.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cudamem_testing.model.curves import Part
from cudamem_testing.model.live_tables import BEFORE_RECORD, LiveTable
from cudamem_testing.model.pools import MAIN_POOL
from cudamem_testing.model.sizes import count, format_size, signed
from cudamem_testing.report.curves import StackNumbers, write_curve, write_part
from cudamem_testing.report.snapshots import texts
from cudamem_testing.report.snapshots.looked import OF, Looked
from cudamem_testing.show.atomic_files import replace_file
from cudamem_testing.show.pages import page
from cudamem_testing.show.printable import one_line
from cudamem_testing.show.progress import Progress
from cudamem_testing.snapshots.diff import Difference
from cudamem_testing.snapshots.flames import Flame, flame_of
from cudamem_testing.snapshots.segments import Piece, pieces, segment_uses
from cudamem_testing.snapshots.whatif import text as words

NOTES = "Notes"
Json = dict[str, Any]
#: Stacks of a flame graph; smaller ones are one box.
MOST_STACKS = 2_000
_ROWS = ["size", "blocks", "line", "called by, or calls"]
_SEGMENTS = ["segment", "size", "used", "largest free", "pool", "stream", "largest line in it"]


def write_page(looked: Sequence[Looked], verb: str, top: int, path: Path, progress: Progress) -> None:
    """Write the page of some snapshots, whole or not at all.

    Raises:
        OSError: it cannot be written; an older file is untouched.
    """
    numbers = StackNumbers()
    files = []
    for one in looked:
        progress.step(f"drawing {one.name}", long=False)
        sections = [*_sections(one, verb, top, numbers)]
        if all(section["title"] == NOTES for section in sections):
            sections = [_said(one, verb, top)]
        files.append(_file(one, sections))
    _write("Memory snapshot" if len(files) == 1 else "Memory snapshots", files, numbers, path)


def write_difference(before: Looked, after: Looked, found: Difference, path: Path) -> None:
    """Write the page of what changed between two snapshots, whole or not at all.

    Raises:
        OSError: it cannot be written; an older file is untouched.
    """
    numbers = StackNumbers()
    rows = [[one.line, one.library or None, one.before, 0, one.after] for one in found.grown]
    sections = (
        [{"kind": "pairs", "title": "Lines that grew", "names": ["before", "later"], "rows": rows}] if rows else []
    )
    sections += [_flame(flame_of(found.new, "New", BEFORE_RECORD), numbers)] if len(found.new) else []
    sections += [_flame(flame_of(found.gone, "Gone", BEFORE_RECORD), numbers)] if len(found.gone) else []
    sections += [{"kind": "lines", "title": NOTES, "lines": [*map(one_line, found.notes)]}] if found.notes else []
    tiles = [
        ["growth", signed(found.growth), "bad" if found.growth > 0 else ""],
        ["new", f"{format_size(found.new.total)} in {count(len(found.new), 'block')}", ""],
        ["gone", f"{format_size(found.gone.total)} in {count(len(found.gone), 'block')}", ""],
    ]
    name = f"{before.name} to {after.name}"
    _write("Memory snapshots compared", [{"name": name, "tiles": tiles, "sections": sections}], numbers, path)


def _write(title: str, files: list[Json], numbers: StackNumbers, path: Path) -> None:
    shared = {"frames": [*numbers.frames()], "stacks": [*numbers.stacks()]}
    replace_file(path, page(title, {"files": files, **shared}, "snapshot").encode())


def _file(looked: Looked, sections: list[Json]) -> Json:
    one = looked.recording
    tiles = [["allocated", format_size(one.allocated), ""]]
    if looked.peak is not None:
        tiles.insert(0, ["peak", format_size(looked.peak.total), ""])
    if one.reserved is not None:
        tiles.append(["reserved", format_size(one.reserved), ""])
    if looked.use is not None and looked.use.main.free:
        tiles.append(["fragmentation of unused bytes", f"{100 * looked.use.main.fragmented:.0f} %", ""])
    tiles.append([f"recorded on {one.device}", count(len(one.events), "event"), ""])
    return {"name": one_line(looked.name), "tiles": tiles, "sections": sections}


def _said(looked: Looked, verb: str, top: int) -> Json:
    """What the command prints where there is nothing to draw."""
    return {"kind": "lines", "title": "Nothing to draw", "lines": [*map(one_line, _lines(looked, verb, top))]}


def _lines(looked: Looked, verb: str, top: int) -> Iterator[str]:
    found: Iterator[str] = getattr(texts, verb)(looked, top, None)
    return found


def _sections(looked: Looked, verb: str, top: int, numbers: StackNumbers) -> Iterator[Json]:
    if verb in ("show", "timeline", "peak") and looked.curve is not None:
        data = write_curve(looked.curve, numbers)
        yield {"kind": "curve", "title": "Memory over time, by line of code", "curve": data}
    if verb in ("show", "peak") and looked.peak is not None and looked.peak_table is not None:
        yield _flame(looked.flame("peak"), numbers)
        yield _table(looked.peak_table, "Live at the peak, by line", top)
    if verb == "show":
        yield _table(looked.end_table, "Live at the end, by line", top)
    if verb in ("show", "churn") and looked.churn.rows:
        cells = [[each.soon, each.bytes, each.largest, each.line, each.library] for each in looked.churn.rows[:20]]
        heads = ["freed at once", "all its bytes", "largest", "line", "calls"]
        table = {"kind": "table", "heads": heads, "sizes": [1, 2], "counts": [0], "bar": 0, "rows": cells}
        yield {**table, "title": "Allocated and freed again at once, in a loop"}
    if verb == "flamegraph":
        for of in OF if looked.peak is not None else ("end",):
            yield _flame(looked.flame(of), numbers)
    if verb == "why":
        yield from _why(looked, top)
    if verb in ("show", "fragmentation", "why") and looked.use is not None:
        yield _map(looked)
        yield _pools(looked)
        if verb != "why":
            yield from _segments(looked, top)
    notes = looked.notes_of_why if verb == "why" else looked.notes
    if notes:
        yield {"kind": "lines", "title": NOTES, "lines": [*map(one_line, notes)]}


def _why(looked: Looked, top: int) -> Iterator[Json]:
    one, asked = looked.why, looked.what_if
    if one is not None:
        yield {"kind": "text", "title": words.headline(one), "tone": "bad", "lines": [words.verdict(one)]}
        rows: list[list[object]] = [[*map(one_line, row)] for row in words.figures(one)]
        yield {
            "kind": "table",
            "title": "What there was",
            "heads": ["what", "size", "detail"],
            "counts": [1],
            "prose": [0, 2],
            "rows": rows,
        }
    if one is not None and one.obstacles:
        rows = [
            [each.size, each.blocks, one_line(each.line), words.age(each)] for each in one.obstacles[: max(top, 20)]
        ]
        heads = ["size", "blocks", "line", "age"]
        table = {"kind": "table", "heads": heads, "sizes": [0], "counts": [1], "bar": 0, "prose": [3], "rows": rows}
        yield {**table, "title": "In the way", "note": words.in_the_way(one)}
    if isinstance(asked, str):
        yield {"kind": "lines", "title": "What would have changed it is unknown", "lines": [one_line(asked)]}
        return
    rows = [["as recorded", asked.recorded, "" if one is None else "the request does not fit"]]
    rows += [[one_line(each.what), each.at_most, words.range_and_outcome(asked, each)] for each in asked.answers]
    marked = [place for place, each in enumerate(asked.answers, 1) if each is asked.best]
    heads = ["with", "peak reserved", "the request"]
    table = {"kind": "table", "heads": heads, "sizes": [1], "bar": 1, "prose": [2], "rows": rows, "marked": marked}
    yield {**table, "title": "What would have changed it", "note": words.trust(asked)}


def _flame(flame: Flame, numbers: StackNumbers) -> Json:
    kept, rest = [*flame.parts[:MOST_STACKS]], flame.parts[MOST_STACKS:]
    if rest:
        sizes = sum(one.bytes for one in rest), sum(one.blocks for one in rest)
        kept.append(Part(*sizes, None, f"({count(len(rest), 'more stack')})", "rest"))
    return {"kind": "flame", "title": flame.title, "live": [write_part(one, numbers) for one in kept]}


def _table(table: LiveTable, title: str, top: int) -> Json:
    rows = [[row.size, row.blocks, one_line(row.line), one_line(row.detail)] for row in table.rows(max(top, 20))]
    return {"kind": "table", "title": title, "heads": _ROWS, "sizes": [0], "counts": [1], "bar": 0, "rows": rows}


def _map(looked: Looked) -> Json:
    """The segments in the order of their addresses, as ranges with the line that holds them."""
    lines: dict[str, int] = {}
    held: dict[str, int] = {}
    found = [*pieces(looked.recording)]
    for one in found:
        held[one.line] = held.get(one.line, 0) + one.size
    for line in sorted(held, key=lambda name: -held[name]):
        if line not in (Piece.FREE, Piece.RETURNABLE):
            lines.setdefault(line, len(lines))
    rows = [
        [one.size, one.segment, {Piece.FREE: -1, Piece.RETURNABLE: -2}.get(one.line, lines.get(one.line, 0))]
        for one in found
    ]
    return {
        "kind": "map",
        "title": "Segments at the end, in the order of their addresses",
        "pieces": rows,
        "lines": [*map(one_line, lines)],
    }


def _pools(looked: Looked) -> Json:
    use = looked.use
    heads = [
        "pool",
        "segments",
        "reserved",
        "allocated",
        "unused",
        "beside blocks in use",
        "largest unused",
        "fragmentation",
    ]
    rows: list[list[object]] = []
    for one in () if use is None else (use.main, *use.private, *use.streams):
        name = "main" if one.pool == MAIN_POOL else f"private {one.pool}"
        name += f", stream {one.stream}" if one.stream is not None else ""
        share = f"{100 * one.fragmented:.0f} %" if one.free else ""
        rows.append([name, one.segments, one.reserved, one.allocated, one.free, one.split, one.largest_free, share])
    return {
        "kind": "table",
        "title": "Pools at the end",
        "heads": heads,
        "sizes": [2, 3, 4, 5, 6],
        "counts": [1, 7],
        "rows": rows,
    }


def _segments(looked: Looked, top: int) -> Iterator[Json]:
    uses = [one for one in segment_uses(looked.recording) if one.split]
    if not uses:
        return
    rows = []
    for one in uses[: max(top, 20)]:
        pool = "main" if one.segment.pool == MAIN_POOL else str(one.segment.pool)
        sizes = [one.segment.size, one.used, one.largest_free]
        rows.append([f"{one.segment.address:#x}", *sizes, pool, one.segment.stream, one_line(one.line)])
    more = len(uses) - len(rows)
    note = f"{count(more, 'more segment')} not shown" if more else ""
    title = "Segments in use with unused bytes, at the end"
    shown = {"heads": _SEGMENTS, "sizes": [1, 2, 3], "counts": [5], "rows": rows, "note": note}
    yield {"kind": "table", "title": title, **shown}
