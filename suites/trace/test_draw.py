"""Data flow as a diagram: what is a box, what an arrow, what is left out, and rows that follow the flow."""

from __future__ import annotations

import json
import re

import torch

from cudamem_testing import memory_profile
from cudamem_testing.model.stacks import Locator
from cudamem_testing.show.diagrams import Arrow
from cudamem_testing.trace.draw import MOST_AROUND, MOST_OPERATORS, draw
from cudamem_testing.trace.graph import Name, data_flow
from suites.trace.synthetic import alloc, op, read, tensor

X, Y, MADE, INSIDE, OUT = tensor(1), tensor(2), tensor(3), tensor(4), tensor(5, sizes=[256])
EVIL = '</script><script>alert(1)</script>"\\'
HERE = Locator("/nowhere")


def flow(*roots, **named):
    trace = read(*roots)
    by_number = {storage.number: storage for storage in trace.storages}
    return data_flow(trace, tuple(Name(name, by_number[number], given=number < 3) for name, number in named.items()))


def example(**named):
    return flow(
        op("aten::mul", X, Y, children=[alloc(INSIDE, 8), alloc(INSIDE, -8), alloc(MADE, 16)]),
        op("aten::add_", MADE, X, 1),
        op(
            "SinBackward0",
            MADE,
            role="BACKWARD_FUNCTION",
            children=[op("aten::sin", MADE, children=[alloc(OUT, 1024)])],
        ),
        op("aten::neg_", OUT),
        alloc(MADE, -16),
        **named,
    )


def test_boxes_and_arrows():
    diagram = draw(example(x=1, out=5), HERE)
    assert [(box.label, box.kind) for box in diagram.boxes] == [
        ("aten::mul", ""),
        ("aten::add_", ""),
        ("SinBackward0", "backward"),
        ("aten::neg_", ""),
        ("x\nT0", "tensor"),
        ("T1", "tensor"),
        ("out\nT3", "tensor"),
    ]
    assert diagram.arrows == (
        Arrow(4, 0, "T0(v0)"),
        Arrow(5, 0, "T1(v0)"),
        Arrow(0, 1, "T2(v0)"),
        Arrow(4, 1, "T0(v0)"),
        Arrow(1, 2, "T2(v1)"),
        Arrow(2, 3, "T3(v0)"),
        Arrow(3, 6, "T3(v1)"),
    )
    assert diagram.layers == (1, 2, 3, 4, 0, 0, 5)
    assert (diagram.notes, diagram.title) == ((), "Data flow")


def test_a_named_tensor_that_is_taken_afterwards_is_no_result():
    boxes = draw(example(made=3), HERE).boxes
    assert [box.label for box in boxes if box.kind == "tensor"] == ["T0", "T1"]


def test_a_click_shows_what_an_operator_does():
    diagram = draw(example(x=1, out=5), HERE)
    assert [box.detail.splitlines() for box in diagram.boxes] == [
        [
            "reads T0(v0) x: 16 B on cpu",
            "reads T1(v0): 16 B on cpu",
            "makes T2(v0): 16 B on cpu",
            "8 B in 1 tensor inside alone",
        ],
        ["writes T2(v0): 16 B on cpu", "reads T0(v0) x: 16 B on cpu"],
        ["reads T2(v1): 16 B on cpu", "makes T3(v0) out: 1.0 KiB on cpu"],
        ["writes T3(v0) out: 1.0 KiB on cpu"],
        ["16 B on cpu"],
        ["16 B on cpu"],
        ["1.0 KiB on cpu"],
    ]


def test_the_line_the_module_and_the_region_are_shown():
    class Net(torch.nn.Module):
        def forward(self, x):
            with torch.profiler.record_function("inside"):
                return torch.sin(x)

    profile = memory_profile(Net(), torch.ones(2))
    line = Net.forward.__code__.co_firstlineno + 2
    (box,) = [box for box in draw(profile.data_flow(), Locator(str(__file__).rpartition("/")[0])).boxes if not box.kind]
    assert box.detail.splitlines()[:3] == [
        f"called in test_draw.py:{line} in forward",
        "region inside",
        "module Net",
    ]


def chain(length):
    """Operators that each make a tensor from the last one; the largest are in the middle."""
    steps = []
    for number in range(length):
        made = alloc(tensor(number + 1), 400 + min(number, length - number))
        steps.append(op("aten::sin", tensor(number), children=[made]))
    return flow(*steps)


def test_a_large_graph_is_cut_to_the_largest_tensors():
    whole = draw(chain(MOST_OPERATORS), HERE)
    assert (sum(not box.kind for box in whole.boxes), whole.notes) == (MOST_OPERATORS, ())
    cut = draw(chain(MOST_OPERATORS + 20), HERE)
    assert sum(not box.kind for box in cut.boxes) == MOST_OPERATORS
    assert cut.notes == (
        '20 operators left out: shown are those of the largest tensors; around="T3" shows those nearest to one.',
    )
    assert cut.boxes[0].detail.splitlines()[0].startswith("reads T11(v0)")


def test_around_a_tensor():
    around = draw(chain(200), HERE, around="T90(v0)")
    assert sum(not box.kind for box in around.boxes) == MOST_AROUND
    assert around.notes == ("160 operators left out: shown are those nearest to T90(v0).",)
    assert [arrow.label for arrow in around.arrows if arrow.marked] == ["T90(v0)"]
    assert around.boxes[0].detail.splitlines()[0].startswith("reads T70(v0)")
    named = draw(example(x=1, out=5), HERE, around="out")
    assert [arrow.label for arrow in named.arrows if arrow.marked] == ["T3(v0)", "T3(v1)"]
    assert named.notes == ()


def test_dot_and_page_escape_names():
    found = flow(op(EVIL, X, role="BACKWARD_FUNCTION"), **{EVIL: 1})
    dot = found.dot()
    assert '[label="</script><script>alert(1)</script>\\"\\\\", tooltip="' in dot
    lifetimes = found.html()
    assert "alert(1)</script>" not in lifetimes
    assert lifetimes.count("<script") == 2
    page = draw(found, HERE).html()
    assert "alert(1)</script>" not in page
    assert page.count("<script") == 3
    assert re.findall(r'(?:src|href)="', page) == []
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])
    assert [box[0] for box in data["boxes"]] == [EVIL, f"{EVIL}\nT0", f"{EVIL}\nT0"]
    assert data["layers"] == [1, 0, 2]
    assert data["legend"] == [["", "operator"], ["backward", "of the backward pass"], ["tensor", "tensor"]]


def test_an_empty_graph():
    diagram = draw(flow(), HERE)
    assert (diagram.boxes, diagram.arrows, diagram.layers) == ((), (), ())
