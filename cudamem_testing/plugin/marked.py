"""What the markers of a test say, typed at collection. Loaded where a test carries one. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import pytest

from cudamem_testing.model.changes import comparison
from cudamem_testing.model.limits import Budget, LimitError, budget, called, clashes
from cudamem_testing.model.override_marker import merged, override
from cudamem_testing.model.promises import PromisedSize, promised, with_all_sizes
from cudamem_testing.model.repeatable import warmup_refusal
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.markers import BASELINE, BUDGET, OVERRIDE, SCALING, fixture_names
from cudamem_testing.plugin.marks import nearest_first, place_of, without_parameters
from cudamem_testing.safe_access import type_name

T = TypeVar("T")


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


def _override(item: pytest.Item) -> list[str]:
    """Put what a test overrides into its stash."""
    item.stash[keys.OVERRIDE] = merged(_typed(item, OVERRIDE, override, "leaks"))
    return []


def _budgets(item: pytest.Item, outer: tuple[Budget, ...]) -> list[str]:
    """Put a test's budgets into its stash; what is wrong with them together."""
    make = partial(budget, source=f"@pytest.mark.{BUDGET}")
    found = item.stash[keys.BUDGETS] = tuple(_typed(item, BUDGET, make, "peak"))
    place = without_parameters(item)
    problems = [f"{place}: {BUDGET} {clash}" for clash in clashes((*found, *outer))]
    return problems + (_unrepeatable(item, BUDGET) if any(one.warmup for one in found) else [])


def _compare(item: pytest.Item) -> list[str]:
    """Put what is compared of a test into its stash."""
    found = item.stash[keys.COMPARISON] = _typed(item, BASELINE, comparison, "tolerance")[0]
    return _unrepeatable(item, BASELINE) if found.warmup else []


def _promises(items: Sequence[pytest.Item]) -> list[str]:
    """Put the promises of growth of marked tests into their stash; a line for each wrong marker."""
    problems: list[str] = []
    found: list[PromisedSize] = []
    for item in items:
        mark = next(nearest_first(item, SCALING))
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        try:
            found.append(promised(without_parameters(item), parameters, mark.args, mark.kwargs))
        except (TypeError, ValueError) as error:
            problems.append(f"{place_of(item, mark)}: {SCALING}: {error}")
    if not problems:
        for item, one in zip(items, with_all_sizes(found), strict=True):
            item.stash[keys.PROMISE] = one
    return problems


def _unrepeatable(item: pytest.Item, name: str) -> list[str]:
    if isinstance(item, pytest.Function):
        names = fixture_names(item)
        refusal = warmup_refusal(
            item.obj, item.cls, lambda name: name in names or item.get_closest_marker(name) is not None
        )
    else:
        refusal = f"a {type_name(item)} has no body to repeat"
    return [] if refusal is None else [f"{without_parameters(item)}: {name} warmup is not possible: {refusal}"]
