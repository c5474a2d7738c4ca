"""References of torch's own objects through C++: tensors, autograd nodes, TorchScript modules.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from cudamem_testing import safe_access
from cudamem_testing.model.edges import Edge, Kind
from cudamem_testing.objects.names import key_text
from cudamem_testing.torch_api import nodes, tensors

#: Entries of a dictionary from which on it is not read one by one for a few of them.
_LARGE = 64
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


class Wanted(Protocol):
    """Some objects that references are searched to."""

    def __contains__(self, obj: object) -> bool:
        """Whether it is one of them."""
        ...

    def pairs(self, container: object) -> Iterable[tuple[Any, Any]]:
        """Keys and values of a dictionary of which one is wanted; of a list or tuple, positions and values."""
        ...


def pairs_towards(table: object, wanted: Wanted | None) -> Iterable[tuple[Any, Any]]:
    """The entries of a dictionary, without a step of Python for each entry of a large one if a few are wanted."""
    if wanted is None or dict.__len__(table) < _LARGE:  # type: ignore[arg-type]
        return safe_access.items(table)
    return wanted.pairs(table)


def of_module(*names: str) -> str:
    """The path to a part of a module, as in source code: ``.layers[0].weight``."""
    return "".join(f"[{name}]" if name.isdecimal() else f".{name}" for name in names)


def script_edges(script: object) -> Iterator[Edge]:
    """Parameters and buffers of a TorchScript module, which C++ holds; empty for other objects."""
    for names, value in tensors.scripted(script):
        yield Kind.SUBMODULE, of_module(*names), value


def module_edges(namespace: dict[str, Any], wanted: Wanted | None) -> Iterator[Edge]:
    """Parameters, buffers and submodules in a module's namespace as ``model.layer`` or ``model[0]``, not as items of
    hidden tables.
    """
    yield from script_edges(safe_access.get(namespace, "_c"))
    for table_name in _MODULE_TABLES:
        table = safe_access.get(namespace, table_name)
        if not safe_access.is_a(table, dict):
            continue
        for name, value in pairs_towards(table, wanted):
            if value is not None and type(name) is str and (wanted is None or value in wanted):
                yield Kind.SUBMODULE, of_module(name), value
    for table_name, table in safe_access.items(namespace):
        if type(table_name) is str and table_name.endswith("_hooks") and safe_access.is_a(table, dict):
            for number, hook in pairs_towards(table, wanted):
                yield Kind.HOOK, number, hook


def tensor_edges(obj: Any) -> Iterator[Edge]:
    """What a tensor holds through C++: gradient, graph, viewed tensor, hooks, inner tensors."""
    with tensors.quiet():
        node = tensors.grad_fn(obj)
        found: list[Edge] = [
            (Kind.GRAD, ".grad", tensors.grad(obj)),
            (Kind.GRAD_FN, f".grad_fn[{safe_access.class_name(type(node))}]", node),
        ]
        found.append((Kind.STORAGE, "._base", tensors.base(obj)))
        for table in tensors.hooks(obj):
            found += [(Kind.HOOK, number, hook) for number, hook in safe_access.items(table)]
            found.append((Kind.INTERNAL, "._backward_hooks", table))
        found += [(Kind.STORAGE, f".{name}", part) for name, part in tensors.parts(obj)]
    yield from found


def node_edges(obj: Any, saved: tuple[str, ...] | None = None, *, metadata: bool = True) -> Iterator[Edge]:
    """What an autograd node holds: saved tensors, next nodes, the accumulated parameter, metadata.

    ``saved`` are the names of the class's saved fields, for callers that visit many nodes of one class.
    """
    with tensors.quiet():
        found: list[Edge] = [(Kind.SAVED, f".saved {name}", value) for name, value in nodes.saved(obj, saved)]
        found.append((Kind.SAVED, ".variable", nodes.node_variable(obj)))
        found += [(Kind.NEXT, f".next[{safe_access.class_name(type(node))}]", node) for node in nodes.next_nodes(obj)]
        if metadata:
            table = nodes.node_metadata(obj)
            if type(table) is dict:
                found += [(Kind.ATTRIBUTE, f".metadata[{key_text(key)}]", value) for key, value in table.items()]
                found.append((Kind.INTERNAL, ".metadata", table))
            for hooks in safe_access.referents(obj):
                if type(hooks) is collections.OrderedDict:
                    found += [(Kind.HOOK, number, hook) for number, hook in safe_access.items(hooks)]
    yield from found
