"""Reads from and writes to test items; the code of pytest that calls tests. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any, NoReturn

import _pytest.doctest
import _pytest.fixtures
import _pytest.python
import _pytest.unittest
import pytest

from cudamem_testing import safe_access
from cudamem_testing.run.calls import await_example, call_example
from cudamem_testing.run.finished import clear_frames
from cudamem_testing.safe_access import is_a

OWN = "cudamem"
"""The attribute that marks our own failures."""


def add_properties(item: pytest.Item, growths: Sequence[tuple[str, int]]) -> None:
    """Add the memory of the call, in bytes, to the properties that JUnit files show."""
    properties = item.user_properties
    if properties:  # remove those of an earlier attempt
        properties[:] = [one for one in properties if not one[0].startswith("cudamem.")]
    properties += growths


def place_at_test(report: pytest.TestReport, item: pytest.Item) -> None:
    """Make a failure point to the line of the test, which editors and ``--tb=line`` show, not to ours."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.path, crash.lineno = str(item.path), (item.location[1] or 0) + 1


def id_without_group(item: pytest.Item) -> str:
    """The id without the ``@group`` that a worker of pytest-xdist appends with ``--dist=loadgroup``."""
    nodeid = item.nodeid
    if "@" not in nodeid or not item.config.getoption("loadgroup", False):
        return nodeid
    marks = item.iter_markers("xdist_group")
    names = {str(mark.args[0] if mark.args else mark.kwargs.get("name", "default")) for mark in marks}
    return nodeid.removesuffix(f"@{'_'.join(sorted(names))}")


def fixtures_of(item: pytest.Item) -> dict[str, int | None]:
    """The fixtures that a test has used, including those requested while it ran, by name.

    Their numbers distinguish fixtures of one name; ``None`` is one that was not set up, or whose definition is unknown.
    """
    request = getattr(item, "_request", None)
    names = getattr(request if request else item, "fixturenames", ())
    definitions = getattr(request, "_fixture_defs", {})
    return {**dict.fromkeys(names), **{name: id(definition) for name, definition in definitions.items()}}


def own_arguments_dropped(item: pytest.Item) -> dict[str, Any] | None:
    """Remove the values of its fixtures from a test. What is left are values of wider fixtures that have ended, which
    may be the last to hold their memory.
    """
    arguments: dict[str, Any] | None = getattr(item, "funcargs", None)
    info = getattr(item, "_fixtureinfo", None)
    if not arguments or info is None:
        return None
    for name in [*arguments]:
        definitions = info.name2fixturedefs.get(name)
        result = definitions[-1].cached_result if definitions else None
        if not definitions or definitions[-1].scope == "function" or (result and result[0] is arguments[name]):
            del arguments[name]  # pytest's own record of a wider fixture still has its value
    return arguments


def keepers_of(item: pytest.Item) -> list[object]:
    """Objects that may hold memory of a test: what pytest keeps of it (its item and fixtures), and its module."""
    fixtures = getattr(getattr(item, "_request", None), "_fixture_defs", {}).values()
    module = getattr(item, "module", None)
    namespace = safe_access.module_dict(module) if is_a(module, ModuleType) else None
    return [item, *fixtures, *([] if namespace is None else [namespace])]


def clear_all_frames(error: BaseException, item: pytest.Item) -> None:
    """Clear the frames of the error that failed a test, and of errors that plugins keep on its item.

    Each failed subtest is a separate error, and pytest-rerunfailures keeps them all.
    """
    clear_frames(error)
    for kept in [*_errors(vars(item))]:
        clear_frames(kept)


def _errors(values: object, depth: int = 4) -> Iterator[BaseException]:
    """The errors of ``ExceptionInfo`` objects in nested containers."""
    if type(values) is pytest.ExceptionInfo:
        if values._excinfo is not None:
            yield values.value
    elif depth and type(values) in (dict, list, tuple):
        for value in [*values.values()] if isinstance(values, dict) else [*values]:  # type: ignore[misc]
            yield from _errors(value, depth - 1)


def failure_lines(report: pytest.TestReport) -> list[str] | None:
    """The lines that pytest prints for a failure without a traceback; they can be changed in place."""
    entries: Sequence[Any] = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ())
    if len(entries) != 1 or getattr(entries[0], "style", None) != "value":
        return None
    lines = entries[0].lines
    return lines if isinstance(lines, list) else None


def harness_codes() -> tuple[CodeType, ...]:
    """The code of pytest that calls a test or a fixture: stacks end there."""
    functions = (
        call_example,
        await_example,
        _pytest.python.pytest_pyfunc_call,
        _pytest.unittest.TestCaseFunction.runtest,
        _pytest.doctest.DoctestItem.runtest,
        _pytest.fixtures.call_fixture_func,
    )
    return tuple(function.__code__ for function in functions)


def is_foreign(excinfo: pytest.ExceptionInfo[BaseException] | None) -> bool:
    """Whether an error is not ours: then pytest's tracebacks omit our frames."""
    return excinfo is not None and own_status(excinfo.value) is None


def own_status(error: BaseException) -> str | None:
    """The word for a failure that we raised, which may be empty; ``None`` for any other failure."""
    status: str | None = (
        safe_access.get(safe_access.instance_dict(error), OWN) if is_a(error, pytest.fail.Exception) else None
    )
    return status


def skip(reason: str) -> NoReturn:
    """Skip the running test; pytest's summary names the test's line, not one of this plugin."""
    raise pytest.skip.Exception(reason, _use_item_location=True)
