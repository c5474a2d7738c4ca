"""Markers: typed at collection, so that a wrong argument stops the run before any test. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cudamem_testing.model.limits import Budget

BUDGET = "memory_budget"
FIXTURES = frozenset({"cuda_memory"})
SIGNATURE = f"{BUDGET}(peak, reserved, retained, allocations, retries, at_least, device, absolute, warmup)"
LINES = (f"{SIGNATURE}: limits for what the test takes; a size alone means at most (cudamem)",)


def speaks_of_memory(item: pytest.Item) -> bool:
    """Whether the test carries one of our markers or asks for one of our fixtures."""
    return item.get_closest_marker(BUDGET) is not None or bool(FIXTURES.intersection(fixture_names(item)))


def fixture_names(item: pytest.Item) -> Sequence[str]:
    """Names of the fixtures that the test asks for, also through other fixtures."""
    names: Sequence[str] = getattr(item, "fixturenames", ())
    return names


def budgets(item: pytest.Item) -> tuple[Budget, ...]:
    """The budgets that markers set for a test, the nearest first.

    Raises:
        ValueError: a ``LimitError`` that names every wrong argument.
    """
    from cudamem_testing.model.limits import LimitError, budget

    found: list[Budget] = []
    problems: list[str] = []
    for mark in item.iter_markers(BUDGET):
        if mark.args:
            problems.append(f"takes keyword arguments only, such as peak={mark.args[0]!r}")
            continue
        known = set(inspect.signature(budget).parameters) - {"source"}
        unknown = sorted(set(mark.kwargs) - known)
        if unknown:
            problems.append(f"has no argument {', '.join(unknown)}: it takes {', '.join(sorted(known))}")
            continue
        try:
            found.append(budget(**mark.kwargs, source=f"@pytest.mark.{BUDGET}"))
        except LimitError as error:
            problems += error.problems
    if problems:
        raise LimitError(problems)
    return tuple(found)


def warmup_refusal(item: pytest.Item) -> str | None:
    """Why the body of a test cannot be run more than once; ``None`` when it can."""
    if not isinstance(item, pytest.Function):
        return f"a {type(item).__name__} has no body to repeat"
    if item.cls is not None and hasattr(item.cls, "runTest") | hasattr(item.cls, "setUpClass"):
        return "a unittest.TestCase cannot run its method twice"
    body = item.obj
    if inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body):
        return "an async test is run by its own plugin"
    if hasattr(body, "hypothesis"):
        return "hypothesis already repeats the body"
    for fixture, owner in (("subtests", "subtests"), ("benchmark", "pytest-benchmark")):
        if fixture in fixture_names(item):
            return f"{owner} would count the repetitions"
    return None


def validate(items: Iterable[pytest.Item]) -> dict[str, tuple[Budget, ...]]:
    """The budgets of every marked test by its id.

    Raises:
        pytest.UsageError: one message that names every bad test and argument.
    """
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.limits import LimitError, contradictions, effective

    found: dict[str, tuple[Budget, ...]] = {}
    problems: list[str] = []
    for item in items:
        if item.get_closest_marker(BUDGET) is None:
            continue
        try:
            found[item.nodeid] = budgets(item)
        except LimitError as error:
            problems += [f"{item.nodeid}: {BUDGET} {problem}" for problem in error.problems]
            continue
        scopes = {limit.device or Device("cpu") for one in found[item.nodeid] for limit in one.limits}
        clashes = {clash for scope in scopes for clash in contradictions(effective(found[item.nodeid], scope))}
        problems += [f"{item.nodeid}: {BUDGET} {clash}" for clash in sorted(clashes)]
        refusal = warmup_refusal(item) if any(one.warmup for one in found[item.nodeid]) else None
        if refusal is not None:
            problems.append(f"{item.nodeid}: {BUDGET} warmup is not possible: {refusal}")
    if problems:
        raise pytest.UsageError("cudamem: " + "\ncudamem: ".join(problems))
    return found
