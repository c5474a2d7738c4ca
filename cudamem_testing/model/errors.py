"""Walks the exceptions that belong to an error: causes, contexts, the parts of a group. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any, cast

from cudamem_testing.safe_access import is_a, is_one_of

# An exception class may define attributes with these names.
_cause, _context, _traceback = (
    cast("Any", BaseException.__dict__[name]) for name in ("__cause__", "__context__", "__traceback__")
)


def _groups() -> Any:
    """The class of exception groups: Python's own from 3.11 on, before that a package's; ``None`` without it."""
    where = builtins if sys.version_info >= (3, 11) else sys.modules.get("exceptiongroup")
    return getattr(where, "BaseExceptionGroup", None)


def exception_chain(error: BaseException) -> Iterator[BaseException]:
    """An error, then the errors it was raised from or during, and the parts of groups among them; each once."""
    groups = _groups()
    todo, seen = [error], set[int]()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        parts = groups.exceptions.__get__(one) if groups is not None and is_a(one, groups) else ()
        todo += [other for other in (_cause.__get__(one), _context.__get__(one), *parts) if other is not None]


def first_cause(error: BaseException, outer: BaseException | None = None) -> BaseException:
    """The first exception: code that cleans up after an error often raises again, with the first one as its context.

    ``outer`` is the exception that was being handled before: it is unrelated.
    """
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        cause = _cause.__get__(error)
        earlier = _context.__get__(error) if cause is None else cause
        if earlier is None or earlier is outer or is_one_of(earlier, KeyboardInterrupt, SystemExit):
            break
        error = earlier
    return error


def traceback_of(error: BaseException) -> TracebackType | None:
    """The traceback of an error, without running code of its class."""
    found: TracebackType | None = _traceback.__get__(error)
    return found


def drop_tracebacks(error: BaseException, outer: BaseException | None = None) -> None:
    """Drop the tracebacks of an error and of all related ones, whose frames hold objects.

    Exceptions of ``outer``, which was being handled before, are left alone.
    """
    others = [] if outer is None else [*exception_chain(outer)]
    for one in exception_chain(error):
        if not any(one is other for other in others):
            _traceback.__set__(one, None)
