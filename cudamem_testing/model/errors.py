"""Errors and what they carry: causes, contexts, the parts of a group. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any

_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # 3.11


def together(error: BaseException) -> Iterator[BaseException]:
    """An error, then those that it was raised from or during, and the parts of groups among them; each once."""
    todo, seen = [error], set[int]()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        parts = one.exceptions if isinstance(one, _GROUP) else ()
        todo += [other for other in (one.__cause__, one.__context__, *parts) if other is not None]
