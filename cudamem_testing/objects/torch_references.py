"""References of torch's own objects through C++: tensors, autograd nodes, TorchScript modules.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

from cudamem_testing import safe_access
from cudamem_testing.model.references import Edge, Kind
from cudamem_testing.objects.names import key_text
from cudamem_testing.torch_api import nodes, tensors


def of_module(*names: str) -> str:
    """The path to a part of a module, as in source code: ``.layers[0].weight``."""
    return "".join(f"[{name}]" if name.isdecimal() else f".{name}" for name in names)


def script_edges(script: object) -> Iterator[Edge]:
    """Parameters and buffers of a TorchScript module, which C++ holds; empty for other objects."""
    for names, value in tensors.scripted(script):
        yield Kind.SUBMODULE, of_module(*names), value


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
