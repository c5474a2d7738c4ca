"""Markers: typed at collection, so that a wrong argument stops the run before any test. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest

from cudamem_testing.model.override import merged, nearest, override
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.marks import OVERRIDE, nearest_first, place_of, without_parameters

if TYPE_CHECKING:
    from _pytest.nodes import Node

    from cudamem_testing.model.limits import Budget

T = TypeVar("T")
BUDGET = "memory_budget"
BASELINE = "memory_baseline"
FIXTURES = frozenset({"cuda_memory", "memory_snapshot", "operator_memory", "reference_cycles"})
TEXT_FIXTURES = frozenset({"memory_profile"})  # they compare texts and need no measuring
REPEATING = {  # fixtures and markers of plugins for which each run of a body is a measurement
    "subtests": "subtests",
    "benchmark": "pytest-benchmark",
    "codspeed_benchmark": "pytest-codspeed",
}
SIGNATURE = f"{BUDGET}(peak, reserved, retained, allocations, retries, at_least, device, absolute, warmup)"
SCALING = "memory_scaling"
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


def typed(item: pytest.Item, name: str, make: Callable[..., T], example: str) -> list[T]:
    """What the test's markers of a name say, the nearest first.

    Raises:
        ValueError: a ``LimitError`` that names every wrong argument.
    """
    from cudamem_testing.model.limits import LimitError, called

    found: list[T] = []
    problems: list[str] = []
    for mark in nearest_first(item, name):
        try:
            found.append(called(make, mark.args, mark.kwargs, example))
        except LimitError as error:
            problems += [f"{place_of(item, mark)}: {name} {problem}" for problem in error.problems]
    if problems:
        raise LimitError(problems)
    return found


def warmup_refusal(item: pytest.Item) -> str | None:
    """Why the body of a test cannot be run more than once; ``None`` when it can."""
    if not isinstance(item, pytest.Function):
        from cudamem_testing.static import type_name  # only here: loading the plugin must cost next to nothing

        return f"a {type_name(item)} has no body to repeat"
    unittest = sys.modules.get("unittest")
    if unittest is not None and item.cls is not None and issubclass(item.cls, unittest.TestCase):
        return "a unittest.TestCase cannot run its method twice"
    body = item.obj
    if inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body):
        return "an async test is run by its own plugin"
    if hasattr(body, "hypothesis"):
        return "hypothesis already repeats the body"
    for name, owner in REPEATING.items():
        if name in fixture_names(item) or item.get_closest_marker(name) is not None:
            return f"{owner} would count the repetitions"
    return None


def validate(items: Sequence[pytest.Item], default: Budget | None = None, *, strict: bool = False) -> Marked:
    """Put budgets and comparisons into the stash of every marked test.

    ``default`` is the budget of the run, which must not contradict a test's own. ``strict`` refuses unknown markers
    whose name is nearly that of one of ours.

    Raises:
        pytest.UsageError: one message that names every bad test and argument.
    """
    met: set[str] = set()
    overriding, limited, held, growing = _carriers(items, OURS, met)
    for node in _nodes([*overriding, *limited, *held, *growing]):  # before validation: a wrong marker is not a late one
        node.stash[keys.MARKS] = _number_of_ours(node)
    misspelt = _misspelt_markers(items, met)
    if not limited and not held and not overriding and not growing and not (strict and misspelt):
        return Marked(0, misspelt)
    from cudamem_testing.model.limits import LimitError

    problems = [*misspelt.values()] if strict else []
    outer = () if default is None else (default,)
    checks: tuple[tuple[list[pytest.Item], Callable[[pytest.Item], list[str]]], ...] = (
        (overriding, _override),
        (limited, partial(_budgets, outer=outer)),
        (held, _compare),
    )
    for some, check in checks:
        for item in some:
            try:
                problems += check(item)
            except LimitError as error:
                problems += error.problems
    if growing:
        problems += _promises(growing)
    if problems:  # every test of a class, or parameter of a function, has the same marker
        raise pytest.UsageError("cudamem: " + "\ncudamem: ".join(dict.fromkeys(problems)))
    return Marked(len({*limited, *held, *growing}), misspelt, bool(overriding))


def _override(item: pytest.Item) -> list[str]:
    """Put what a test overrides into its stash."""
    item.stash[keys.OVERRIDE] = merged(typed(item, OVERRIDE, override, "leaks"))
    return []


def _budgets(item: pytest.Item, outer: tuple[Budget, ...]) -> list[str]:
    """Put a test's budgets into its stash; what is wrong with them together."""
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.limits import budget, contradictions, effective

    make = partial(budget, source=f"@pytest.mark.{BUDGET}")
    found = item.stash[keys.BUDGETS] = tuple(typed(item, BUDGET, make, "peak"))
    all_ = (*found, *outer)
    scopes = {limit.device or Device("cpu") for one in all_ for limit in one.limits}
    clashes = {clash for scope in scopes for clash in contradictions(effective(all_, scope))}
    place = without_parameters(item)
    problems = [f"{place}: {BUDGET} {clash}" for clash in sorted(clashes)]
    return problems + (_unrepeatable(item, BUDGET) if any(one.warmup for one in found) else [])


