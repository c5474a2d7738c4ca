"""Marks on a test item: the nearest one first, and where each is written. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pytest


def nearest_first(item: pytest.Item, name: str) -> Iterator[pytest.Mark]:
    """The test's markers of a name: its parameter's, its function's, its class's before a base class's, its module's.

    pytest's own order puts the function before the parameter and a base class before the class.
    """
    for node in reversed(item.listchain()):
        marks = [mark for mark in node.own_markers if mark.name == name]
        if len(marks) > 1 and isinstance(node, pytest.Function | pytest.Class):
            inner = _parameter_marks(node) if isinstance(node, pytest.Function) else _marks_by_class(node.obj)
            places = {id(mark): place for place, mark in reversed([*enumerate(inner)])}
            marks.sort(key=lambda mark: places.get(id(mark), len(places)))
        yield from marks


def place_of(item: pytest.Item, mark: pytest.Mark) -> str:
    """The id of what a marker is written on: a parameter of the test, the function, its class, its module."""
    for node in reversed(item.listchain()):
        if any(one is mark for one in node.own_markers):
            written_on_function = node is item and all(one is not mark for one in _parameter_marks(item))
            return without_parameters(item) if written_on_function else node.nodeid
    return item.nodeid


def without_parameters(item: pytest.Item) -> str:
    name = getattr(item, "originalname", None)
    return item.nodeid if name is None or item.parent is None else f"{item.parent.nodeid}::{name}"


def _parameter_marks(item: pytest.Item) -> Sequence[object]:
    return [*item.callspec.marks] if hasattr(item, "callspec") else []


def _marks_by_class(cls: type) -> Sequence[object]:
    lists = (one.__dict__.get("pytestmark", []) for one in cls.__mro__)
    marks = (mark for one in lists for mark in (one if isinstance(one, list) else [one]))
    return [getattr(mark, "mark", mark) for mark in marks]


def nearest(names: Iterable[str], ours: Sequence[str]) -> dict[str, str]:
    """The names that are nearly one of ours, each with ours."""
    from difflib import get_close_matches  # few runs have an unknown marker

    found = {}
    for name in sorted(names):
        for near in get_close_matches(name.casefold(), ours, 1, 0.8):
            found[name] = near
    return found
