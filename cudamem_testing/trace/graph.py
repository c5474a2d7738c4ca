"""The data-flow graph and its queries.

Tensors have their names of the text: ``T3`` is a storage, ``T3(v1)`` its contents between two writes. The
graph's edges are the uses of its nodes: a node that takes ``T3(v1)`` depends on the one that left it.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Locator
from cudamem_testing.show.diagrams import Diagram
from cudamem_testing.show.notebook import InNotebook, framed
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.trace.flow import MEMORY, Diagnostic, Node, replay, steps_of
from cudamem_testing.trace.records import Operator, ScopeKind, Storage, Trace
from cudamem_testing.trace.schemas import Effects

__tracebackhide__ = hide_wrong_arguments

Ids: TypeAlias = Literal["first-use", "profiler"]
"""``first-use``: storages numbered as the text meets them, the same on every device. ``profiler``: torch's numbers."""

_LABEL = re.compile(r"T(\d+)(?:\(v(\d+)\))?")


class Name(NamedTuple):
    """A name given to a tensor."""

    text: str
    storage: Storage | None
    """``None`` when nothing in the trace used the tensor."""
    given: bool = False
    """Whether the tensor existed before the recording began."""


class Edge(NamedTuple):
    """A version that one node leaves and another takes; ``source`` is ``None`` if it existed before the recording."""

    source: int | None
    target: int
    storage: Storage
    version: int


class Lifetime(NamedTuple):
    """How long a storage lived, as far as the trace shows."""

    label: str
    """Its name in the unfiltered text, ``T3``."""
    storage: Storage
    created: Node | None
    """``None``: it existed before."""
    last_used: Node | None
    """The last node that takes or changes it, its freeing aside."""
    freed: Node | None
    """``None``: it outlived the trace."""
    nodes: int
    """Nodes between both ends; an unknown end is that of the trace."""

    def __str__(self) -> str:
        size = f"{format_size(self.storage.nbytes)} on {self.storage.device}"
        created = "there before" if self.created is None else f"made by {short_name(self.created.name)}"
        used = "never used" if self.last_used is None else f"last used by {short_name(self.last_used.name)}"
        freed = "never freed" if self.freed is None else f"freed in {short_name(self.freed.name)}"
        return f"{self.label}, {size}: {created}, {used}, {freed}; {count(self.nodes, 'node')}"


