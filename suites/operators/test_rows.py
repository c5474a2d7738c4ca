"""Rows of notes and calls: they add up, also if calls overlap."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.operators.rows import (
    BETWEEN,
    Levels,
    Mark,
    Marker,
    OperatorCall,
    OperatorRow,
    Phase,
    levels_of,
    markers_of,
    overlap,
    rows_of,
)
from cudamem_testing.recorders.native_journal import Note

FORWARD, BACKWARD, OPTIMIZER, OTHER = Phase


def notes_of(changes: Sequence[tuple[int, int, int]], start: int = 1000) -> list[Note]:
    """Notes of a device, from what is allocated, freed and held for a moment between two of them."""
    notes = [Note(start, start + 77, 50, 5, start, 2 * start, 0)]
    for allocated, freed, moment in changes:
        before = notes[-1]
        level = before.allocated + allocated - freed
        notes.append(
            Note(
                level,
                max(before.allocated, level) + moment,
                before.allocated_total + allocated,
                before.allocations + (allocated > 0),
                level,
                before.reserved + moment,
                before.retries + (moment > 5),
            )
        )
    return notes


def test_calls_and_what_is_between() -> None:
    notes = notes_of([(0, 3, 0), (10, 0, 6), (0, 0, 0), (4, 4, 4), (0, 2, 0)])
    calls = [OperatorCall(1, 2, "a", FORWARD, "x"), OperatorCall(3, 4, "b", BACKWARD, None)]
    rows = rows_of("cpu", notes, calls, [])
    assert rows == [
        OperatorRow(0, BETWEEN, None, OTHER, "cpu", 0, 3, 0, 1000, 997, 997, 2000, 0),
        OperatorRow(0, "a", "x", FORWARD, "cpu", 10, 0, 1, 1013, 1007, 1007, 2006, 1),
        OperatorRow(1, "b", None, BACKWARD, "cpu", 4, 4, 1, 1011, 1007, 1007, 2010, 0),
        OperatorRow(2, BETWEEN, None, BACKWARD, "cpu", 0, 2, 0, 1007, 1005, 1005, 2010, 0),
    ]
    assert [(row.before, row.kept, row.temporary) for row in rows] == [
        (1000, -3, 0),
        (997, 10, 6),
        (1007, 0, 4),
        (1007, -2, 0),
    ]
    assert levels_of("cpu", notes) == Levels("cpu", 1000, 1013, 1005)


def test_a_call_begun_last_owns_what_happens() -> None:
    notes = notes_of([(1, 0, 0), (2, 0, 9), (4, 0, 0), (8, 0, 0)])
    calls = [OperatorCall(0, 3, "outer", FORWARD, "x"), OperatorCall(1, 2, "inner", FORWARD, "y")]
    rows = rows_of("cpu", notes, calls, [])
    assert [(row.call, row.operator, row.allocated, row.peak) for row in rows] == [
        (0, "outer", 5, 1007),
        (1, "inner", 2, 1012),
        (2, BETWEEN, 8, 1015),
    ]
    assert overlap(calls)
    assert not overlap([OperatorCall(0, 1, "", OTHER, None), OperatorCall(1, 3, "", OTHER, None)])


def test_marks_part_what_is_between_operators() -> None:
    notes = notes_of([(1, 0, 0), (2, 0, 0), (0, 3, 0), (4, 0, 0), (0, 5, 0)])
    calls = [OperatorCall(0, 1, "a", FORWARD, "x"), OperatorCall(3, 4, "b", OPTIMIZER, None)]
    marks = [
        Mark(0, "fw_start", FORWARD),
        Mark(2, "fw_bw_boundary", OTHER, region="decode"),
        Mark(3, "", OPTIMIZER),
        Mark(4, "step 1", region="", step=1),
    ]
    rows = rows_of("cpu", notes, calls, marks)
    assert [(row.operator, row.kept, row.phase, row.region, row.step) for row in rows] == [
        ("a", 1, FORWARD, "", 0),
        (BETWEEN, 2, FORWARD, "", 0),
        (BETWEEN, -3, OTHER, "decode", 0),
        ("b", 4, OPTIMIZER, "decode", 0),
        (BETWEEN, -5, OPTIMIZER, "", 1),
    ]
    assert markers_of(calls, marks) == (Marker("fw_start", 0), Marker("fw_bw_boundary", 1), Marker("step 1", 2))


def test_unknown_numbers_are_none() -> None:
    notes = [Note(0, -1, 0, 0, -1, -1, -1), Note(8, -1, 8, 1, -1, -1, -1)]
    (row,) = rows_of("cpu", notes, [OperatorCall(0, 1, "a", FORWARD, None)], [])
    assert (row.peak, row.temporary, row.active, row.reserved, row.retries) == (None,) * 5
    assert levels_of("cpu", notes) == Levels("cpu", 0, None, 8)
    assert levels_of("cpu", notes[:1]) == Levels("cpu", 0, 0, 0)


def test_counts_that_were_restarted_still_add_up() -> None:
    notes = [Note(100, 100, 5000, 9, 0, 0, 3), Note(140, 150, 60, 2, 0, 0, 0), Note(90, 140, 60, 2, 0, 0, 0)]
    rows = rows_of(
        "cuda:0", notes, [OperatorCall(0, 1, "a", FORWARD, None), OperatorCall(1, 2, "b", FORWARD, None)], []
    )
    assert [(row.allocated, row.freed, row.allocations, row.retries) for row in rows] == [(60, 20, 0, 0), (0, 50, 0, 0)]


@given(st.data())
def test_rows_add_up(data: st.DataObject) -> None:
    changes = data.draw(st.lists(st.tuples(*[st.integers(0, 50)] * 3), max_size=12))
    notes = notes_of(changes)
    ends = st.tuples(st.integers(0, len(changes)), st.integers(0, len(changes))).map(sorted)
    spans = data.draw(st.lists(ends.filter(lambda span: span[0] < span[1]), max_size=6) if changes else st.just([]))
    calls = [OperatorCall(before, after, "x", FORWARD, None) for before, after in sorted(spans)]
    marks = [Mark(note, "", OTHER) for note in sorted(data.draw(st.lists(st.integers(0, len(changes)), max_size=4)))]
    rows = rows_of("cpu", notes, calls, marks)
    levels = levels_of("cpu", notes)
    assert sum(row.kept for row in rows) == levels.end - levels.start
    assert sum(row.allocated for row in rows) == notes[-1].allocated_total - notes[0].allocated_total
    assert sum(row.allocations for row in rows) == notes[-1].allocations - notes[0].allocations
    # A pause in which nothing was allocated or freed has no row; its peak is the level of a neighbour, or a moment's.
    quiet = max((note.peak for note, change in zip(notes[1:], changes, strict=True) if change[:2] == (0, 0)), default=0)
    assert max([levels.start, quiet, *(row.peak or 0 for row in rows)]) == max(levels.start, levels.peak or 0)
    numbers = [row.call for row in rows if row.operator != BETWEEN]
    assert len(numbers) == len({*numbers})
