"""Errors and what they carry: causes, contexts, the parts of a group. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from typing import Any


def _groups() -> Any:
    """The class of groups, for ``isinstance``: Python's own from 3.11 on, before that of the package that stands in."""
    where = builtins if sys.version_info >= (3, 11) else sys.modules.get("exceptiongroup")
    return getattr(where, "BaseExceptionGroup", ())


def together(error: BaseException) -> Iterator[BaseException]:
    """An error, then those that it was raised from or during, and the parts of groups among them; each once."""
    groups = _groups()
    todo, seen = [error], set[int]()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        parts = one.exceptions if isinstance(one, groups) else ()
        todo += [other for other in (one.__cause__, one.__context__, *parts) if other is not None]


def first_cause(error: BaseException, outer: BaseException | None = None) -> BaseException:
    """The exception that began it: what ends broken work often raises again, with the first one as its context.

    ``outer`` is what was being handled when the work began: it has nothing to do with it.
    """
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        earlier = error.__cause__ or error.__context__
        if earlier is None or earlier is outer or isinstance(earlier, (KeyboardInterrupt, SystemExit)):
            break
        error = earlier
    return error


def let_go(error: BaseException, outer: BaseException | None = None) -> None:
    """Drop the tracebacks of an error and of all that belongs to it, whose frames hold what the work had made.

    What belongs to ``outer``, which was being handled when the work began, is left alone.
    """
    others = [] if outer is None else [*together(outer)]
    for one in together(error):
        if not any(one is other for other in others):
            one.__traceback__ = None
