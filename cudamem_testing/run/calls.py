"""What calls the body of a test for each of its examples: stacks of what it allocates end here. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

Runs = Iterable[AbstractContextManager[object]]


def call_example(runs: Runs, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a body once in each run."""
    __tracebackhide__ = True
    result = None
    for run in runs:
        with run:
            result = body(*args, **kwargs)
    return result


async def await_example(runs: Runs, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The same for a coroutine function."""
    __tracebackhide__ = True
    for run in runs:
        with run:
            await body(*args, **kwargs)
