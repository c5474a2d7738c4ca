"""Our markers and fixtures: their names, and which tests carry them. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import pytest

from cudamem_testing.plugin import keys

if TYPE_CHECKING:
    from _pytest.nodes import Node

OVERRIDE = "cudamem"
BUDGET = "memory_budget"
BASELINE = "memory_baseline"
FIXTURES = frozenset({"cuda_memory", "memory_snapshot", "operator_memory", "reference_cycles"})
TEXT_FIXTURES = frozenset({"memory_profile"})  # they compare texts and need no measuring
SIGNATURE = f"{BUDGET}(peak, reserved, retained, allocations, retries, at_least, device, absolute, warmup)"
SCALING = "memory_scaling"
NEEDS_CARDS = "is for simulated cards alone: run it with --cudamem-device=simulated"
OURS = (OVERRIDE, BUDGET, BASELINE, SCALING)
LINES = (
    f"{BASELINE}(tolerance, metrics, warmup): compare the test with its recorded baseline (cudamem)",
    f"{SIGNATURE}: limits on the test's memory; a size alone means at most (cudamem)",
    f"{SCALING}(promise, over, device): how the peak grows with a parameter of the test (cudamem)",
    f"{OVERRIDE}(leaks, cycles, device, values, reason): other settings for this test, with the reason (cudamem)",
)


def speaks_of_memory(item: pytest.Item, *, marked: bool) -> bool:
    """Whether the test has a limit or a baseline, or asks for one of our fixtures; ``marked`` with a marker of ours."""
    stash = item.stash  # set at collection
    if marked and (keys.BUDGETS in stash or keys.COMPARISON in stash or keys.PROMISE in stash):
        return True
    return not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


def fixture_names(item: pytest.Item) -> Sequence[str]:
    """Names of the fixtures that the test asks for, also through other fixtures."""
    names: Sequence[str] = getattr(item, "fixturenames", ())
    return names


def find(items: Sequence[pytest.Item]) -> tuple[dict[str, list[pytest.Item]], dict[str, str]]:
    """The tests that carry each of our markers, and a line by name for each marker that is probably one misspelt.

    Each test notes how many of ours it has, so that later ones are seen. Markers of a test, often many, are read once.
    """
    met: set[str] = set()
    carriers: dict[str, list[pytest.Item]] = {name: [] for name in OURS}
    for item in items:
        there = {mark.name for mark in item.iter_markers()}
        met |= there
        for name in carriers.keys() & there:
            carriers[name].append(item)
    for node in _nodes(item for some in carriers.values() for item in some):
        node.stash[keys.MARKS] = _number_of_ours(node)
    return carriers, _misspelt_markers(items, met)


def _misspelt_markers(items: Sequence[pytest.Item], met: AbstractSet[str]) -> dict[str, str]:
    """A line for each marker that is not registered and nearly one of ours, by its name."""
    near_ours = _near_ours(met, items)
    if not near_ours:
        return {}
    from cudamem_testing.plugin.marks import place_of

    lines = {}
    for name, near in near_ours.items():
        item = next(item for item in items if item.get_closest_marker(name) is not None)
        lines[name] = f"{place_of(item, next(item.iter_markers(name)))}: {_suggestion(name, near)}"
    return lines


def _near_ours(names: AbstractSet[str], items: Sequence[pytest.Item]) -> dict[str, str]:
    """Names that are not registered and nearly one of ours, each with ours."""
    unknown = names - {*OURS}
    if not unknown or not items:
        return {}
    registered = {re.split(r"[:(\s]", line.strip(), maxsplit=1)[0] for line in items[0].config.getini("markers")}
    unknown -= registered
    if not unknown:
        return {}
    from cudamem_testing.plugin.marks import nearest

    return nearest(unknown, OURS)


def _suggestion(name: str, near: str) -> str:
    return f"unknown marker {name}: did you mean {near}? (register {name} if it is your own)"


def _nodes(items: Iterable[pytest.Item]) -> Iterator[Node]:
    """The tests and what they are in, each once."""
    seen: set[int] = set()
    for item in items:
        node: Node | None = item
        while node is not None and id(node) not in seen:
            seen.add(id(node))
            yield node
            node = node.parent


def _number_of_ours(node: Node) -> int:
    return sum(1 for mark in node.own_markers if mark.name in OURS)


def applied_late(items: Sequence[pytest.Item], known: AbstractSet[str] = frozenset()) -> tuple[list[str], list[str]]:
    """A line for each test, class or module that got one of our markers after collection, when they are not read.

    The second list is for markers that are nearly one of ours and not ``known`` from collection.
    """
    lines, misspelt = [], []
    marked = [node for node in _nodes(items) if node.own_markers]
    for node in marked:
        if _number_of_ours(node) > node.stash.get(keys.MARKS, 0):
            name = next(mark.name for mark in reversed(node.own_markers) if mark.name in OURS)
            instead = ": use cuda_memory.budget(...)" if name == BUDGET else ""
            when = "while the test ran" if isinstance(node, pytest.Item) else "while its tests ran"
            place = node.nodeid or "session"
            lines.append(f"{place}: {name} was applied {when}, but markers are only read at collection{instead}")
    names = {mark.name for node in marked for mark in node.own_markers}
    for name, near in _near_ours(names, items).items():
        if name not in known:
            node = next(node for node in marked if any(mark.name == name for mark in node.own_markers))
            misspelt.append(f"{node.nodeid or 'session'}: {_suggestion(name, near)}")
    return lines, misspelt


def skip_without_cards(items: Iterable[pytest.Item]) -> None:
    """Skip tests whose marker asks for simulated cards, in a run that has none."""
    for item in items:
        if keys.OVERRIDE in item.stash and item.stash[keys.OVERRIDE].simulated:
            item.add_marker(pytest.mark.skip(reason=NEEDS_CARDS))
