"""The lines of a live set, and which of them differ from the recorded ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cudamem_testing.model.baselines import TOP, PeakLine
from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.changes import ChangedPlace
from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.snapshots.backward import ENGINE
from cudamem_testing.verdicts.changed import changed_places
from cudamem_testing.verdicts.lines import DIGITS, Line, fingerprint, fingerprints, lines_of, top_of

CPU = Device("cpu")
LIBRARY = Frame("torch/nn/functional.py", 5, "softmax", "library")
MODEL = Frame("transformers/models/gpt2.py", 7, "MLP.forward", "library")
TEST = Frame("test_net.py", 3, "test_step")
SOURCE = {10: "h = self.fc1(x)", 11: "h = gelu(h)", 12: "h = self.fc1(x)"}


def written(frame: Frame) -> tuple[str, int]:
    return SOURCE.get(frame.line, ""), int(frame.line == 12)


def block(size: int, line: int, function: str = "forward", order: int = 0, inner: Sequence[Frame] = ()) -> Block:
    stack = Stack((*inner, Frame("net.py", line, function), TEST))
    return Block(size, size, CPU, stack=stack, order=order)


def live(*blocks: Block) -> LiveSet:
    return LiveSet(CPU, blocks)


def line(
    text: str, size: int, number: int = 10, *, order: int = 0, name: str = "net.py::forward", **more: int | None
) -> Line:
    return Line(name, text, more.pop("nth", 0), Frame("net.py", number, "forward"), size, 1, order=order, **more)  # type: ignore[arg-type]


def place(text: str, size: int, name: str = "net.py::forward", **more: int) -> PeakLine:
    return PeakLine(name, size, text, 1, **more)  # type: ignore[arg-type]


def told(before: Sequence[PeakLine], lines: Sequence[Line]) -> list[tuple[str, int]]:
    return [(one.text, one.growth) for one in changed_places(before, lines)[0]]


def test_lines_of_a_live_set() -> None:
    blocks = (
        block(4, 10, order=1),
        block(4, 10, order=2),
        block(9, 11, order=3, inner=(LIBRARY,)),
        block(1, 12, order=4),
        block(2, 30, "other", order=5),
    )
    found = lines_of(live(*blocks), written, saved={1, 3}, recorded={1, 2})
    caller = TEST
    assert found == (
        Line("net.py::forward", "h = gelu(h)", 0, Frame("net.py", 11, "forward"), 9, 1, 9, 0, 3, "softmax", caller),
        Line("net.py::forward", "h = self.fc1(x)", 0, Frame("net.py", 10, "forward"), 8, 2, 4, 8, 1, "", caller),
        Line("net.py::other", "", 0, Frame("net.py", 30, "other"), 2, 1, 0, 0, 5, "", caller),
        Line("net.py::forward", "h = self.fc1(x)", 1, Frame("net.py", 12, "forward"), 1, 1, 0, 0, 4, "", caller),
    )
    assert top_of(found, 2) == (
        PeakLine("net.py::forward", 9, "h = gelu(h)", 1, saved=9, recorded=False),
        PeakLine("net.py::forward", 8, "h = self.fc1(x)", 2, saved=4, recorded=True),
    )
    assert len(top_of(lines_of(live(*(block(1, 1, f"f{number}") for number in range(2 * TOP)))))) == TOP
    assert lines_of(live(block(5, 10)))[0].place == PeakLine("net.py::forward", 5, "", 1)
    assert lines_of(live(Block(5, 5, CPU)))[0].place == PeakLine("(no Python stack)", 5, "", 1)


def test_the_call_of_a_line_is_the_one_of_most_bytes_in_all() -> None:
    gelu = Frame("torch/nn/functional.py", 6, "gelu", "library")
    blocks = [block(size, 10, inner=(call,)) for size, call in ((5, gelu), (3, LIBRARY), (3, LIBRARY))]
    assert [(one.bytes, one.call) for one in lines_of(live(*blocks), written)] == [(11, "softmax")]


def test_a_line_without_source_is_at_the_frame_of_most_bytes() -> None:
    (found,) = lines_of(live(block(3, 10), block(3, 10), block(5, 11)))
    assert (found.bytes, found.frame) == (11, Frame("net.py", 10, "forward"))


def test_a_library_that_calls_the_project_is_not_in_its_line() -> None:
    stack = Stack((Frame("net.py", 10, "forward"), MODEL, TEST))
    (found,) = lines_of(live(Block(5, 5, CPU, stack=stack)), written)
    assert (found.name, found.call, found.order) == ("net.py::forward", "", 0)


def test_what_the_autograd_engine_allocates_is_backward() -> None:
    engine = Frame(ENGINE[0], 5, ENGINE[1], "library")
    assert [one.call for one in lines_of(live(block(5, 10, inner=(engine,))), written)] == ["backward"]


@pytest.mark.parametrize(("recorded", "most"), [(None, None), (0, False), (4, False), (5, False), (6, True)])
def test_most_of_a_line_is_more_than_half(recorded: int | None, most: bool | None) -> None:
    assert line("a = f(x)", 10, recorded=recorded).is_recorded is most


def test_each_function_of_a_model_of_a_library_has_its_line() -> None:
    blocks = (block(4, 10, inner=(LIBRARY, MODEL)), block(3, 10, inner=(LIBRARY,)))
    assert [(one.name, one.call) for one in lines_of(live(*blocks), written)] == [
        ("net.py::forward > transformers/models/gpt2.py::MLP.forward", "gpt2.py:7 in MLP.forward"),
        ("net.py::forward", "softmax"),
    ]


def test_the_line_that_grew_is_named_and_not_its_function() -> None:
    before = (place("a = f(x)", 8), place("b = g(a)", 9), place("c = h(b)", 4))
    lines = (line("a = f(x)", 8, 1), line("b = g(a)", 9, 2), line("c = h(b)", 7, 3))
    assert changed_places(before, lines) == (
        [ChangedPlace("net.py::forward", Frame("net.py", 3, "forward"), (), 4, 7, 0, 0, 0, 1, 1, "c = h(b)")],
        0,
    )
    assert changed_places(before, (*lines[:2], line("c = h(b)", 4))) == ([], 0)


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        (line("a = f(x).clone()", 12, 2), [("a = f(x).clone()", 4)]),  # edited
        (line("a = f(x)", 12, 2, name="net.py::renamed"), [("a = f(x)", 4)]),
        (line("completely(different)", 12, 2), [("completely(different)", 12), ("a = f(x)", -8)]),
        (line("a = f(x)", 12, 2, nth=1), [("a = f(x)", 4)]),
        *(
            (line("a = f(x).clone()", 12, 2, name=name), [("a = f(x).clone()", 12), ("a = f(x)", -8)])
            for name in ("net.py::earlier", "net.py::later")
        ),
    ],
    ids=["edited", "renamed function", "another line", "the second of equal lines", "another function", "yet another"],
)
def test_a_line_is_found_again(after: Line, wanted: list[tuple[str, int]]) -> None:
    before = (place("a = f(x)", 8), place("b = g(a)", 9))
    found, _ = changed_places(before, (after, line("b = g(a)", 9)))
    assert [(one.text, one.growth) for one in found] == wanted
    assert found[0].was == ("a = f(x)" if wanted == [("a = f(x).clone()", 4)] else "")


@pytest.mark.parametrize(("one", "other"), ["xy", "yx"])
def test_each_edited_line_has_its_own_text_from_before(one: str, other: str) -> None:
    before = (place("a = f(x)", 8), place("a = f(y)", 8))
    found, _ = changed_places(before, (line(f"a = f({one}).clone()", 12), line(f"a = f({other}).t()", 11)))
    assert [(each.text, each.was, each.before) for each in found] == [
        (f"a = f({one}).clone()", f"a = f({one})", 8),
        (f"a = f({other}).t()", f"a = f({other})", 8),
    ]


def test_an_edited_line_comes_before_larger_consequences() -> None:
    before = (place("a = f(x)", 8), place("b = g(a)", 9))
    lines = (line("b = g(a)", 29, order=2), line("a = f(x).clone()", 12, order=1))
    assert told(before, lines) == [("a = f(x).clone()", 4), ("b = g(a)", 20)]
    little = (line("b = g(a)", 99, order=2), line("a = f(x).clone()", 12, order=1))
    assert told(before, little) == [("b = g(a)", 90), ("a = f(x).clone()", 4)]


def test_larger_blocks_begin_at_the_first_line_that_allocates() -> None:
    before = (place("b = g(a)", 9), place("c = h(b)", 8), place("d = i(c)", 8))
    lines = (line("b = g(a)", 18, order=3), line("c = h(b)", 16, order=2), line("a = x.double()", 1, order=1))
    assert told(before, lines) == [("a = x.double()", 1), ("b = g(a)", 9), ("c = h(b)", 8), ("d = i(c)", -8)]
    assert [one.factor for one in changed_places(before, lines)[0]] == [None, 2, 2, None]


def test_what_autograd_keeps() -> None:
    before = (
        place("a = f(x)", 8),
        place("b = g(a)", 8, saved=8),
        place("c = h(b)", 8, recorded=False),
        place("d = i(c)", 8),
        place("e = j(d)", 8),
    )
    lines = (
        line("a = f(x)", 16, saved=4),
        line("b = g(a)", 16, saved=11),
        line("c = h(b)", 16, recorded=16),
        line("d = i(c)", 16, saved=3),
        line("e = j(d)", 16, recorded=16),  # unknown before
    )
    found = {one.text[0]: one.is_for_backward for one in changed_places(before, lines)[0]}
    assert found == {"a": True, "b": False, "c": True, "d": False, "e": False}


@pytest.mark.parametrize(
    ("before", "is_for_backward"),
    [
        ((place("a = f(x)", 8, recorded=False), place("x = g()", 8, name="test.py::test", recorded=True)), True),
        ((place("a = f(x)", 8, recorded=True), place("x = g()", 8, name="test.py::test", recorded=False)), False),
        ((place("a = f(x)", 8), place("x = g()", 8, name="test.py::test", recorded=False)), False),
        ((place("a = f(x)", 8, recorded=False), place("x = g()", 8, name="a.py::test", recorded=True)), True),
        ((place("x = g()", 8, name="test.py::test", recorded=False),), True),
        ((place("x = g()", 8, name="test.py::test"),), False),
    ],
    ids=[
        "off in the function",
        "on in the function",
        "off, on in an earlier one",
        "unknown in the function",
        "off",
        "unknown",
    ],
)
def test_grad_mode_at_a_line_that_was_not_recorded(before: Sequence[PeakLine], is_for_backward: bool) -> None:
    (found,) = [
        one for one in changed_places(before, (line("entirely(different)", 8, recorded=8),))[0] if one.growth > 0
    ]
    assert (found.recorded, found.is_for_backward) == (is_for_backward, is_for_backward)
    (found,) = [one for one in changed_places(before, (line("entirely(different)", 8),))[0] if one.growth > 0]
    assert not found.recorded


def test_lines_not_recorded_had_at_most_the_least_recorded() -> None:
    before = tuple(place(f"f{number}()", 100 - number) for number in range(TOP))
    least = before[-1].bytes
    lines = (line("a()", 50), line("b()", least + 6))
    found = [one for one in changed_places(before, lines)[0] if one.growth > 0]
    assert [(one.text, one.growth, one.hidden) for one in found] == [("b()", 6, least)]


def test_small_changes_are_left_out_and_many_are_counted() -> None:
    before = tuple(place(f"old{number}_{'x' * 30}()", 1000) for number in range(9))
    lines = tuple(line(f"{chr(97 + number) * 30}()", 1000) for number in range(11))
    found, more = changed_places(before, (*lines, line("tiny()", 1)))
    assert [one.growth for one in found] == [1000] * 8 + [-1000] * 3
    assert more == (11 - 8) + (9 - 3)


def test_a_baseline_of_functions_names_the_line_of_most_bytes() -> None:
    """As earlier versions recorded it."""
    before = (PeakLine("net.py::forward", 6), PeakLine("net.py::g", 4))
    lines = lines_of(live(block(3, 10), block(9, 11), block(9, 12), block(4, 20, "g"), block(2, 31, "new")), written)
    assert changed_places(before, lines)[0] == [
        ChangedPlace("net.py::forward", Frame("net.py", 12, "forward"), (10, 11, 12), 6, 21, blocks=3, caller=TEST),
        ChangedPlace("net.py::new", Frame("net.py", 31, "new"), (31,), None, 2, blocks=1, caller=TEST),
    ]


def test_a_line_that_was_not_at_the_peak_is_not_new() -> None:
    before, now = (
        (place("scores = query @ key", 9),),
        (line("a = f(x)", 8, order=1), line("copied = torch.clone(a)", 8, order=2)),
    )
    stacks = [Stack((LIBRARY, Frame("net.py", number, "forward"))) for number in (10, 11, 12, 10)]
    known = fingerprints([*stacks, Stack(), Stack((LIBRARY,))], written)
    assert len(known) == 3 * DIGITS
    assert fingerprint("net.py::forward > lib.py::f", "h = gelu(h)", 0) in known
    assert told(before, now) == [("a = f(x)", 8), ("copied = torch.clone(a)", 8), ("scores = query @ key", -9)]
    found, _ = changed_places(before, now, fingerprint("net.py::forward", "a = f(x)", 0))
    assert [(one.text, one.before) for one in found] == [
        ("copied = torch.clone(a)", None),
        ("a = f(x)", 0),
        ("scores = query @ key", 9),
    ]
