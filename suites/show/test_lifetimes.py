"""Lifetimes: no two bars share a place at one time, and a page holds what it is made of."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.show.lifetimes import Bar, Lifetimes, OperatorStep, places

SPANS = st.tuples(st.integers(-1, 20), st.integers(1, 12), st.integers(1, 50)).map(
    lambda one: Bar("t", one[2], "cpu", one[0], one[0] + one[1])
)


@given(st.lists(SPANS, max_size=40))
def test_bars_that_live_together_lie_apart(bars: list[Bar]) -> None:
    found = places(bars)
    for one, place in zip(bars, found, strict=True):
        for other, beside in zip(bars, found, strict=True):
            together = one is not other and one.first < other.last and other.first < one.last
            if together:
                assert place + one.size <= beside or beside + other.size <= place
    assert all(place == 0 or place in {p + b.size for p, b in zip(found, bars, strict=True)} for place in found)


def data_of(text: str) -> dict[str, Any]:
    (found,) = re.findall(r'id="data">(.*?)</script>', text, re.S)
    data: dict[str, Any] = json.loads(found)
    return data


def test_a_page() -> None:
    bars = (
        Bar("w", 8, "cpu", -1, 3, "PARAMETER", "there before", (0,)),
        Bar("y", 4, "cuda:0", 0, 2),
        Bar("z", 4, "cuda:0", 1, 3),
        Bar("again", 4, "cuda:0", 2, 3),
    )
    steps = (
        OperatorStep("aten::mm", (("Model", 1), ("Block", 2))),
        OperatorStep("aten::mm", (("Model", 1), ("Block", 3))),
        OperatorStep("MmBackward0", backward=True, detail="d"),
    )
    data = data_of(Lifetimes(bars, steps, "t", ("a note",)).html())
    assert data["devices"] == ["cuda:0", "cpu"]
    assert data["bars"] == [
        ["y", 0, 0, 2, 0, 4, "unknown", "", []],
        ["z", 0, 1, 3, 4, 4, "unknown", "", []],
        ["again", 0, 2, 3, 0, 4, "unknown", "", []],
        ["w", 1, -1, 3, 0, 8, "PARAMETER", "there before", [0]],
    ]
    assert data["modules"] == ["Model", "Block", "Block"]
    assert data["steps"] == [
        ["aten::mm", [0, 1], 0, ""],
        ["aten::mm", [0, 2], 0, ""],
        ["MmBackward0", [], 1, "d"],
    ]
    assert [name for name, _ in data["legend"]] == ["PARAMETER", "unknown"]
    assert data["notes"] == ["a note"]
