"""Which live objects stand for a storage, and the references between them that only C++ holds.

The collector sees a Python tensor but not what its C++ half keeps: the gradient, the autograd graph with the tensors it
saved for backward, the tensor a view looks at. This module walks all of that once, from every live tensor and every
node that Python holds, and gives the edges that the collector's own lack.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

import torch

from cudamem_testing import static
from cudamem_testing.objects.clock import Clock
from cudamem_testing.objects.torch_references import node_edges, script_edges, tensor_edges
from cudamem_testing.torch_api import nodes, tensors


class Carriers:
    """Live tensors, storages, autograd nodes and modules of TorchScript of one moment.

    ``of`` maps each wanted address to the objects that keep that storage; ``holders`` maps the id of an object to
    the objects that hold it through C++; ``fresh`` are ids of Python objects made by this walk, which nothing in the
    heap refers to. Holds all of them alive: drop it with the search.
    """

    def __init__(self, objects: list[object], addresses: Collection[int], clock: Clock) -> None:
        self.of: dict[int, list[object]] = {}
        self.holders: dict[int, dict[int, object]] = {}
        self.fresh: set[int] = set()
        self.tensor_count = self.node_count = 0
        self.complete = True
        self._addresses = frozenset(addresses)
        self._keep: list[object] = []
        self._seen: set[int] = set()
        self._waiting: list[object] = []
        self._saved_names: dict[int, tuple[str, ...]] = {}
        # Tensors come off the stack before storage objects, so that they are a target's first objects.
        for obj in sorted(_of_interest(objects), key=lambda obj: static.is_a(obj, tensors.TensorBase)):
            self._meet(obj)
        with tensors.quiet():
            while self._waiting:
                self._visit(self._waiting.pop())
                if clock.expired():
                    self.complete = False
                    break

    def hold(self, holder: object, referent: object) -> None:
        """Note that one object holds another where the collector does not see it."""
        self.holders.setdefault(id(referent), {})[id(holder)] = holder

    def _meet(self, obj: object, *, fresh: bool = False) -> None:
        if id(obj) not in self._seen:
            self._seen.add(id(obj))
            self._keep.append(obj)
            self._waiting.append(obj)
            if fresh:
                self.fresh.add(id(obj))

    def _visit(self, obj: object) -> None:
        if static.is_a(obj, tensors.TensorBase):
            self.tensor_count += 1
            self._carry(obj)
            found = tensor_edges(obj)
        elif static.is_a(obj, torch.UntypedStorage):
            self._carry(obj)
            return
        elif static.is_a(obj, torch.jit.ScriptModule):
            found = script_edges((static.instance_dict(obj) or {}).get("_c"))
        else:
            self.node_count += 1
            cls = type(obj)
            names = self._saved_names.get(id(cls))
            if names is None:
                names = self._saved_names[id(cls)] = nodes.saved_names(cls)
            found = node_edges(obj, names, metadata=False)
        for _, _, referent in found:
            self.hold(obj, referent)
            if static.is_a(referent, tensors.TensorBase) or nodes.is_node_type(type(referent)):
                self._meet(referent, fresh=True)

    def release(self) -> None:
        """Let all objects go."""
        for table in (self.of, self.holders, self._keep, self._waiting):
            table.clear()

    def metadata_edges(self) -> list[tuple[object, object]]:
        """Pairs (node, value of its metadata). Asked last, because the question makes each node an empty dictionary."""
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
        if found is not None and found[1] in self._addresses:
            self.of.setdefault(found[1], []).append(obj)


def _of_interest(objects: list[object]) -> list[object]:
    """The tensors, storages, autograd nodes and modules of TorchScript among many objects.

    Each class is judged once, by its id (a hostile metaclass is not asked for a hash), and the loops run in C: this
    looks at every object of the process.
    """
    class_ids = list(map(id, map(type, objects)))
    classes = dict(zip(class_ids, map(type, objects), strict=True))
    wanted = {number for number, cls in classes.items() if _is_of_interest(cls)}
    return list(itertools.compress(objects, map(wanted.__contains__, class_ids)))


def _is_of_interest(cls: type) -> bool:
    return (
        static.derives(cls, tensors.TensorBase)
        or static.derives(cls, torch.UntypedStorage)
        or static.derives(cls, torch.jit.ScriptModule)
        or nodes.is_node_type(cls)
    )
