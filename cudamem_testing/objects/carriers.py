"""Finds the live objects that keep a storage, and the references between them that only C++ holds.

The collector sees a Python tensor but not what its C++ half keeps: the gradient, the autograd graph with the tensors it
saved for backward, the base tensor of a view. This module walks all of that once, from every live tensor and every
node that Python holds, and gives the edges that the collector does not see.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

import torch

from cudamem_testing import safe_access
from cudamem_testing.objects.clock import Clock
from cudamem_testing.objects.torch_references import node_edges, script_edges, tensor_edges
from cudamem_testing.originals import Original
from cudamem_testing.torch_api import nodes, tensors

#: With more objects than this, listing all classes of the process is quicker than reading each object's class.
_MANY = 20_000


class Carriers:
    """Live tensors, storages, autograd nodes and TorchScript modules at one moment.

    ``of`` maps each wanted address to the objects that keep that storage; ``holders`` maps the id of an object to
    the objects that hold it through C++; ``fresh`` are ids of Python objects created by this walk, which nothing in the
    heap refers to, and ``references`` how many references each of them had then. Keeps all of them alive: drop it with
    the search.
    """

    def __init__(self, objects: list[object], addresses: Collection[int], clock: Clock) -> None:
        self.of: dict[int, list[object]] = {}
        self.holders: dict[int, dict[int, object]] = {}
        self.fresh: set[int] = set()
        self.references: dict[int, int] = {}
        self.tensor_count = self.node_count = 0
        self.complete = True
        self._addresses = frozenset(addresses)
        self._keep: list[object] = []
        self._seen: set[int] = set()
        self._unread: dict[int, bool] = {}
        """Tensors without a storage, and whether they can be visited again: up to torch 2.9 those that only C++ keeps
        have none until C++ gives them out.
        """
        self._waiting: list[object] = []
        self._saved_names: dict[int, tuple[str, ...]] = {}
        # Tensors come off the stack before storage objects, so that they are a target's first objects.
        for obj in sorted(_of_interest(objects), key=lambda obj: safe_access.is_a(obj, tensors.TensorBase)):
            self._meet(obj)
        with tensors.quiet():
            while self._waiting:
                self._visit(self._waiting.pop())
                if clock.expired():
                    self.complete = False
                    break

    def targets(self, addresses: Iterable[int]) -> dict[int, list[object]]:
        """The objects that keep each storage; empty if none does."""
        return {address: self.of.get(address, []) for address in addresses}

    def hold(self, holder: object, referent: object) -> None:
        """Record that one object holds another in a way that the collector does not see."""
        self.holders.setdefault(id(referent), {})[id(holder)] = holder

    def _meet(self, obj: object, *, fresh: bool = False) -> None:
        if id(obj) not in self._seen:
            self._seen.add(id(obj))
            self._keep.append(obj)
            self._waiting.append(obj)
            if fresh:
                self.fresh.add(id(obj))
                self.references[id(obj)] = Original.getrefcount(obj)
        elif fresh and self._unread.get(id(obj)):
            self._unread[id(obj)] = False
            self.tensor_count -= 1
            self._waiting.append(obj)

    def _visit(self, obj: object) -> None:
        if safe_access.is_a(obj, tensors.TensorBase):
            self.tensor_count += 1
            self._carry(obj)
            found = tensor_edges(obj)
            if tensors.hides_attributes():
                self._hold_attributes(obj)
        elif safe_access.is_a(obj, torch.UntypedStorage):
            self._carry(obj)
            return
        elif safe_access.is_a(obj, torch.jit.ScriptModule):
            found = script_edges(safe_access.get(safe_access.instance_dict(obj), "_c"))
        else:
            self.node_count += 1
            cls = type(obj)
            names = self._saved_names.get(id(cls))
            if names is None:
                names = self._saved_names[id(cls)] = nodes.saved_names(cls)
            found = node_edges(obj, names, metadata=False)
        for _, _, referent in found:
            self.hold(obj, referent)
            if safe_access.is_a(referent, tensors.TensorBase) or nodes.is_node_type(type(referent)):
                self._meet(referent, fresh=True)

    def _hold_attributes(self, tensor: object) -> None:
        for value in (safe_access.instance_dict(tensor), *(value for _, value in safe_access.slots(tensor))):
            if value is not None:
                self.hold(tensor, value)

    def release(self) -> None:
        """Release all objects."""
        for table in (self.of, self.holders, self._keep, self._waiting):
            table.clear()

    def metadata_edges(self) -> list[tuple[object, object]]:
        """Pairs (node, value of its metadata). Call it last, because reading gives each node an empty dictionary."""
        with tensors.quiet():
            return [
                (node, value)
                for node in self._keep
                if nodes.is_node_type(type(node))
                for _, detail, value in node_edges(node)
                if type(detail) is str and detail.startswith(".metadata[")
            ]

    def _carry(self, obj: object) -> None:
        found = tensors.storage(obj)
        if found is None:
            self._unread.setdefault(id(obj), True)
        elif found[1] in self._addresses:
            self.of.setdefault(found[1], []).append(obj)


def _of_interest(objects: list[object]) -> list[object]:
    """The tensors, storages, autograd nodes and TorchScript modules among many objects.

    Classes are compared by id (so that a hostile metaclass need not hash), and the loops run in C: this examines
    every object of the process.
    """
    if len(objects) < _MANY:
        classes = {id(cls): cls for cls in map(type, objects)}
        wanted = {number for number, cls in classes.items() if _is_of_interest(cls)}
    else:
        wanted = _classes_of_interest()
    return list(itertools.compress(objects, map(wanted.__contains__, map(id, map(type, objects)))))


def _classes_of_interest() -> set[int]:
    """The ids of their classes: those that derive from a few bases, and the C++ nodes, which have no common base."""
    waiting: list[type] = [tensors.TensorBase, torch.UntypedStorage, torch.jit.ScriptModule, nodes.NodeBase]
    found: dict[int, type] = {}
    while waiting:
        cls = waiting.pop()
        if id(cls) not in found:
            found[id(cls)] = cls
            waiting += type.__subclasses__(cls)
    written_in_c = (cls for cls in type.__subclasses__(object) if not safe_access.is_heap_type(cls))
    return {*found, *(id(cls) for cls in written_in_c if nodes.is_node_type(cls))}


def _is_of_interest(cls: type) -> bool:
    bases = (tensors.TensorBase, torch.UntypedStorage, torch.jit.ScriptModule)
    return any(safe_access.derives(cls, base) for base in bases) or nodes.is_node_type(cls)
