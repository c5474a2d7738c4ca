"""Objects of garbage, references among them and storages, read in native code (``collector_reading.h``).

An object is its place in a list. Nothing here calls code of the user. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
import struct
import types
from collections.abc import Callable, Iterable, Sequence
from ctypes import PyDLL
from functools import cache
from typing import Any, NamedTuple

from cudamem_testing.recorders.build import COLLECTOR_WATCH, load

#: No place, and no component.
NONE = 0xFFFFFFFF
_ANY_OWNER = 0xFFFFFFFF
_ITEM = struct.Struct("=2Q3I4x")
#: The interpreter's inner objects, which are part of a label and no steps of a chain.
_INNER = (types.CellType, tuple, dict)


@cache
def library() -> PyDLL:
    """The native part of the watch, compiled if it never was.

    Raises:
        RecorderUnavailable: it cannot be built or loaded here.
    """
    loaded = load(COLLECTOR_WATCH)
    # Objects of users are passed in lists: ctypes would ask one for its class.
    handle, number, obj = ctypes.c_void_p, ctypes.c_uint32, ctypes.py_object
    for name, result, *arguments in (
        ("graph_begin", handle, obj),
        ("graph_end", None, handle),
        ("graph_classes", obj, handle),
        ("graph_instances", obj, handle, ctypes.c_char_p),
        ("graph_find", number, handle, obj),
        ("graph_add", number, handle, obj),
        ("graph_refer", None, handle, number, number),
        ("graph_search", ctypes.c_int32, handle, handle, obj),
        ("graph_keeper", number, handle, number),
        ("graph_size", number, handle, number),
        ("graph_hanging", number, handle, number),
        ("graph_component", obj, handle, number),
        ("graph_cycle", obj, handle, number, ctypes.c_char_p),
        ("graph_chains", obj, handle, number, obj, obj),
        ("pairs", obj, obj, obj),
        ("storages_begin", handle, handle, number, obj, handle, number),
        ("storages_read", obj, handle, obj, ctypes.c_int32),
        ("storages_end", None, handle),
        ("storages_count", number, handle),
        ("storages_totals", obj, handle),
        ("storages_keep", None, handle, ctypes.c_char_p),
        ("device_name", obj, number),
        ("device_number", number, ctypes.c_char_p),
        ("storages_groups", obj, handle),
        ("storages_items", obj, handle, number, number),
        ("storages_settle", obj, handle),
        ("collector_pace", None, ctypes.c_double),
    ):
        function = getattr(loaded, f"cudamem_{name}")
        function.restype, function.argtypes = result, arguments
    return loaded


class TooLongError(Exception):
    """The collection has no time left."""


class Item(NamedTuple):
    """A storage: its address and bytes, the place of its first tensor, the number of the stack that allocated its block
    (``NONE`` if no recorder of the CPU knows the block), and the number of its device (``device_name``).
    """

    address: int
    bytes: int
    place: int
    stack: int
    device: int

    @property
    def on(self) -> str:
        """The name of its device."""
        return device_name(self.device)


@cache
def device_name(number: int) -> str:
    """The name of a device by its number: ``cuda:0``."""
    name: str = "cpu" if number == 0 else library().cudamem_device_name(number)
    return name


def device_numbers(names: Iterable[str]) -> bytes:
    """The numbers of devices other than the CPU by their names, for native code; without names unknown to torch."""
    numbers = (library().cudamem_device_number(one.encode()) for one in names)
    return b"".join(struct.pack("=I", number) for number in numbers if number)


class Blocks(NamedTuple):
    """The CPU recorder's blocks: the address of its function that finds one, and the owner whose blocks count.

    Without a function every storage counts, without an owner every block.
    """

    find: int = 0
    owner: int | None = None


class Graph:
    """The references among some objects. It holds them: use it in a ``with`` block.

    ``classes`` are those of the objects, each once.
    """

    def __init__(self, objects: list[object]) -> None:
        self._library = library()
        self.objects = objects
        self.handle: int = self._library.cudamem_graph_begin(objects)
        self.classes: list[type] = self._library.cudamem_graph_classes(self.handle)
        self._inner: bytes | None = None

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_: object) -> None:
        self.objects = []
        handle, self.handle = self.handle, 0
        self._library.cudamem_graph_end(handle)

    def instances(self, chosen: Callable[[type], bool]) -> list[int]:
        """The places of the first objects whose class is chosen; each class is judged once."""
        found: list[int] = self._library.cudamem_graph_instances(self.handle, bytes(map(chosen, self.classes)))
        return found

    def find(self, obj: object) -> int:
        """The place of an object, or ``NONE``."""
        return int(self._library.cudamem_graph_find(self.handle, [obj]))

    def add(self, obj: object) -> int:
        """Adds an object; returns its place."""
        self.objects.append(obj)
        return int(self._library.cudamem_graph_add(self.handle, [obj]))

    def refer(self, holder: int, held: int) -> None:
        """Adds a reference that the collector does not see, before the search."""
        self._library.cudamem_graph_refer(self.handle, holder, held)

    def search(self, storages: Storages | None, others: Sequence[int]) -> None:
        """Finds what keeps some storages, and the objects at some other places. Raises ``TooLongError``."""
        if not self._library.cudamem_graph_search(self.handle, storages and storages.handle, [*others]):
            raise TooLongError

    def keeper(self, place: int) -> int:
        """The component that keeps an object: a cycle that no other cycle reaches, ``NONE`` if no cycle does.

        Breaking any other cycle first frees nothing. If several reach the object, it is the first one.
        """
        return int(self._library.cudamem_graph_keeper(self.handle, place))

    def component(self, component: int) -> list[int]:
        """The places of its objects."""
        found: list[int] = self._library.cudamem_graph_component(self.handle, component)
        return found

    def size(self, component: int) -> int:
        """How many objects that lead to targets a component keeps, with its own."""
        return int(self._library.cudamem_graph_size(self.handle, component))

    def hanging(self, component: int) -> int:
        """How many other cycles are among them."""
        return int(self._library.cudamem_graph_hanging(self.handle, component))

    def cycle(self, target: int) -> list[int]:
        """The shortest cycle through the nearest object towards a target in the component that keeps it.

        That object is none of the interpreter's inner ones, if the component has others. It comes first, and is not
        repeated at the end.
        """
        if self._inner is None:
            classes: list[type] = self._library.cudamem_graph_classes(self.handle)
            self._inner = bytes(any(cls is one for one in _INNER) for cls in classes)
        found: list[int] = self._library.cudamem_graph_cycle(self.handle, target, self._inner)
        return found

    def chains(self, component: int, starts: Sequence[int], wanted: Sequence[int]) -> dict[int, list[int]]:
        """The shortest chain from one of the starts to each wanted object, through what a component keeps."""
        found = self._library.cudamem_graph_chains(self.handle, component, [*starts], [*wanted])
        return {one: chain for one, chain in zip(wanted, found, strict=True) if chain}


class Towards:
    """Finds which entries of a container are some objects, by their identity."""

    def __init__(self, objects: Iterable[object]) -> None:
        self._wanted = [*objects]
        self._ids = frozenset(map(id, self._wanted))

    def __contains__(self, obj: object) -> bool:
        return id(obj) in self._ids

    def pairs(self, container: object) -> list[tuple[Any, Any]]:
        """Keys and values of a dictionary of which one is wanted; of a list or tuple, positions and values."""
        found = library().cudamem_pairs([container], self._wanted)
        return [*zip(found[::2], found[1::2], strict=True)]


class Storages:
    """Storages of tensors in a graph, each once, and weak references to them until ``settle``.

    It keeps no object alive, and outlives the graph.
    """

    def __init__(self, graph: Graph, blocks: Blocks, offset: int, parameter: type) -> None:
        self._library = library()
        owner = _ANY_OWNER if blocks.owner is None else blocks.owner
        self.handle: int = self._library.cudamem_storages_begin(graph.handle, offset, parameter, blocks.find, owner)
        #: For each gradient without a Python object, which was added to the graph, the place of its parameter.
        self.parameters: dict[int, int] = {}
        self._settled: tuple[bytes, bytes] | None = None

    def read(self, graph: Graph, places: Sequence[int], *, gradients: bool = True) -> tuple[list[int], list[int]]:
        """Reads tensors; with ``gradients`` also those of parameters.

        Returns the places of tensors whose storages it cannot read, and of those that may refer to more. Raises
        ``TooLongError``.
        """
        found = self._library.cudamem_storages_read(self.handle, [*places], gradients)
        if not found:
            raise TooLongError
        unread, followed, owners = found
        for owner in owners:
            self.parameters[len(graph.objects)] = owner
            graph.objects.append(None)
        return unread, followed

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._library.cudamem_storages_count(self.handle))

    def totals(self) -> dict[str, int]:
        """The bytes of all of them by device."""
        found: list[int] = self._library.cudamem_storages_totals(self.handle)
        return {device_name(device): size for device, size in zip(found[::2], found[1::2], strict=True)}

    def keep(self, chosen: Sequence[bool]) -> None:
        """Drops those that are not chosen, before they are put together."""
        self._library.cudamem_storages_keep(self.handle, bytes(chosen))

    def groups(self) -> list[tuple[int, int]]:
        """Puts together what each component keeps, the largest first, and in them the largest storages first.

        Returns the components, each with the number of the storage where it ends. Raises ``TooLongError``.
        """
        found = self._library.cudamem_storages_groups(self.handle)
        if found is None:
            raise TooLongError
        return [(component, end) for component, end in found]

    def items(self, first: int, last: int) -> list[Item]:
        """Some of the storages."""
        return items_in(self._library.cudamem_storages_items(self.handle, first, last))

    def settle(self) -> tuple[bytes, bytes]:
        """Releases all; returns their bytes, for ``items_in``, and for each whether it was freed by then.

        It may be called again: a signal handler may interrupt it anywhere.
        """
        if self._settled is None:
            raw = self._library.cudamem_storages_items(self.handle, 0, self.count)
            self._settled = raw, self._library.cudamem_storages_settle(self.handle)
        handle, self.handle = self.handle, 0
        self._library.cudamem_storages_end(handle)
        return self._settled


def items_in(raw: bytes) -> list[Item]:
    """The storages in bytes."""
    return [*map(Item._make, _ITEM.iter_unpack(raw))]
