"""The marker ``memory_scaling``: a promise of growth for a parametrized test. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cudamem_testing.model.promises import Promise, PromisedSize
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.marks import nearest_first, place_of, without_parameters
from cudamem_testing.static import is_plain

SCALING = "memory_scaling"


def memory_scaling(promise: object, over: object = None, device: object = None) -> None:
    """The arguments of the marker."""


def problems_of(items: Sequence[pytest.Item]) -> list[str]:
    """Put the promises of marked tests into their stash; a line for each wrong marker."""
    problems: list[str] = []
    groups: dict[object, list[tuple[pytest.Item, PromisedSize]]] = {}
    for item in items:
        mark = next(nearest_first(item, SCALING))
        try:
            group, promised = _promised(item, mark)
        except (TypeError, ValueError) as error:
            problems.append(f"{place_of(item, mark)}: {SCALING}: {error}")
        else:
            groups.setdefault(group, []).append((item, promised))
    for some in groups.values():
        sizes = tuple(sorted({promised.size for _, promised in some}))
        for item, promised in some:
            item.stash[keys.PROMISE] = promised._replace(sizes=sizes)
    return problems


def _promised(item: pytest.Item, mark: pytest.Mark) -> tuple[object, PromisedSize]:
    """The promise for the size of one test, and what it has in common with the tests of the other sizes.

    Raises:
        TypeError: for wrong arguments.
        ValueError: for a wrong promise, and if the parameter is not clear.
    """
    given = inspect.signature(memory_scaling).bind(*mark.args, **mark.kwargs).arguments
    promise = Promise.parse(given["promise"])
    spec: Any = getattr(item, "callspec", None)
    parameters: Mapping[str, object] = {} if spec is None else spec.params
    over = given.get("over") or _only_size(promise, parameters)
    size = parameters.get(over)
    if type(size) is not int or size < 1:
        raise ValueError(f"over={over!r} must be a parameter with whole numbers from 1")
    unknown = sorted(promise.factors.keys() - {over})
    if unknown:
        raise ValueError(f"{promise.text} names {', '.join(unknown)}, but the parameter is {over}")
    place = without_parameters(item)
    others = tuple(sorted((name, _told_apart(value)) for name, value in parameters.items() if name != over))
    device = given.get("device")
    return (place, others), PromisedSize(place, others, str(over), size, (), promise.text, device and str(device))


def _only_size(promise: Promise, parameters: Mapping[str, object]) -> str:
    named = [name for name in promise.factors if name in parameters]
    sizes = named or [name for name, value in parameters.items() if type(value) is int]
    if len(sizes) != 1:
        found = ", ".join(sizes) or "none"
        raise ValueError(f"the parameter is not clear ({found}): write over=")
    return sizes[0]


def _told_apart(value: object) -> str:
    """A text for a parameter; one that is not plain is told apart by its identity, for its ``repr`` may read a card."""
    return repr(value) if is_plain(value) else f"object {id(value)}"
