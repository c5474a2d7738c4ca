"""Reads nodes of autograd graphs: their next nodes, and what they saved.

Saved tensors are read through ``_raw_saved_*`` only: the plain names run unpack hooks.

Importing this module imports torch.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import types
from collections.abc import Iterator

import torch

from cudamem_testing import safe_access

_SAVED_PREFIX = "_raw_saved_"
#: The base of custom functions' nodes; where torch has another one, these nodes are not recognized.
NodeBase: type = getattr(torch._C, "_FunctionBase", type("NoFunction", (), {}))


def is_node_type(cls: type) -> bool:
    """Whether a class is an autograd node: a C++ one (``MulBackward0``) or a custom function's."""
    if not safe_access.is_heap_type(cls):
        return type(safe_access.class_dict(cls).get("next_functions")) is types.GetSetDescriptorType
    return any(base is NodeBase for base in safe_access.mro(cls))


def next_nodes(node: object) -> Iterator[object]:
    """The nodes that a node's gradients flow to."""
    found = _node_field(node, "next_functions")
    if type(found) is tuple:
        yield from (pair[0] for pair in found if pair[0] is not None)


def node_metadata(node: object) -> object:
    """The metadata dictionary of a node; reading it creates an empty one."""
    return _node_field(node, "metadata")


def node_variable(node: object) -> object:
    """The parameter that an ``AccumulateGrad`` node adds to, else ``None``."""
    return _node_field(node, "variable")


def shows_saved() -> bool:
    """Whether this torch shows what nodes saved, without running hooks (``SavedTensor.data``, after 2.9)."""
    return hasattr(torch._C._autograd.SavedTensor, "data")


#: Those of classes that live as long as the process, by id.
_names: dict[int, tuple[str, ...]] = {}


def saved_names(cls: type) -> tuple[str, ...]:
    """Names of the fields that hold a node's saved tensors, for ``saved``."""
    known = _names.get(id(cls))
    if known is None:
        known = tuple(
            name
            for base in safe_access.mro(cls)
            for name, descriptor in safe_access.class_dict(base).items()
            if name.startswith(_SAVED_PREFIX) and type(descriptor) is types.GetSetDescriptorType
        )
        if not safe_access.is_heap_type(cls):
            _names[id(cls)] = known
    return known


def saved(node: object, names: tuple[str, ...] | None = None) -> Iterator[tuple[str, object]]:
    """What a node saved for backward: tensors, or what a pack hook made of them. No unpack hook runs."""
    for name in saved_names(type(node)) if names is None else names:
        found = _node_field(node, name)
        if found is None:
            continue
        label = name.removeprefix(_SAVED_PREFIX)
        several = type(found) is tuple
        for index, variable in enumerate(found if several else (found,)):  # type: ignore[arg-type, var-annotated]
            try:
                value = variable.data
            except (RuntimeError, AttributeError) as error:
                safe_access.pass_on(error)
                continue
            if value is not None:
                yield (f"{label}[{index}]" if several else label), value


def _node_field(node: object, name: str) -> object:
    for cls in safe_access.mro(type(node)):
        descriptor = safe_access.class_dict(cls).get(name)
        if type(descriptor) is types.GetSetDescriptorType:
            try:
                return types.GetSetDescriptorType.__get__(descriptor, node)
            except (RuntimeError, AttributeError) as error:  # its saved tensors were freed by backward
                safe_access.pass_on(error)
                return None
    return None