@dataclass(frozen=True, slots=True, eq=False)
class DataFlow(InNotebook):
    """Which operator reads, writes, makes and frees which version of which tensor.

    ``str(flow)`` is the text with the default options of :func:`.text.render`.
    """

    trace: Trace
    nodes: tuple[Node, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    """Contradictions in the trace; empty for a consistent one."""
    names: tuple[Name, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """What the profile does not show."""

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Every dependency, in order of the nodes that take."""
        authors: dict[tuple[Storage, int], int] = {}
        edges = []
        for node in self.nodes:
            for use in node.uses:
                if use.before is not None:
                    source = authors.get((use.storage, use.before))
                    edges.append(Edge(source, node.index, use.storage, use.before))
                if use.is_output and use.after is not None:
                    authors[use.storage, use.after] = node.index
        return tuple(edges)

    @property
    def storages(self) -> tuple[Storage, ...]:
        """Every storage that a node uses, in order of first use."""
        return tuple(dict.fromkeys(use.storage for node in self.nodes for use in node.uses))

    def numbers(self, ids: Ids = "first-use") -> dict[Storage, int]:
        """The number of every storage, as in the unfiltered text."""
        return number_storages(self.nodes, self.names, ids)

    def storage(self, label: str, ids: Ids = "first-use") -> Storage:
        """The storage of a label, ``T3`` or ``T3(v1)``, or of a name.

        Storages of one tensor share the profiler's number, which then means the last of them.

        Raises:
            KeyError: when no tensor has that name.
        """
        return self.resolve(label, ids)[0]

    def resolve(self, label: str, ids: Ids = "first-use") -> tuple[Storage, int | None]:
        """The storage and version of a label; no version for ``T3`` or a name, which mean all of them.

        Raises:
            KeyError: when no tensor has that name.
        """
        for name in self.names:
            if name.text == label and name.storage is not None:
                return name.storage, None
        match = _LABEL.fullmatch(label)
        if match is not None:
            number = int(match[1])
            found = [storage for storage, place in self.numbers(ids).items() if place == number]
            if found:
                return found[-1], None if match[2] is None else self._version(found[-1], int(match[2]), label)
        raise KeyError(f"no tensor is called {label!r}: write T3, T3(v1) or one of the names that were given")

    def _version(self, storage: Storage, version: int, label: str) -> int:
        """Refuse a version that does not exist: every query about it would find nothing."""
        last = max(max(use.before or 0, use.after or 0) for _, use in self._uses(storage))
        if version > last:
            raise KeyError(f"{label}: the last version of this tensor is v{last}")
        return version

    def readers(self, label: str, ids: Ids = "first-use") -> tuple[Node, ...]:
        """The nodes that take ``T3(v1)``, or any version of ``T3``; being freed is not being read."""
        storage, version = self.resolve(label, ids)
        return tuple(
            node
            for node, use in self._uses(storage)
            if node.name != MEMORY and use.before is not None and version in (None, use.before)
        )

    def writer(self, label: str, ids: Ids = "first-use") -> Node | None:
        """The node that left ``T3(v1)``, or the first version of ``T3``; ``None`` for what existed before."""
        storage, version = self.resolve(label, ids)
        return next(
            (node for node, use in self._uses(storage) if use.is_output and use.after == (version or 0)),
            None,
        )

    def freed(self, label: str, ids: Ids = "first-use") -> Node | None:
        """The node that frees ``T2``; ``None`` when it outlives the trace."""
        return self.lifetime(label, ids).freed

    def lifetime(self, label: str, ids: Ids = "first-use") -> Lifetime:
        """Creation, last use and freeing of a storage."""
        storage, _ = self.resolve(label, ids)
        return self._lifetime(storage, self._uses(storage), self.numbers(ids))

    def longest_lived(self, most: int = 10, ids: Ids = "first-use") -> tuple[Lifetime, ...]:
        """The storages that were made in the trace and live over the most nodes, longest first."""
        numbers = self.numbers(ids)
        uses: dict[Storage, list[tuple[Node, Any]]] = {}
        for node in self.nodes:
            for use in node.uses:
                uses.setdefault(use.storage, []).append((node, use))
        lifetimes = [self._lifetime(storage, pairs, numbers) for storage, pairs in uses.items()]
        made = [lifetime for lifetime in lifetimes if lifetime.created is not None]
        made.sort(key=lambda lifetime: -lifetime.nodes)
        return tuple(made[:most])

    def regions(self, node: Node) -> tuple[str, ...]:
        """The names of the annotations around a node, from the outside in."""
        return tuple(region.name for region in self.trace.regions_at(node.start, node.thread))

    def makes_or_changes(self, node: Node) -> bool:
        """Whether a node makes or changes a tensor, as far as is known: views do not, and frees are not operators.

        Only what a backward function makes is known; one that makes nothing only passes a gradient on.
        """
        if node.name == MEMORY:
            return False
        event = self.trace.events[node.event]
        backward = isinstance(event, Operator) and event.signature.backward
        return any(use.is_created or (use.is_written and not backward) for use in node.uses)

    def text(self, **options: Any) -> str:
        """The graph as text; arguments as in :class:`.text.Options`."""
        from .text import Options, render

        return render(self, Options(**options))

    def to_dict(self, ids: Ids = "first-use") -> dict[str, Any]:
        """The graph as plain JSON types. Sizes are bytes; no times, addresses or thread ids."""
        numbers = self.numbers(ids)

        def label(storage: Storage, version: int | None) -> list[Any]:
            return [f"T{numbers[storage]}", version]

        return {
            "tensors": [
                {
                    "id": f"T{numbers[storage]}",
                    "device": storage.device,
                    "bytes": storage.nbytes,
                    "names": [name.text for name in self.names if name.storage is storage],
                }
                for storage in sorted(self.storages, key=numbers.__getitem__)
            ],
            "nodes": [
                {
                    "operator": node.name,
                    "thread": node.thread,
                    "regions": list(self.regions(node)),
                    "modules": list(node.scope.path(ScopeKind.MODULE)),
                    "backward": node.scope.backward,
                    "reads": [label(use.storage, use.before) for use in node.inputs],
                    "writes": [label(use.storage, use.after) for use in node.outputs],
                    "frees": [f"T{numbers[use.storage]}" for use in node.uses if use.is_freed],
                    "intermediates": [f"T{numbers[storage]}" for storage in node.intermediates],
                }
                for node in self.nodes
            ],
            "diagnostics": [str(diagnostic) for diagnostic in self.diagnostics],
            "notes": list(self.notes),
        }

    def diagram(self, around: str | None = None, ids: Ids = "first-use") -> Diagram:
        """The graph as a diagram, which shows itself as DOT and HTML; a large one is cut (:func:`.draw.draw`)."""
        from .draw import draw

        return draw(self, Locator(os.getcwd()), around=around, ids=ids)

    def dot(self, around: str | None = None, ids: Ids = "first-use") -> str:
        """The graph for Graphviz, or what is around one tensor; see :meth:`diagram`."""
        return self.diagram(around, ids).dot()

    def html(self, around: str | None = None, ids: Ids = "first-use") -> str:
        """A page that needs no network: the lifetimes of all tensors, or as a graph what is around one."""
        if around is not None:
            return self.diagram(around, ids).html()
        from .categories import categories
        from .lifetimes import lifetimes

        return lifetimes(categories(self), Locator(os.getcwd())).html()

    def _repr_html_(self) -> str:
        return framed(self.html())

    def __str__(self) -> str:
        return self.text()

    def _uses(self, storage: Storage) -> Iterator[tuple[Node, Any]]:
        return ((node, use) for node in self.nodes for use in node.uses if use.storage is storage)

    def _lifetime(self, storage: Storage, uses: Iterable[tuple[Node, Any]], numbers: dict[Storage, int]) -> Lifetime:
        created = freed = last_used = None
        for node, use in uses:
            created = node if use.before is None else created
            freed = node if use.after is None else freed
            last_used = last_used if use.after is None and node.name == MEMORY else node
        first = 0 if created is None else created.index
        last = len(self.nodes) if freed is None else freed.index
        return Lifetime(f"T{numbers[storage]}", storage, created, last_used, freed, last - first)


def data_flow(trace: Trace, names: tuple[Name, ...] = ()) -> DataFlow:
    """The data flow of a trace. A contradiction raises nothing: it becomes a diagnostic."""
    with CollectorPaused():
        nodes, diagnostics = replay(steps_of(trace, Effects()))
    missing = tuple(f"recorded without {flag}" for flag in trace.missing)
    return DataFlow(trace, tuple(nodes), tuple(diagnostics), names, trace.notes + missing)


def number_storages(nodes: Iterable[Node], names: Iterable[Name], ids: Ids) -> dict[Storage, int]:
    """Number the storages of some nodes.

    By first use: named tensors that existed before come first, in the order of the names, so that the numbers of a
    function's arguments do not depend on what it does; then the storages as the nodes use them; and last intermediates,
    which texts do not show.

    Raises:
        ValueError: for an unknown kind of numbers.
    """
    check_ids(ids)
    found: dict[Storage, None] = {name.storage: None for name in names if name.given and name.storage is not None}
    uses = [use for node in nodes for use in node.uses]
    found.update(dict.fromkeys(use.storage for use in uses if not use.is_intermediate))
    found.update(dict.fromkeys(use.storage for use in uses))
    if ids == "profiler":
        return {storage: storage.number for storage in found}
    return {storage: number for number, storage in enumerate(found)}


def check_ids(ids: str) -> None:
    """Refuse an unknown kind of numbers.

    Raises:
        ValueError: with the known ones.
    """
    if ids not in get_args(Ids):
        raise ValueError(f"ids={ids!r} is not known: write ids='first-use' or ids='profiler'")


def short_name(name: str) -> str:
    """An operator's name as texts show it: without the namespace of autograd's own nodes."""
    return name.replace("torch::autograd::", "")
