"""Outer state: what a call changes, and the line that does it."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.graphs.outer import ExternalState, roots_of
from cudamem_testing.graphs.rules import Rule
from cudamem_testing.graphs.stores import line_that_changes, line_that_uses


class Thing:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def changes(before: object, after: object) -> list[str]:
    return [str(change) for change in ExternalState([("x", before)]).changes(ExternalState([("x", after)]))]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (1, 1, []),
        (float("nan"), float("nan"), []),
        ([], {}, ["x was a list, and is a dict now"]),
        (1, 2, ["x went from 1 to 2"]),
        ({"a": 1}, {"a": 2}, ["x['a'] went from 1 to 2"]),
        ([1], [1, 2], ["x went from 1 to 2 items"]),
        ([[1], 2], [[3], 2], ["x[0][0] went from 1 to 3"]),
        ({"a": 1}, {"b": 1}, ["x['a'] is gone", "x['b'] is new: 1"]),
        (Thing(a=1, b=2), Thing(a=1, b=3), ["x.b went from 2 to 3"]),
        (collections.deque([1]), collections.deque(), ["x went from 1 to 0 items"]),
        (None, "text", ["x went from None to 'text'"]),
    ],
)
def test_values_and_containers(before: object, after: object, told: list[str]) -> None:
    found = [text for text in changes(before, after) if "Thing" not in text]
    assert found == told


def test_tensors_are_their_storages() -> None:
    x = torch.ones(4)
    before = ExternalState([("x", {"a": x, "b": x})])
    x.add_(1)
    assert before.changes(ExternalState([("x", {"a": x[:2], "b": x.view(2, 2)})])) == []
    (first, second) = before.changes(ExternalState([("x", {"a": x.clone(), "b": None})]))
    assert (first.rule, str(first)) == (Rule.OUTSIDE, "x['a'] is another tensor now: float32[4]")
    assert (second.rule, str(second)) == (Rule.OUTSIDE, "x['b'] was a tensor, and is None now")


def test_a_gradient_that_appears_is_no_change() -> None:
    x = torch.ones(3, requires_grad=True)
    before = ExternalState([("x", x)])
    x.sum().backward()
    made = ExternalState([("x", x)])
    assert before.changes(made) == []
    x.grad = torch.zeros(3)
    assert [str(change) for change in made.changes(ExternalState([("x", x)]))] == [
        "x.grad is another tensor now: float32[3]"
    ]


NESTED = st.recursive(
    st.integers(0, 3) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(NESTED, NESTED)
def test_no_change_means_equal(first: object, second: object) -> None:
    """Against Python's own equality: a change is reported exactly if the two differ."""
    told = [text for text in changes(first, second) if not text.endswith("items]")]
    assert bool(told) == (first != second or type(first) is not type(second))


def function(a: int, items: list[int], limit: Any = ()) -> None:
    nested = lambda: GLOBAL  # noqa: E731
    items.append(a)
    nested()


GLOBAL = {"x": 1}


def test_what_a_function_reaches() -> None:
    roots, codes = roots_of(function, (1, [2]), {}, lambda code: True)
    assert [name for name, _ in roots] == ["a", "items", "GLOBAL", "limit"]
    assert [code.co_name for code in codes] == ["function", "<lambda>"]


def writes(self: Any, items: Any, x: int) -> None:
    x = self.count
    self.count += 1
    items["a"] = x
    self.log.append(x)
    del self.gone


@pytest.mark.parametrize(
    ("names", "line"), [(["count"], 2), (["items"], 3), (["log", "self"], 4), (["gone"], 5), (["other", "count"], 2)]
)
def test_the_line_that_changes_a_name(names: list[str], line: int) -> None:
    assert line_that_changes([writes.__code__], names) == (writes.__code__, writes.__code__.co_firstlineno + line)


def test_names_that_nothing_changes() -> None:
    assert line_that_changes([writes.__code__], ["never"]) is None
    assert line_that_uses([writes.__code__], "never") is None
    assert line_that_uses([writes.__code__], "log") == (writes.__code__, writes.__code__.co_firstlineno + 4)
