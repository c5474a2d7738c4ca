"""Finds out which objects are modules, and which are namespaces of modules, by id.

Most modules stay from one search to the next, so the table is kept while ``sys.modules`` holds the same
modules in the same order. The table refers to them weakly: it keeps no module alive, and if one was freed,
another object at its address is not mistaken for it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Sequence
from operator import is_

from cudamem_testing import safe_access

_alive = weakref.ref.__call__


class ModuleTable:
    """The modules of this process under their first names. Holds ids, names and weak references."""

    def __init__(self) -> None:
        self._names: dict[int, object] = {}
        self._seen: list[weakref.ref[object]] | None = None
        self._namespaces: dict[int, int] = {}

    def __contains__(self, obj: object) -> bool:
        """Whether an object is a module, or the namespace of one."""
        return id(obj) in self._names

    def name(self, obj: object) -> object:
        """The key in ``sys.modules`` of a module, given the module or its namespace."""
        return self._names[id(obj)]

    def update(self) -> None:
        """Read the current ``sys.modules``."""
        modules = [*sys.modules.values()]
        if self._seen is None or not self._is_same(self._seen, modules):
            self._seen = _weakly(modules)
            self._read()

    def _is_same(self, seen: Sequence[weakref.ref[object]], modules: Sequence[object]) -> bool:
        if len(seen) != len(modules) or not all(map(is_, map(_alive, seen), modules)):
            return False
        return all(id(_namespace(modules[place])) == number for place, number in self._namespaces.items())

    def _read(self) -> None:
        pairs = tuple(sys.modules.items())
        namespaces = [_namespace(module) for _, module in pairs]
        self._namespaces = {
            place: id(namespace)
            for place, (namespace, (_, module)) in enumerate(zip(namespaces, pairs, strict=True))
            if not safe_access.is_a(module, types.ModuleType)  # other objects may have a different one later
        }
        names = [name for name, _ in pairs]
        self._names = dict(zip(map(id, namespaces[::-1]), names[::-1], strict=True))  # the first of several names
        self._names.pop(id(None), None)
        self._names.update(zip((id(module) for _, module in pairs[::-1]), names[::-1], strict=True))


def _namespace(module: object) -> dict[str, object] | None:
    return safe_access.module_dict(module) if type(module) is types.ModuleType else safe_access.instance_dict(module)


def _weakly(modules: Sequence[object]) -> list[weakref.ref[object]] | None:
    """Weak references to all of them; ``None`` if one does not support them."""
    try:
        return [*map(weakref.ref, modules)]
    except TypeError:
        return None
