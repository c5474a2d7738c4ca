"""Diagrams of objects: DOT, pages, what is left out, and names that try to break out."""

from __future__ import annotations

import json
import re
import types
from typing import Any

import pytest
import torch

from cudamem_testing import annotated_references, object_graph, reference_cycles
from cudamem_testing.cycles import draw
from cudamem_testing.cycles.draw import MOST_BOXES, cycle_diagram
from cudamem_testing.show.diagrams import Arrow, Box, Diagram

pytestmark = pytest.mark.usefixtures("small_heap")
EVIL = '</script><script>alert(1)</script>"\\'


class Node:
    """Anything with attributes."""


def data(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert match is not None
    found: dict[str, Any] = json.loads(match[1])
    return found


def test_references_of_an_object() -> None:
    one: Any = Node()
    one.items = [one]
    found = annotated_references(one)
    assert found[id(one.items)] == [".items"]
    assert annotated_references(one.items)[id(one)] == ["[0]"]


def test_graph_of_some_objects() -> None:
    one: Any = Node()
    one.big, one.other = torch.ones(2), [1]
    shown = object_graph([one, one.big, one.other], context=lambda obj: "line 1\nline 2" if obj is one.big else None)
    assert [(box.label, box.kind) for box in shown.boxes] == [("Node", ""), ("float32[2] on cpu", "tensor")]
    assert shown.legend == (("tensor", "tensor"),)
    assert shown.arrows == (Arrow(0, 1, ".big"),)
    assert shown.notes == ("1 objects that lead to none of these are left out",)
    assert shown.boxes[1].detail == "torch.Tensor\nline 1\nline 2"
    lists = object_graph([one, one.big, one.other], filter=lambda obj: isinstance(obj, list))
    assert [box.label for box in lists.boxes] == ["Node", "list (1 item)"]


def test_dot_of_a_cycle() -> None:
    with reference_cycles() as cycles:
        one: Any = Node()
        one.me, one.big = one, torch.ones(2)
        del one
    assert cycles.dot().splitlines() == [
        "digraph {",
        "  rankdir=LR;",
        "  node [shape=box];",
        "  // Shown is what leads to tensors, without the interpreter's inner objects.",
        f'  n0 [label="Node", style=bold, tooltip="{Node.__module__}.Node"];',
        '  n1 [label="float32[2] on cpu", color=red, tooltip="torch.Tensor\\n8 bytes on cpu"];',
        '  n0 -> n0 [label=".me", penwidth=2];',
        '  n0 -> n1 [label=".big"];',
        "}",
    ]


def some_cycle() -> tuple[Any, Any, torch.Tensor, list[object]]:
    """Two objects in a cycle, and what the second one holds: a tensor, and a list with the same tensor."""
    one, other, big = Node(), Node(), torch.ones(2)
    one.next, other.back = other, one  # type: ignore[attr-defined]
    other.big, other.many = big, [big, one, 5]  # type: ignore[attr-defined]
    return one, other, big, other.many  # type: ignore[attr-defined]


def test_a_cycle_and_what_hangs_on_it() -> None:
    """What is inside, nearest first; arrows between objects of the cycle are bold."""
    one, other, big, many = some_cycle()
    inside = {id(each) for each in (one, other, big, many)}
    shown = cycle_diagram(
        [one, other, one], [big], lambda obj: id(obj) in inside, lambda obj: "8 B" if obj is big else None, 9, "title"
    )
    assert [(box.label, box.kind) for box in shown.boxes] == [
        ("Node", "cycle"),
        ("Node", "cycle"),
        ("float32[2] on cpu", "tensor"),
        ("list (3 items)", ""),
    ]
    assert shown.boxes[2].detail == "torch.Tensor\n8 B"
    assert shown.boxes[3].detail == "builtins.list"
    assert shown.arrows == (
        Arrow(0, 1, ".next", True),
        Arrow(1, 0, ".back", True),
        Arrow(1, 2, ".big"),
        Arrow(1, 3, ".many"),
        Arrow(3, 2, "[0]"),
        Arrow(3, 0, "[1]"),
    )
    assert shown.notes == ("Shown is what leads to tensors, without the interpreter's inner objects.",)
    assert (shown.title, shown.legend) == ("title", (("cycle", "in the cycle"), ("tensor", "tensor")))


@pytest.mark.parametrize(("total", "left"), [(9, 6), (3, None)])
def test_a_full_diagram_says_what_is_left_out(monkeypatch: pytest.MonkeyPatch, total: int, left: int | None) -> None:
    one, other, big, _ = some_cycle()
    monkeypatch.setattr(draw, "MOST_BOXES", 3)
    shown = cycle_diagram([one, other], [big], lambda obj: True, lambda obj: None, total, "title")
    assert len(shown.boxes) == 3
    more = (f"Shown are the 3 objects nearest to the cycle; {left} more are left out.",) if left else ()
    assert shown.notes[:-1] == more


def test_what_a_closure_holds_is_drawn_without_its_cells() -> None:
    """A cell that is no closure's is drawn, as an attribute and as an item."""
    one, big, cell = Node(), torch.ones(2), types.CellType(0)
    one.hook, one.cells, one.cell = lambda: (one, big), [cell, big], cell  # type: ignore[attr-defined]
    objects = [one, one.hook, big, one.cells, cell]  # type: ignore[attr-defined]
    shown = cycle_diagram(objects[:2], [big], lambda obj: any(obj is each for each in objects), lambda obj: None, 5, "")
    assert shown.arrows == (
        Arrow(0, 1, ".hook", True),
        Arrow(0, 3, ".cells"),
        Arrow(0, 4, ".cell"),
        Arrow(1, 2, ".__closure__[0] 'big'"),
        Arrow(1, 0, ".__closure__[1] 'one'", True),
        Arrow(3, 4, "[0]"),
        Arrow(3, 2, "[1]"),
    )


def test_what_leads_to_what_matters_is_shown() -> None:
    """Across several steps; of two references between the same objects, the first names the arrow."""
    one, other, big, many = some_cycle()
    alone: list[object] = [7]
    many.append(big)
    shown = object_graph([alone, big, many, other, one])
    assert [box.label for box in shown.boxes] == ["float32[2] on cpu", "list (4 items)", "Node", "Node"]
    assert shown.arrows == (
        Arrow(1, 0, "[0]"),
        Arrow(1, 3, "[1]"),
        Arrow(2, 3, ".back"),
        Arrow(2, 0, ".big"),
        Arrow(2, 1, ".many"),
        Arrow(3, 2, ".next"),
    )
    assert shown.notes == ("1 objects that lead to none of these are left out",)
    without_tensors = object_graph([alone, one, other])
    assert ([box.label for box in without_tensors.boxes], without_tensors.notes) == (
        ["list (1 item)", "Node", "Node"],
        (),
    )
    assert object_graph([alone, one], filter=lambda obj: False).boxes == ()


def test_a_page_needs_no_network_and_escapes_names() -> None:
    with reference_cycles() as cycles:
        one: Any = Node()
        one.me = {EVIL: one, "big": torch.ones(2)}
        del one
    page = cycles.html()
    assert "alert(1)</script>" not in page
    assert re.findall(r'(?:src|href)="', page) == []
    assert page.count("<script") == 3
    found = data(page)
    assert [kind for _, kind, _ in found["boxes"]] == ["cycle", "cycle", "tensor"]
    assert any("alert(1)" in label for _, _, label, _ in found["arrows"])


def test_dot_quotes() -> None:
    text = Diagram((Box(EVIL + "\nx", "tensor"),), (Arrow(0, 0, '"'),), "t", ("a\nb",)).dot()
    assert '[label="</script><script>alert(1)</script>\\"\\\\\\nx", color=red];' in text
    assert '[label="\\""]' in text
    assert "  // a\\nb" in text.splitlines()


def test_titles_are_escaped() -> None:
    page = Diagram(title="<b>&").html()
    assert "<h1>&lt;b&gt;&amp;</h1>" in page


def test_large_garbage_is_cut() -> None:
    with reference_cycles() as cycles:
        one: Any = Node()
        one.me = one
        one.many = [[torch.ones(2)] for _ in range(MOST_BOXES)]
        del one
    found = data(cycles.html())
    assert len(found["boxes"]) == MOST_BOXES == 150
    assert found["notes"][0].startswith(f"Shown are the {MOST_BOXES} objects nearest to the cycle; ")
