"""Remembers where earlier searches of a run found retained memory, and reads those places first.

A search of the whole heap takes tenths of a second. Most leaks of a suite are in the same few containers, so the chains
that a search has found are remembered (their roots by weak reference, everything else by id). Next time their
surroundings are read from the roots on: known objects are followed, and new objects on them are found. In project
modules that held something, and in the test's own module, everything nearby is read: the next leak may have another
name.

The same search then runs over this small part of the heap. Its answer counts only if it is proven to be that of
the whole heap: each object that the search walked back from has exactly as many references as the part explains, so
nothing outside holds it, and no shorter or other chain exists. Reference counts are read when each object is first met,
before the search refers to it. References from C++ are counted too: the uses of a tensor and of its storage. If
one reference is not explained, there is no answer, and the whole heap is searched.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import gc
import types
import weakref
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from cudamem_testing import safe_access
from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.references import Reach, RootKind
from cudamem_testing.objects.carriers import Carriers
from cudamem_testing.objects.clock import Clock
from cudamem_testing.objects.modules import ModuleTable
from cudamem_testing.objects.roots import Ignore, Roots, defining_module
from cudamem_testing.objects.search import NOTHING_IGNORED, HolderResult, Search, find_holders
from cudamem_testing.originals import Original
from cudamem_testing.torch_api import nodes, tensors

#: References from a known object to the farthest object that is examined.
DEPTH = 32
#: Most objects that are examined, and most ids that are remembered.
MOST_OBJECTS = 10_000
_MOST_KNOWN = 100_000
#: References that are walked back from other holders of a known place.
_EXPLORED = 4
#: References from the namespace of a module or class to containers that may have been filled since the last search.
_NEAR = 4
#: Containers up to this many items are read again for that; containers above ``_LARGE`` items are never read.
_SMALL = 256
_LARGE = 100_000
#: Most objects on the paths to a find that are followed next time; those of a whole model are not.
_FEW = 16
_BUDGET_OBJECTS = 500_000
#: Classes whose instances are usually not filled later.
_FINISHED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, tensors.TensorBase)
_CONTAINERS = (list, dict, tuple, set, frozenset, deque)
#: References of a local variable: its own, and that of the root created for it.
_OF_A_LOCAL = 2
_EXPLAINED = (Reach.REACHABLE, Reach.HARNESS)


class KnownPlaces:
    """The places that the searches of one run have found. Holds ids and weak references only."""

    def __init__(self) -> None:
        self._roots: dict[int, weakref.ref[object]] = {}
        self._known: set[int] = set()
        self._names: dict[int, set[str]] = {}
        self._namespaces: set[int] = set()
        self._looked_at: set[int] = set()
        self._modules = ModuleTable()

    def find(
        self, addresses: Iterable[int], *, beside: Iterable[object] = (), ignore: Ignore = NOTHING_IGNORED
    ) -> dict[int, HolderResult] | None:
        """Holders of each of these storages, like ``find_holders``; ``None`` if known places do not explain
        every one of them.

        ``beside`` are additional roots to examine, such as the finished test.
        """
        wanted = tuple(dict.fromkeys(addresses))
        beside = [*beside]
        starts = [*beside, *filter(None, (root() for root in self._roots.values()))]
        if not starts or not wanted or not tensors.counts_uses():
            return None
        ignore = Ignore(ignore.ids | {id(addresses)}, ignore.packages)
        with CollectorPaused(), tensors.quiet():
            found = self._find(wanted, starts, len(beside), ignore)
            if found is None and self._looked_at:
                self._looked_at.clear()  # skipped containers may have been filled since, or their ids reused
                found = self._find(wanted, starts, len(beside), ignore)
        return found

    def _find(
        self, wanted: tuple[int, ...], starts: Sequence[object], beside: int, ignore: Ignore
    ) -> dict[int, HolderResult] | None:
        roots = Roots(ignore, self._modules)
        ignore = Ignore(ignore.ids | {id(roots.around_test)}, ignore.packages)
        part = _Part(roots, self._known, self._names, self._namespaces, self._looked_at)
        part.look([roots.around_test, *starts], beside + 1)
        with Search(wanted, None, _BUDGET_OBJECTS, ignore, (part.objects, roots)) as search:
            targets = search.carriers.targets(wanted)
            if not all(targets.values()):
                return None
            found = search.run(targets)
            if not (all(one.reach in _EXPLAINED for one in found.values()) and part.is_whole(search, targets)):
                return None
            self._remember_roots(search, targets, {*map(id, starts[:beside])})
            own = _ids(targets)
            if len(ancestors := search.graph.ancestors(own) - own - search.root_at.keys()) <= _FEW:
                self._known |= ancestors  # they may hold the next finds too
        self._looked_at |= part.outside.keys() - self._known
        return found

    def search(
        self,
        addresses: Iterable[int],
        *,
        budget_seconds: float | None = 5.0,
        ignore: Ignore = NOTHING_IGNORED,
        reached_only: bool = False,
    ) -> dict[int, HolderResult]:
        """Search the whole heap like ``find_holders``, and remember the result."""
        wanted = tuple(addresses)

        def learn(search: Search) -> None:
            targets = search.carriers.targets(wanted)
            self.learn(search, search.reached(targets) if reached_only else targets)

        return find_holders(
            wanted, budget_seconds=budget_seconds, ignore=ignore, learn=learn, reached_only=reached_only
        )

    def learn(self, search: Search, targets: dict[int, list[object]]) -> None:
        """Remember the paths from roots to the targets of a search, and other holders of objects on these paths."""
        own = _ids(targets)
        search.explore(search.graph.ancestors(own), _EXPLORED)
        self._remember_roots(search, targets)
        self._known |= search.graph.ancestors(own) - own
        if len(self._known) > _MOST_KNOWN:
            for table in (self._roots, self._known, self._names, self._namespaces, self._looked_at):
                table.clear()

    def _remember_roots(
        self, search: Search, targets: dict[int, list[object]], given: Collection[int] = frozenset()
    ) -> None:
        """Remember the roots among the ancestors, and the names by which they hold the next object; not those given
        for this time only.
        """
        ancestors = search.graph.ancestors(_ids(targets))
        for one in (ancestors & search.root_at.keys()).difference(given):
            root, obj = search.root_at[one], search.graph.objects[one]
            try:
                self._roots.setdefault(one, weakref.ref(obj if root.holder is None else root.holder))
            except TypeError:
                continue
            self._known.add(one)
            if root.kind is RootKind.MODULE and not root.is_library:
                self._namespaces.add(one)
            held = ancestors.intersection(search.graph.held_by(one))
            names = (name for name, value in _namespace(obj) if id(value) in held and type(name) is str)
            self._names.setdefault(one, set()).update(names)


class _Part:
    """The part of the heap around known places.

    ``objects`` are its objects, ``outside`` the reference count of each when it was first met, ``inside`` how many of
    these references come from objects of this part; by id.
    """

    def __init__(
        self, roots: Roots, known: set[int], names: dict[int, set[str]], namespaces: set[int], looked_at: set[int]
    ) -> None:
        self.objects: list[object] = []
        self.outside: dict[int, int] = {}
        self.inside: Counter[int] = Counter()
        self._roots, self._known, self._names, self._looked_at = roots, known, names, looked_at
        self._around_test = {*map(id, roots.around_test)}
        self._waiting: deque[_Waiting] = deque()
        self._namespaces = namespaces
        self._whole: set[int] = set()

    def look(self, starts: Sequence[object], beside: int) -> None:
        """Read what roots hold, breadth first; everything that the first ``beside`` of them hold."""
        self._whole = {*map(id, starts[:beside])} | self._namespaces
        for start in starts:
            if id(start) not in self.outside:
                self.outside[id(start)] = -1  # never explained: an object that is no longer a root has other holders
                self.objects.append(start)
                self._waiting.append(_Waiting(start, 0, 0))
        while self._waiting and len(self.objects) < MOST_OBJECTS:
            self._read(*self._waiting.popleft())

    def _read(self, obj: object, beyond: int, near: int) -> None:
        if id(obj) in self._whole and (self._roots.is_module(obj) or defining_module(obj) is not None):
            near = _NEAR
            self._whole.update(_defined_in(obj))
        wanted = self._followed(obj)  # first: it may create the object's dictionary
        children = safe_access.referents(obj)
        if len(children) > _SMALL and near < _NEAR:
            near = 0
        numbers = [*map(id, children)]
        self.inside.update(numbers)
        times = Counter(numbers) if len({*numbers}) < len(numbers) else None
        own = _own_references()
        for child, number in zip(children, numbers, strict=True):
            known = number in self._known
            if number in self.outside or (wanted is not None and number not in wanted) or not gc.is_tracked(child):
                continue
            if not known and number in self._looked_at and (near <= 0 or self._is_passed_over(child)):
                continue
            self.outside[number] = Original.getrefcount(child) - own - (0 if times is None else times[number] - 1)
            if _size(child) > _LARGE:
                continue
            self.objects.append(child)
            farther = 0 if known else beyond + 1
            if farther <= DEPTH:
                self._waiting.append(_Waiting(child, farther, near - 1))

    def _is_passed_over(self, child: object) -> bool:
        """Whether an object near a namespace, which was examined before, cannot have been filled since."""
        return id(child) not in self._whole and (safe_access.is_one_of(child, *_FINISHED) or _size(child) > _SMALL)

    def _followed(self, obj: object) -> set[int] | None:
        """Ids of the references to follow from an object: usually all, from roots only those followed before."""
        if id(obj) in self._whole or not self._is_root(obj):
            return None
        return self._known.union(map(id, self._named(obj)))

    def _is_root(self, obj: object) -> bool:
        return self._roots.anchor(obj) is not None

    def _named(self, obj: object) -> list[object]:
        names = self._names.get(id(obj), ())
        return [value for name, value in _namespace(obj) if name in names] if names else []

    def is_whole(self, search: Search, targets: dict[int, list[object]]) -> bool:
        """Whether nothing outside this part holds an object that the search walked back from, or shares a storage."""
        return all(self._is_accounted_for(one, search) for one in search.walked) and all(
            self._is_alone(objects, search) for objects in targets.values()
        )

    def _is_accounted_for(self, one: int, search: Search) -> bool:
        obj, carriers = search.graph.objects[one], search.carriers
        if nodes.is_node_type(type(obj)):
            return False  # other users of an autograd node are unknown
        uses = len(carriers.holders.get(one, ()))
        if one in carriers.fresh:
            return uses == 1 and (carriers.references[one], tensors.use_count(obj)) == _held_by_another()
        references = self.outside.get(one, -1) - self.inside[one]
        if one in self._around_test:
            references -= _OF_A_LOCAL * len(self._roots.values[one])
        if not safe_access.is_a(obj, tensors.TensorBase):
            return uses == 0 and references == 0
        return tensors.use_count(obj) == 1 + uses and references == (_shared_references() if uses else 0)

    @staticmethod
    def _is_alone(objects: Sequence[object], search: Search) -> bool:
        """Whether these tensors are the only users of their storage, and their order does not matter."""
        if not all(safe_access.is_a(obj, tensors.TensorBase) for obj in objects) or len(search.own([*objects])) != 1:
            return False
        if any(map(tensors.is_lazy_clone, objects)):
            return False  # clones share the memory, and have separate storages
        uses, references = _uses_of_own_storage()
        return tensors.storage_use_count(objects[0]) == (uses + len(objects) - 1, references)


class _Waiting(NamedTuple):
    """An object to read: its distance from the last known one, and how many more references count as near a module."""

    obj: object
    beyond: int
    near: int


def _defined_in(namespace: object) -> Iterator[int]:
    """Ids of the classes and caches that a module defines: these roots are read completely, like the module."""
    own = None if type(namespace) is not dict else safe_access.get(namespace, "__name__")
    if type(own) is str:
        for _, value in safe_access.items(namespace):
            if defining_module(value) == own:
                yield id(value)


def _size(obj: object) -> int:
    """The number of items of a container; 0 for other objects."""
    base: Any = next((base for base in _CONTAINERS if safe_access.is_a(obj, base)), None)
    return 0 if base is None else base.__len__(obj)


def _ids(targets: dict[int, list[object]]) -> set[int]:
    return {id(obj) for objects in targets.values() for obj in objects}


def _namespace(obj: object) -> Iterable[tuple[object, object]]:
    """Names and values of a module's namespace or of a class; empty for other objects."""
    if type(obj) is dict:
        return safe_access.items(obj)
    return tuple(safe_access.class_dict(obj).items()) if safe_access.is_a(obj, type) else ()


