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