def _compare(item: pytest.Item) -> list[str]:
    """Put what is compared of a test into its stash."""
    from cudamem_testing.model.changes import comparison

    found = item.stash[keys.COMPARISON] = typed(item, BASELINE, comparison, "tolerance")[0]
    return _unrepeatable(item, BASELINE) if found.warmup else []


def _promises(items: Sequence[pytest.Item]) -> list[str]:
    """Put the promises of growth of marked tests into their stash; a line for each wrong marker."""
    from cudamem_testing.model.promises import PromisedSize, promised

    problems: list[str] = []
    groups: dict[object, list[tuple[pytest.Item, PromisedSize]]] = {}
    for item in items:
        mark = next(nearest_first(item, SCALING))
        spec: Any = getattr(item, "callspec", None)
        parameters = {} if spec is None else spec.params
        try:
            found = promised(without_parameters(item), parameters, mark.args, mark.kwargs)
        except (TypeError, ValueError) as error:
            problems.append(f"{place_of(item, mark)}: {SCALING}: {error}")
        else:
            groups.setdefault((found.test, found.others), []).append((item, found))
    for some in groups.values():
        sizes = tuple(sorted({found.size for _, found in some}))
        for item, found in some:
            item.stash[keys.PROMISE] = found._replace(sizes=sizes)
    return problems


def _unrepeatable(item: pytest.Item, name: str) -> list[str]:
    refusal = warmup_refusal(item)
    return [] if refusal is None else [f"{without_parameters(item)}: {name} warmup is not possible: {refusal}"]


class Marked(NamedTuple):
    """How many tests have limits or baselines, and a line by name for each marker that is probably one misspelt.

    ``overridden``: some have settings of their own.
    """

    tests: int
    misspelt: dict[str, str]
    overridden: bool = False


def _carriers(items: Iterable[pytest.Item], names: Sequence[str], met: set[str]) -> list[list[pytest.Item]]:
    """The tests that carry each of some markers; one walk over the markers of each test, of which there may be many.

    ``met`` gets the names of all markers.
    """
    found: dict[str, list[pytest.Item]] = {name: [] for name in names}
    for item in items:
        there = {mark.name for mark in item.iter_markers()}
        met |= there
        for name in found.keys() & there:
            found[name].append(item)
    return [*found.values()]


def _misspelt_markers(items: Sequence[pytest.Item], met: AbstractSet[str]) -> dict[str, str]:
    """A line for each marker that is not registered and nearly one of ours, by its name."""
    lines = {}
    for name, near in _near_ours(met, items).items():
        item = next(item for item in items if item.get_closest_marker(name) is not None)
        lines[name] = f"{place_of(item, next(item.iter_markers(name)))}: {_suggestion(name, near)}"
    return lines


def _near_ours(names: AbstractSet[str], items: Sequence[pytest.Item]) -> dict[str, str]:
    """Names that are not registered and nearly one of ours, each with ours."""
    unknown = names - {*OURS}
    if not unknown or not items:
        return {}
    registered = {re.split(r"[:(\s]", line.strip(), maxsplit=1)[0] for line in items[0].config.getini("markers")}
    return nearest(unknown - registered, OURS)


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
