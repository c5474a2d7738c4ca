"""What the markers of a test say, typed at collection. Loaded where a test carries one. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import pytest

from cudamem_testing.model.changes import comparison
from cudamem_testing.model.devices import Device
from cudamem_testing.model.limits import Budget, LimitError, budget, called, contradictions, effective
from cudamem_testing.model.override import merged, override
from cudamem_testing.model.promises import PromisedSize, promised
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.markers import BASELINE, BUDGET, OVERRIDE, SCALING, fixture_names
from cudamem_testing.plugin.marks import nearest_first, place_of, without_parameters
from cudamem_testing.static import type_name

T = TypeVar("T")
REPEATING = {  # fixtures and markers of plugins for which each run of a body is a measurement
    "subtests": "subtests",
    "benchmark": "pytest-benchmark",
    "codspeed_benchmark": "pytest-codspeed",
}


def problems_of(carriers: Mapping[str, Sequence[pytest.Item]], default: Budget | None) -> list[str]:
    """Put budgets, comparisons, promises and overridden settings into the stash of the tests that carry them.

    ``default`` is the budget of the run, which must not contradict a test's own. Each wrong argument is a line.
    """
    outer = () if default is None else (default,)
    checks: Mapping[str, Callable[[pytest.Item], list[str]]] = {
        OVERRIDE: _override,
        BUDGET: partial(_budgets, outer=outer),
        BASELINE: _compare,
    }
    problems: list[str] = []
    for name, check in checks.items():
        for item in carriers[name]:
            try:
                problems += check(item)
            except LimitError as error:
                problems += error.problems
    return problems + _promises(carriers[SCALING])


def _typed(item: pytest.Item, name: str, make: Callable[..., T], example: str) -> list[T]:
    """What the test's markers of a name say, the nearest first.

    Raises:
        ValueError: a ``LimitError`` that names every wrong argument.
    """
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


def _warmup_refusal(item: pytest.Item) -> str | None:
    """Why the body of a test cannot be run more than once; ``None`` when it can."""
    if not isinstance(item, pytest.Function):
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


def _override(item: pytest.Item) -> list[str]:
    """Put what a test overrides into its stash."""
    item.stash[keys.OVERRIDE] = merged(_typed(item, OVERRIDE, override, "leaks"))
    return []


def _budgets(item: pytest.Item, outer: tuple[Budget, ...]) -> list[str]:
    """Put a test's budgets into its stash; what is wrong with them together."""
    make = partial(budget, source=f"@pytest.mark.{BUDGET}")
    found = item.stash[keys.BUDGETS] = tuple(_typed(item, BUDGET, make, "peak"))
    all_ = (*found, *outer)
    scopes = {limit.device or Device("cpu") for one in all_ for limit in one.limits}
    clashes = {clash for scope in scopes for clash in contradictions(effective(all_, scope))}
    place = without_parameters(item)
    problems = [f"{place}: {BUDGET} {clash}" for clash in sorted(clashes)]
    return problems + (_unrepeatable(item, BUDGET) if any(one.warmup for one in found) else [])


def _compare(item: pytest.Item) -> list[str]:
    """Put what is compared of a test into its stash."""
    found = item.stash[keys.COMPARISON] = _typed(item, BASELINE, comparison, "tolerance")[0]
    return _unrepeatable(item, BASELINE) if found.warmup else []


def _promises(items: Sequence[pytest.Item]) -> list[str]:
    """Put the promises of growth of marked tests into their stash; a line for each wrong marker."""
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
    refusal = _warmup_refusal(item)
    return [] if refusal is None else [f"{without_parameters(item)}: {name} warmup is not possible: {refusal}"]
