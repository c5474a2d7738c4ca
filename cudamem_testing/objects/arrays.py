"""References of NumPy arrays, which the collector does not track.

An array made by ``tensor.numpy()`` keeps the tensor as its ``base``; an array of objects keeps its elements.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from cudamem_testing import safe_access
from cudamem_testing.model.edges import Edge, Kind
from cudamem_testing.objects.names import key_text


def array_class() -> type | None:
    """``numpy.ndarray`` if numpy was imported."""
    found = safe_access.get(safe_access.instance_dict(sys.modules.get("numpy")), "ndarray")
    return found if type(found) is type else None


def is_array(obj: object) -> bool:
    """Whether an object is an array of numpy's own class."""
    return type(obj) is array_class()


def array_edges(array: Any) -> Iterator[Edge]:
    """What an array holds: the object that owns its memory, and elements that are objects."""
    yield Kind.ATTRIBUTE, ".base", array.base
    waiting = [("", array)]
    while waiting:
        text, part = waiting.pop()
        if not part.dtype.hasobject:
            continue
        if part.dtype.names is not None:
            waiting += [(f"{text}[{key_text(name)}]", part[name]) for name in reversed(part.dtype.names)]
        else:
            for position, value in enumerate(part.flat):
                yield (Kind.ATTRIBUTE, f"{text}[{position}]", value) if text else (Kind.ITEM, position, value)