@cache
def _own_references() -> int:
    """How many references ``_Part._read`` itself has to an object when it counts them."""
    children = [[]]  # type: ignore[var-annotated]
    numbers = [*map(id, children)]
    return next(Original.getrefcount(child) for child, _ in zip(children, numbers, strict=True))


@cache
def _shared_references() -> int:
    """How many references C++ has to the Python object of a tensor that it also uses."""
    tensor = torch.empty(1, device="cpu")
    alone = Original.getrefcount(tensor)
    view = tensor[:0]
    return Original.getrefcount(tensor) - alone if view is not None else 0


@cache
def _held_by_another() -> tuple[int, int]:
    """References and uses of a tensor that one other tensor holds through C++, as seen by ``Carriers``."""
    parameter = torch.empty(1, device="cpu", requires_grad=True)
    parameter.grad = torch.empty(1, device="cpu")
    carriers = Carriers([parameter], (), Clock(None))
    (found,) = carriers.fresh
    obj = next(obj for obj in (parameter.grad,) if id(obj) == found)
    answer = carriers.references[found], tensors.use_count(obj)
    carriers.release()
    return answer


@cache
def _uses_of_own_storage() -> tuple[int, int]:
    """Uses of a storage that belongs to one tensor only, and references to its Python object."""
    return tensors.storage_use_count(torch.empty(1, device="cpu"))
