"""What a mismatch says first: what has changed, independent of the numbers of the tensors."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.records.expected.difference import MOST_LINES, MOST_STATEMENTS
from cudamem_testing.trace.comparison import compare, compare_tables
from cudamem_testing.trace.recorded import Recorded, detail_of, read_text
from cudamem_testing.trace.text import TextRow, layout

STEP = """\
    w: T0, grad T6
    x: T1

    aten::mul                 T1, T0           ->  T2
    aten::sin                 T2               ->  T3
    aten::sum                 T3               ->  T4
    SinBackward0              T4, T2           ->  T5
    MulBackward0              T5, T1           ->  T6
"""
FULL = """\
    x: T0

    aten::mul                 T0(v0), T0(v0)   ->  T1(v0)
    aten::sin                 T1(v0)           ->  T2(v0)
    [memory]                  T1(v0*)          ->
    aten::cos                 T2(v0)           ->  T3(v0)
    aten::sum                 T3(v0)           ->  T4(v0)
    [memory]                  T2(v0*)          ->
"""


def recorded(text: str) -> Recorded:
    found = read_text(textwrap.dedent(text))
    assert found is not None
    return found


def statements(before: str, after: str, **known: object) -> list[str]:
    found = compare(recorded(before), recorded(after), **known)  # type: ignore[arg-type]
    assert found is not None
    return found[0]


def rows(text: str, *, after: str, row: str) -> str:
    """A text with one row more."""
    lines = text.splitlines()
    place = next(place for place, line in enumerate(lines) if after in line)
    return "\n".join([*lines[: place + 1], f"    {row}", *lines[place + 1 :]])


def test_a_new_operator_has_its_size_line_and_replaced_tensor() -> None:
    changed = """\
        w: T0, grad T7
        x: T1

        aten::mul                 T1, T0           ->  T2
        aten::clone               T2               ->  T3
        aten::sin                 T3               ->  T4
        aten::sum                 T4               ->  T5
        SinBackward0              T5, T3           ->  T6
        MulBackward0              T6, T1           ->  T7
    """
    told = {1: "64.0 KiB, net.py:22 in forward"}
    assert statements(STEP, changed, told=lambda place: told.get(place, "")) == [
        "1 operator more: aten::clone, 64.0 KiB, net.py:22 in forward",
        "T7 in place of T2: aten::sin, SinBackward0",
    ]
    assert statements(changed, STEP) == ["1 operator fewer: aten::clone", "T2 in place of T3: aten::sin, SinBackward0"]


def test_the_diff_has_the_recorded_numbers() -> None:
    changed = """\
        x: T1
        w: T0, grad T9

        aten::mul                 T1, T0           ->  T5
        aten::sin                 T5               ->  T7
        aten::neg                 T7               ->  T2
        aten::sum                 T2               ->  T3
        SinBackward0              T3, T5           ->  T4
        MulBackward0              T4, T1           ->  T9
    """
    found = compare(recorded(STEP), recorded(changed))
    assert found is not None
    assert found[0] == ["1 operator more: aten::neg", "T7 in place of T3: aten::sum"]
    assert [line for line in found[1].splitlines() if line[0] in "+-"] == [
        "--- expected",
        "+++ actual",
        "-aten::sum    T3           ->  T4",
        "+aten::neg    T3           ->  T7",
        "+aten::sum    T7           ->  T4",
    ]


def test_several_operators_of_one_line_are_counted() -> None:
    changed = rows(
        rows(STEP, after="aten::sum", row="aten::neg  T4 -> T8"), after="aten::sum", row="aten::neg  T4 -> T7"
    )
    assert statements(STEP, changed) == ["2 operators more: aten::neg"]


def test_a_tensor_is_kept_until_a_backward_function_takes_it() -> None:
    changed = STEP.replace("MulBackward0              T5, T1 ", "MulBackward0              T5, T1, T3")
    assert statements(STEP, changed, size_of={"T3": "4.0 MiB"}.get) == [
        "T3 is now kept until MulBackward0, which takes it as well (4.0 MiB)"
    ]
    assert statements(changed, STEP) == ["T3 is taken no more by MulBackward0"]


def test_a_tensor_that_is_freed_later_or_earlier() -> None:
    line = "    [memory]                  T1(v0*)          ->\n"
    later = FULL.replace(line, "") + line
    assert statements(FULL, later, size_of=lambda name: "1.0 MiB" if name == "T1" else "") == [
        "T1 is now kept until aten::sum (1.0 MiB), before: aten::sin"
    ]
    assert statements(later, FULL) == ["T1 is now freed after aten::sin, before: aten::sum"]
    assert statements(FULL, FULL.replace(line, "")) == ["T1 is not freed any more"]
    within = FULL.replace("aten::cos                 T2(v0)", "aten::cos                 T2(v0*)")
    within = within.replace("    [memory]                  T2(v0*)          ->\n", "")
    assert statements(FULL, within) == ["T2 is now freed after aten::cos, before: aten::sum"]


def test_statements_about_a_tensor() -> None:
    before = "aten::mul  T0, T1  ->  T2 float32 64.0 KiB\naten::sin  T2  ->  T3 (ACTIVATION)"
    after = "aten::mul  T0, T1  ->  T2 float64 128.0 KiB\naten::sin  T2  ->  T3 (GRADIENT)"
    assert statements(before, after) == [
        "dtype float32 -> float64: 1 tensor, first T2 of aten::mul",
        "T3 of aten::sin is (GRADIENT), was (ACTIVATION)",
    ]


def test_a_change_of_dtype_is_one_statement() -> None:
    text = """\
        x: T0

        aten::mul                 T0, T0           ->  T1 float32 4.0 MiB
        aten::sin                 T1               ->  T2 float32 4.0 MiB
        aten::argmax              T2               ->  T3 int64 8 B
    """
    changed = text.replace("float32 4.0", "float64 8.0")
    assert statements(text, changed, told=lambda place: "8.0 MiB, net.py:3 in f" if not place else "") == [
        "dtype float32 -> float64: 2 tensors, first T1 of aten::mul, 8.0 MiB, net.py:3 in f"
    ]
    assert statements(text, text.replace("4.0 MiB", "2.0 MiB"))[0] == (
        "T1 of aten::mul is float32 2.0 MiB, was float32 4.0 MiB"
    )


def test_a_gradient_more_is_said_with_its_size() -> None:
    before, full = STEP.replace("T0, grad T6", "T0"), "    w: T0\n\n    aten::sin  T0  ->  T1"
    size_of = {"T6": "2.0 MiB", "T1": "1.0 MiB"}.get
    assert statements(before, STEP, size_of=lambda name: size_of(name, "")) == ["GRADIENT +2.0 MiB from w: T6"]
    more = full.replace("w: T0\n", "w: T0\n    w.grad: T1\n")
    assert statements(full, more, size_of=lambda name: size_of(name, "")) == ["GRADIENT +1.0 MiB from w: T1"]
    assert statements(more, full) == ["w.grad is gone, was T1"]


def test_names() -> None:
    assert statements(STEP, STEP.replace("T0, grad T6", "T0, grad unused")) == ["w is T0, grad unused, was T0, grad T6"]
    assert statements(STEP, STEP.replace("    x: T1\n", "")) == ["x is gone, was T1"]
    assert statements(STEP.replace("    x: T1\n", ""), STEP) == ["x is new: T1"]


def test_long_lists_wrap_and_regions_come_first() -> None:
    many = tuple(f"T{number}(v0)" for number in range(30))
    written = [TextRow(("a", "b"), "aten::_foreach_add_", many, many[:20]), TextRow((), "SinBackward0", (), ())]
    text = "\n".join(layout([("x", "T0"), ("gone", "unused")], written))
    assert read_text(text) == Recorded({"x": "T0", "gone": "unused"}, written)


@pytest.mark.parametrize("text", ["nonsense", "T1 -> T2\n  more", "   indented", "aten::mul  T0  T1"])
def test_other_texts_are_not_read(text: str) -> None:
    assert read_text(text) is None


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (None, "operators"),
        ("", "operators"),
        (STEP, "operators"),
        (FULL, "full"),
        ("module  phase  operators", "modules"),
    ],
)
def test_the_detail_of_a_text(text: str | None, detail: str) -> None:
    assert detail_of(text) == detail


def test_texts_with_little_in_common_are_shown_as_they_are() -> None:
    other = "\n".join(f"aten::other{number}  T0  ->  T{number + 1}" for number in range(9))
    assert compare(recorded(STEP), recorded(other)) is None


def test_no_more_is_said_than_can_be_read() -> None:
    before = "\n".join(f"aten::op{number}  T0  ->  T{number + 1}" for number in range(100))
    after = "\n".join(
        f"aten::op{number}  T0  ->  T{number + 1}" if number % 2 else f"aten::new{number}  T0  ->  T{number + 1}"
        for number in range(100)
    )
    found = compare(recorded(before), recorded(after))
    assert found is not None
    assert len(found[0]) == MOST_STATEMENTS + 1
    assert found[0][-1] == "and 88 more changes"
    assert len(found[1].splitlines()) == MOST_LINES + 1


def test_tables_of_modules() -> None:
    before = "module  phase    operators    reads\nmodel.a  forward          1  1.0 KiB\nmodel.b  forward   2  2.0 KiB"
    after = before.replace("          1  1.0 KiB", "          2  1.5 KiB").replace("model.b", "model.c")
    found = compare_tables(before, after)
    assert found is not None
    assert found[0] == [
        "model.a forward: operators 1 -> 2, reads 1.0 KiB -> 1.5 KiB",
        "model.c forward is new: operators 2, reads 2.0 KiB",
        "model.b forward is gone",
    ]


NAMES = st.sampled_from(["aten::mul", "aten::sin", "aten::add_", "MulBackward0", "[memory]"])


@st.composite
def programs(draw: st.DrawFn) -> Recorded:
    """Rows that take tensors that are there, and may make one."""
    known, found = ["T0", "T1"], []
    for _ in range(draw(st.integers(1, 25))):
        inputs = tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)))
        outputs = (f"T{len(known)}",) if draw(st.booleans()) else ()
        known += outputs
        found.append(TextRow((), draw(NAMES), inputs, outputs))
    return Recorded({"x": "T0", "y": "T1"}, found)


def renamed(text: Recorded, names: dict[str, str]) -> Recorded:
    def all_of(labels: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names[label] for label in labels)

    rows = [row._replace(inputs=all_of(row.inputs), outputs=all_of(row.outputs)) for row in text.rows]
    return Recorded({name: names[one] for name, one in text.heads.items()}, rows)


@given(text=programs(), data=st.data())
def test_other_numbers_are_no_change(text: Recorded, data: st.DataObject) -> None:
    labels = sorted({label for row in text.rows for label in (*row.inputs, *row.outputs)} | {"T0", "T1"})
    numbers = data.draw(st.permutations(range(len(labels))))
    names = {label: f"T{number + 100}" for label, number in zip(labels, numbers, strict=True)}
    assert compare(text, renamed(text, names)) is None
    assert compare(text, Recorded(text.heads, [*text.rows, TextRow((), "aten::neg", ("T0",), ("T999",))])) is not None


@given(text=programs(), data=st.data())
def test_an_operator_more_anywhere_is_found(text: Recorded, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(text.rows)))
    added = TextRow((), "aten::clone", ("T0",), ("T999",))
    more = Recorded(text.heads, [*text.rows[:place], added, *text.rows[place:]])
    found = compare(text, more)
    assert found is not None
    assert found[0] == ["1 operator more: aten::clone"]
