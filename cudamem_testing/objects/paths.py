"""Turns a chain of live objects into a ``Path`` of text.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import cast

from cudamem_testing import safe_access
from cudamem_testing.model.edges import Edge, Kind, Reference
from cudamem_testing.model.references import Path, Step, stable_step
from cudamem_testing.objects.graph import Chain
from cudamem_testing.objects.names import type_word
from cudamem_testing.objects.references import edges, label
from cudamem_testing.objects.roots import Root
from cudamem_testing.torch_api import nodes, tensors

#: Most objects that one label of source code may span: ``model``, its dictionary, ``_modules``, ``layer``.
_LONGEST_SPAN = 3


class PathWriter:
    """Writes the paths of one search; labels of shared holders are read once.

    ``objects`` are the live objects of the chains, by id.
    """

    def __init__(self, objects: Mapping[int, object]) -> None:
        self._objects = objects
        self._edges: dict[int, dict[int, Edge]] = {}
        self._steps: dict[tuple[int, int], Step] = {}
        self._words: dict[tuple[int, int, int], tuple[str, str]] = {}

    def write(
        self,
        root: Root,
        chain: Chain,
        *,
        first: Reference | None = None,
        holder: object = None,
    ) -> Path:
        """The path along a chain that starts at a root.

        With ``first``, the root is not an object, and holds the chain's first object by that reference. With
        ``holder``, the root is that object and replaces the chain's first (a module instead of its namespace).
        """
        head = [self._objects[one] for one in chain.head]
        tail = [self._objects[one] for one in chain.tail]
        steps: list[Step] = []
        if first is not None:
            steps.append(Step(first, type_word(head[0]), referent_id=id(head[0])))
        root_id = id(head[0] if holder is None else holder)
        if holder is not None:
            head[0] = holder
        if chain.left_out:
            self._walk(head, steps)
            _append(steps, _leap(head[-1], tail[0], chain.left_out))
            self._walk(tail, steps)
        else:
            self._walk(head + tail, steps)
        return Path(root.text, root.kind, tuple(steps), root.name, root.thread, root_id)

    def words(self, objects: Sequence[object]) -> list[tuple[str, str]]:
        """The label of each step along a chain and the class it leads to; the same in every run."""
        found: list[tuple[str, str]] = []
        before: object = None
        for holder, referent in itertools.pairwise(objects):
            key = id(before), id(holder), id(referent)
            if key not in self._words:
                step = self._step(holder, referent, self._edges_of(holder).get(id(referent)))
                to_holder = None if before is None else self._steps[id(before), id(holder)]
                stable = stable_step(to_holder, step)
                self._words[key] = stable.reference.text, stable.type_name
            found.append(self._words[key])
            before = holder
        return found

    def _walk(self, objects: list[object], steps: list[Step]) -> None:
        position = 0
        while position < len(objects) - 1:
            found = self._edges_of(objects[position])
            for ahead in range(min(position + _LONGEST_SPAN, len(objects) - 1), position, -1):
                edge = found.get(id(objects[ahead]))
                if ahead == position + 1 or (edge is not None and edge[0] not in (Kind.OTHER, Kind.CLASS)):
                    break
            _append(steps, self._step(objects[position], objects[ahead], edge))
            position = ahead

    def _step(self, holder: object, referent: object, edge: Edge | None) -> Step:
        """The step of an edge; ``None`` is an edge that no longer existed when its label was read."""
        found = self._steps.get((id(holder), id(referent)))
        if found is None:
            edge = edge or _part(holder, referent)
            reference = Reference(Kind.OTHER, "(internal)") if edge is None else label(edge[0], edge[1])
            kept = reference.kind is Kind.ATTRIBUTE and _is_cached_property(holder, reference.text[1:])
            found = self._steps[id(holder), id(referent)] = Step(reference, type_word(referent), kept, id(referent))
        return found

    def _edges_of(self, holder: object) -> dict[int, Edge]:
        found = self._edges.get(id(holder))
        if found is None:
            found = self._edges[id(holder)] = {}
            objects = self._objects
            for edge in _among(holder, objects) or edges(holder):
                if id(edge[2]) in objects and _is_before(edge, found.get(id(edge[2]))):
                    found[id(edge[2])] = edge
        return found


def _among(holder: object, objects: Mapping[int, object]) -> list[Edge]:
    """The edges of a plain list or dictionary, which may have a million items, to some objects; otherwise empty."""
    cls = type(holder)
    if cls is list:
        values = enumerate(cast("list[object]", holder))
        return [(Kind.ITEM, place, value) for place, value in values if id(value) in objects]
    if cls is not dict:
        return []
    try:
        return _among_items(dict.items(cast("dict[object, object]", holder)), objects)
    except RuntimeError:  # another thread inserts: read a copy
        return _among_items(safe_access.items(holder), objects)


def _among_items(items: Collection[tuple[object, object]], objects: Mapping[int, object]) -> list[Edge]:
    found: list[Edge] = [(Kind.ITEM, key, value) for key, value in items if id(value) in objects]
    return found + [(Kind.KEY, key, key) for key, _ in items if id(key) in objects]


def _is_before(edge: Edge, known: Edge | None) -> bool:
    """Whether an edge names its referent better: the first does; of several names the lowest, because a namespace may
    have been filled in any order.
    """
    if known is None:
        return True
    kind, name, _ = edge
    return kind is known[0] and type(name) is str and type(known[1]) is str and name < known[1]


def _is_cached_property(holder: object, name: str) -> bool:
    """Whether an instance attribute is the stored value of a ``cached_property`` of its class."""
    if safe_access.is_a(holder, type):
        return False
    kept = (safe_access.class_dict(cls).get(name) for cls in safe_access.mro(type(holder)))
    return any(type(one) is functools.cached_property for one in kept)


def _part(holder: object, referent: object) -> Edge | None:
    """The edge to a part of a sparse tensor: each read of the part returns a new object for the same storage."""
    wanted = tensors.storage(referent)
    if wanted is None:
        return None
    parts = (edge for edge in edges(holder) if edge[0] is Kind.STORAGE)
    return next((edge for edge in parts if tensors.storage(edge[2]) == wanted), None)


def _leap(before: object, after: object, left_out: int) -> Step:
    """The step over the left-out middle of a long chain. Walks in the autograd graph have none: see ``_append``."""
    if nodes.is_node_type(type(before)) and nodes.is_node_type(type(after)):
        return Step(Reference(Kind.NEXT, ""), type_word(after), referent_id=id(after))
    return Step(Reference(Kind.OTHER, f"... {left_out} more ..."), type_word(after), referent_id=id(after))


def _append(steps: list[Step], step: Step) -> None:
    """Add a step; a walk down the autograd graph shows only the node it ends at: ``.grad_fn[MulBackward0]``."""
    before = steps[-1].reference.kind if steps else None
    if step.reference.kind is Kind.NEXT and before in (Kind.NEXT, Kind.GRAD_FN):
        text = f".{'grad_fn' if before is Kind.GRAD_FN else 'next'}[{step.type_name}]"
        steps[-1] = Step(Reference(before, text), step.type_name, referent_id=step.referent_id)
    else:
        steps.append(step)
