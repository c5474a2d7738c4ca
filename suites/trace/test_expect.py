"""Texts by device: which of several holds, and what a mismatch says of operators that differ and of doubts."""

from __future__ import annotations

import pytest

from cudamem_testing.records.expected.errors import TextMismatchError
from cudamem_testing.records.expected.session import NO_LITERAL
from cudamem_testing.trace import expect
from cudamem_testing.trace.categories import categories
from cudamem_testing.trace.expect import Expectations, kind_of_device
from cudamem_testing.trace.graph import data_flow
from cudamem_testing.trace.timeline import timeline
from suites.trace.synthetic import alloc, builtin, call, op, read, tensor

X, HELD = tensor(1), tensor(2)
CARD = type(X.device)("cuda", 1)
ON_CARD = tensor(3, device=CARD)


class Profile(Expectations):
    """A profile of a synthetic trace."""

    def __init__(self, *roots):
        self.trace = read(*roots)

    def data_flow(self):
        return data_flow(self.trace)

    def categories(self):
        return categories(self.data_flow())

    def timeline(self):
        return timeline(self.categories())


def told(profile, expected, **options):
    """What a mismatch says below its diff."""
    with pytest.raises(TextMismatchError) as caught:
        profile.assert_data_flow(expected, detail="full", **options)
    return [line for line in str(caught.value).splitlines()[3:] if not line.startswith(("+", "-", "@", " aten", "?"))]


HOW = NO_LITERAL  # the texts here are values
ADVICE = [
    'give a text for each device, expected={"cpu": ..., "cuda": ...}, or let device_aliases=True fold dropout,',
    "attention, foreach and optimizers into names that hold on all",
    HOW,
]


@pytest.mark.parametrize(
    ("tensors", "kind"), [((), "cpu"), ((X,), "cpu"), ((X, ON_CARD), "cuda"), ((X, HELD, ON_CARD), "cuda")]
)
def test_a_trace_with_anything_on_a_card_is_of_the_card(tensors, kind):
    assert kind_of_device(read(*(op("aten::sin", one) for one in tensors))) == kind


@pytest.mark.parametrize("detail", ["full", "operators"])
def test_a_failed_comparison_makes_its_text_once(monkeypatch, detail):
    """Also from options that can be read only once."""
    made, original = [], expect.shown

    def counted(flow, options):
        made.append(options.detail)
        return original(flow, options)

    monkeypatch.setattr(expect, "shown", counted)
    with pytest.raises(TextMismatchError, match=r"^1 operator more: aten::sin") as caught:
        Profile(op("aten::sin", X, children=[alloc(HELD, 4)])).assert_data_flow(
            "", detail=detail, include=iter(["aten::*"])
        )
    assert made == [detail]
    assert "aten::sin" in caught.value.actual


def test_a_new_operator_among_categories_has_its_size_and_line():
    other = tensor(4)
    first = op("aten::sin", X, children=[alloc(HELD, 4096)])
    inner = builtin("exp", op("aten::exp", HELD, children=[alloc(other, 2048)]), line=22)
    more = call("net.py(20): forward", inner, line=20)
    before = Profile(first, op("aten::cos", HELD))
    after = Profile(first, more, op("aten::cos", other))
    with pytest.raises(TextMismatchError) as caught:
        after.assert_categories(before.categories().text(), include=iter(["aten::*"]))
    assert str(caught.value).splitlines()[0] == "1 operator more: aten::exp, 2.0 KiB, net.py:22 in forward"


def test_of_several_texts_the_one_for_the_device_holds():
    texts = {
        "cpu": "aten::sin                 T0(v0)           ->",
        "cuda": "aten::cos                 T0(v0)           ->",
    }
    Profile(op("aten::sin", X)).assert_data_flow(texts)
    Profile(op("aten::cos", ON_CARD)).assert_data_flow(texts)
    with pytest.raises(TextMismatchError, match="there is no expected text for 'cuda' yet"):
        Profile(op("aten::cos", ON_CARD)).assert_data_flow({"cpu": texts["cpu"]})
    assert told(Profile(op("aten::sin", ON_CARD)), texts) == [HOW]


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("aten::cudnn_convolution   T0(v0)           ->", "aten::cudnn_convolution"),
        ("aten::mkldnn_convolution  T0(v0)           ->  T1(v0)", "aten::mkldnn_convolution"),
        ("NativeDropoutBackward0    T0(v0)           ->", "NativeDropoutBackward0"),
        ("aten::_foreach_add_                        ->", "aten::_foreach_add_"),
        ("aten::_conv_depthwise2d   T0(v0)           ->", "aten::_conv_depthwise2d"),  # of CUDA, says the dispatcher
    ],
)
def test_operators_of_other_devices_are_named(row, name):
    assert told(Profile(op("aten::sin", X)), row) == [
        "operators that differ from device to device are among the changes; this run was on cpu:",
        f"  only expected: {name}",
        "  only here:     aten::sin",
        *ADVICE,
    ]


def test_operators_of_all_devices_are_not_blamed_on_one():
    assert told(Profile(op("aten::sin", X)), "aten::cos                 T0(v0)           ->") == [HOW]
    same = "aten::sin                 T0(v0)           ->  T1(v0)"
    assert told(Profile(op("aten::sin", X)), same) == [HOW]


def test_doubts_are_shown():
    broken = Profile(*(step for _ in range(5) for step in (alloc(HELD, -16), op("aten::sin", HELD))))
    assert len(broken.data_flow().diagnostics) == 9
    assert told(broken, "aten::cos") == [
        "note: the trace contradicts itself: node 1: storage 0 was used after it was freed",
        "note: the trace contradicts itself: node 2: storage 0 was freed twice",
        "note: the trace contradicts itself: node 3: storage 0 was used after it was freed",
        "note: and 6 more contradictions",
        HOW,
    ]
