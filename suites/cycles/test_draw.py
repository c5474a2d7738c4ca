"""Diagrams of objects: DOT, pages, what is left out, and names that try to break out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

from cudamem_testing import annotated_references, object_graph, reference_cycles
from cudamem_testing.cycles.draw import MOST_BOXES
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
    assert len(found["boxes"]) == MOST_BOXES
    assert found["notes"][0].startswith(f"Shown are the {MOST_BOXES} objects nearest to the cycle; ")
