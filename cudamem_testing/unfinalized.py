"""Shows garbage before its finalizers run: the Python side of the watch over the collector.

The collector finds unreachable objects, clears the weak references to them and calls their callbacks; then it calls
finalizers, and only after that it shows what is left. A finalizer may drop what matters: that of a suspended generator
closes it, which drops its variables; a ``__del__`` may drop a buffer. Only the callbacks come before. So this module
makes an object that is garbage itself, the mark, and examines the other garbage in the callback of a weak reference to
it.

Native code does that (``collector_watch.cpp``), so no Python code runs inside a collection of garbage without an
instance of a wanted class. The mark is freed before the collector counts, and ``gc.callbacks`` has an entry of ours
only during a collection that found such instances. The collector has no interface for what it found, so its list is
read as CPython keeps it (``PyGC_Head``, unchanged since 3.8): each object links to its neighbours, and a flag marks
garbage during a collection. A test object checks first that the list is kept like that.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import os
import struct
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from gc import callbacks, collect, get_count, get_referents, get_stats
from threading import main_thread
from typing import Any, NamedTuple

#: Bits of a link that are flags.
_FLAGS = 3
#: Versions of Python whose way to keep the attributes of an instance without a dictionary is known: see `Values`.
_KNOWN_VALUES = (3, 11) <= sys.version_info[:2] <= (3, 12)
UNREADABLE = "this build of Python keeps its list of objects in an unknown way"
INTERRUPTED = "signals interrupted it too often"


class CollectorUnreadableError(RuntimeError):
    """The collector cannot be watched here; the message says why."""


class _Entry(ctypes.Structure):
    """An object in the collector's list: links to its neighbours, and from ``count`` on the object itself."""

    _fields_ = (
        ("after", ctypes.c_size_t),
        ("before", ctypes.c_size_t),
        ("count", ctypes.c_ssize_t),
        ("type", ctypes.c_size_t),
    )


_LINKS: int = _Entry.count.offset


class _Mark:
    """An object that refers to itself, so that only the collector frees it."""

    __slots__ = ("__weakref__", "me")
    me: _Mark | None


class _Probe:
    """An instance with one attribute, which shows how Python keeps it."""

    def __init__(self, value: object) -> None:
        self.value = value


class Count(NamedTuple):
    """Blocks of one kind that one collection freed, and the block that was shown instead of them.

    That was in the collection ``shown_in``, at ``address``; zeros where there is none. ``size`` is in bytes. Where
    ``saved`` is not 0, autograd had saved the blocks, for what was shown there: then it is the size of all of them.
    ``device`` is the number of their device, 0 for the CPU.
    """

    collection: int
    size: int
    blocks: int
    shown_in: int
    address: int
    saved: int = 0
    device: int = 0


class Moment(NamedTuple):
    """When a collection freed blocks of a card: by then there were so many allocations, and so many of them were live.

    ``collection`` is 0 for now, ``device`` is the number of the card.
    """

    collection: int
    device: int
    allocations: int
    blocks: int


class Unread(NamedTuple):
    """Collections with too many objects, those that were not read to the end, and the bytes that both freed.

    ``known`` ones had garbage that was counted by what was freed. ``kinds`` of garbage were left out in others.
    """

    collections: int
    bytes: int
    cut: int
    cut_bytes: int
    known: int
    kinds: int


class Counting(NamedTuple):
    """Start and stop a watch that examines only garbage which may keep much of an owner's memory, and counts the rest.

    ``start`` gets an owner and a limit in bytes, and drops earlier counts. The others are for what every test does, and
    return whether they did it: ``resume`` does what ``start`` did before, if no other watch has been started. ``pause``
    stops a resumed watch that saw no collection; it has nothing to take.
    """

    start: Callable[[int, int], None]
    resume: Callable[[int, int], bool]
    pause: Callable[[], bool]


_COUNT, _UNREAD, _ADDRESS, _MOMENT = map(struct.Struct, ("=7Q", "=6Q", "=2Q", "=4Q"))
Part = tuple[int, int]
"""Some of the garbage that has no reference to the rest: its fingerprint, 0 where it has none, and its objects.

The fingerprint is the same for as many objects of the same classes, and as many blocks of the same sizes and calls.
"""


class GarbageWatch:
    """Shows the garbage of every collection that found an instance of one of ``kinds``.

    ``look`` gets it in a list before finalizers run, and the parts that it consists of one after the other where that
    is known. It must keep nothing of it, and returns whether ``gone`` is to be called when the collection is over.
    ``recognise`` gets a part with the fingerprint of one that ``look`` got before, and returns whether it is alike:
    then it is counted, and not looked at. ``gone`` returns whether ``outside`` is to be called soon after, in the main
    thread, between two bytecodes. ``look`` and ``gone`` run inside the collection: no other one starts meanwhile. An
    exception of a signal handler there is raised in the main thread after the collection, and they are called again.
    ``failed`` gets any other error of theirs. An exception of ``outside`` is raised in the main thread.
    """

    def __init__(
        self,
        kinds: tuple[type, ...],
        look: Callable[[list[object], Sequence[Part]], bool],
        gone: Callable[[], bool],
        failed: Callable[[BaseException], None],
        outside: Callable[[], None] | None = None,
        recognise: Callable[[list[object], int], bool] = lambda garbage, fingerprint: False,
    ) -> None:
        self.kinds = kinds
        self._look, self._recognise = look, recognise
        self.gone, self.failed, self.outside = gone, failed, outside
        #: Collections until the last stop that were not examined because something held the mark: ``gc.freeze()``, a
        #: list of all objects.
        self.missed = 0
        #: Whether there was one until the last stop, since this was set to false.
        self.ran = False
        self._begun: int | None = None

    def look(self, shown: tuple[list[object], list[int]]) -> bool:
        """Called by the library with garbage, and the numbers of its parts one after the other."""
        garbage, numbers = shown
        return self._look(garbage, [*zip(numbers[::2], numbers[1::2], strict=True)])

    def recognise(self, shown: tuple[list[object], list[int]]) -> bool:
        """Called by the library with the objects of one part, and its numbers."""
        garbage, numbers = shown
        return self._recognise(garbage, numbers[0])

    def start(self, library: ctypes.PyDLL, modules: Iterable[types.ModuleType] = (builtins, gc)) -> None:
        """Start watching with the library ``collector_watch``.

        During an examination, ``modules`` are those of the moment when the first watch of the process began.

        Raises:
            CollectorUnreadableError: the collector cannot be watched here.
        """
        if self not in _watches:
            if not _started:
                _begin(library, modules)
            _watches.append(self)
            self._begun = refresh()

    def stop(self) -> bool:
        """Stop watching; returns whether there may be something to take (``ran``)."""
        if self in _watches:
            _watches.remove(self)
            library = _started[0]
            ended = library.cudamem_collector_collections() if _watches else library.cudamem_collector_end()
            begun, self._begun = self._begun, None
            if begun is None:
                begun = library.cudamem_collector_begun()  # it was resumed
            if ended != begun:
                self.ran = True
                self.missed += max(0, _unseen(ended - begun))
            if _watches:
                refresh()
        elif not _watches:
            for library in _started:
                library.cudamem_collector_end()  # drops the mark that a pause has left
        return self.ran

    def counting(
        self, library: ctypes.PyDLL, functions: tuple[int, int], offset: int, parameter: type, cards: bytes = b""
    ) -> Counting:
        """Have only garbage examined that may keep so much of an owner's memory, and each kind once; the blocks of
        further garbage are counted.

        ``functions`` are the addresses of those of the CPU recorder that find a block and what an owner has, zeros
        without it; ``offset`` is where the object of a tensor has the address of the C++ tensor. ``cards`` has the
        numbers of the other devices that count, four bytes each.
        """
        block_at, totals = map(ctypes.c_void_p, functions)

        def start(owner: int, limit: int) -> None:
            self.start(library)
            library.cudamem_collector_meter(
                self, block_at, totals, offset, parameter, cards, len(cards) // 4, owner, limit
            )

        return Counting(start, *library.cudamem_collector_functions(self, self.kinds))

    @staticmethod
    def look_at_all() -> None:
        """Count nothing."""
        _started[0].cudamem_collector_meter(None, None, None, 0, object, b"", 0, 0, 0)

    @staticmethod
    def has_time() -> None:
        """Say that collections may take long, because no code of a test waits for them, until counting begins again.

        Else garbage of very many objects, or of many new kinds, is not read whole.
        """
        for library in _started:
            library.cudamem_collector_has_time()

    @staticmethod
    def unread() -> Unread:
        """What was not read since counting began."""
        return Unread(*_UNREAD.unpack(_started[0].cudamem_collector_unread()))

    def counts(self) -> list[Count]:
        """The blocks of kinds that were shown before."""
        return [*map(Count._make, _COUNT.iter_unpack(_started[0].cudamem_collector_counts()))]

    @staticmethod
    def addresses() -> list[tuple[int, int]]:
        """Of each block of a card that was counted, the place of its count and its address."""
        return [*_ADDRESS.iter_unpack(_started[0].cudamem_collector_addresses())]

    @staticmethod
    def moments() -> list[Moment]:
        """When collections freed blocks of cards, and at the end the current moment of each card."""
        return [*map(Moment._make, _MOMENT.iter_unpack(_started[0].cudamem_collector_moments()))]


_watches: list[GarbageWatch] = []
_started: list[ctypes.PyDLL] = []


def _older_collections() -> int:
    """How many collections of older generations there were in this process."""
    return sum(generation["collections"] for generation in get_stats()[1:])


#: The same where it costs least: every test asks.
older_collections: Callable[[], int] = _older_collections


def _set_main_thread() -> None:
    for library in _started:
        library.cudamem_collector_main_thread(main_thread().ident or 0)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_set_main_thread)


def refresh() -> int:
    """Have the next collection examined, even if something held the mark meanwhile; does nothing without a watch.

    The answer counts the collections of this process, also before anything was watched: all of them in the upper half
    of its 64 bits, in the lower one those that no watch saw.
    """
    if not _watches:
        return 0
    kinds = _watches[0].kinds
    if len(_watches) > 1:
        kinds = tuple({id(kind): kind for watch in _watches for kind in watch.kinds}.values())
    counted: int = _started[0].cudamem_collector_mark(kinds)
    return counted


def _begin(library: ctypes.PyDLL, modules: Iterable[types.ModuleType]) -> None:
    global older_collections
    if not any(_is_readable() for _ in range(3)):
        raise CollectorUnreadableError(UNREADABLE)
    genuine = tuple((vars(module), name, value) for module in modules for name, value in vars(module).items())
    library.cudamem_collector_begin.argtypes = [*[ctypes.py_object] * 8, ctypes.c_int32]
    library.cudamem_collector_mark.argtypes = [ctypes.py_object]
    library.cudamem_collector_functions.argtypes = [ctypes.py_object, ctypes.py_object]
    library.cudamem_collector_main_thread.argtypes = [ctypes.c_uint64]
    library.cudamem_collector_main_thread.restype = None
    for name in ("mark", "seen", "collections", "begun", "end"):
        getattr(library, f"cudamem_collector_{name}").restype = ctypes.c_int64
    given = (ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    meter = (*given, ctypes.py_object, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64)
    library.cudamem_collector_meter.argtypes, library.cudamem_collector_meter.restype = meter, None
    library.cudamem_collector_has_time.restype = None
    library.cudamem_collector_took.restype = library.cudamem_collector_left.restype = ctypes.c_double
    for name in ("unread", "counts", "addresses", "moments", "functions", "older"):
        getattr(library, f"cudamem_collector_{name}").restype = ctypes.py_object
    for name in ("counted", "unshown"):
        getattr(library, f"cudamem_collector_{name}").restype = ctypes.c_uint64
    # From Python 3.14 on a collection examines parts of a generation.
    counts = get_count if sys.version_info < (3, 14) else None
    arguments: tuple[Any, ...] = (_Mark, _watches, callbacks, get_stats, counts, collect, _interrupted, genuine)
    if library.cudamem_collector_begin(*arguments, _makes_dictionaries()) < 0:
        raise CollectorUnreadableError(UNREADABLE)
    if _KNOWN_VALUES and not hasattr(sys, "gettotalrefcount"):  # a debug build checks what is undone
        library.cudamem_collector_values.argtypes = [ctypes.py_object, ctypes.py_object, ctypes.c_int32]
        library.cudamem_collector_values.restype = None
        value = object()
        library.cudamem_collector_values(_Probe(value), value, sys.version_info[1])
    _started.append(library)
    _set_main_thread()
    older_collections = library.cudamem_collector_older()


def _unseen(counted: int) -> int:
    """The lower half, which is below zero inside a collection, because it is seen before it is counted."""
    return (counted + 2**31) % 2**32 - 2**31


def _interrupted() -> RuntimeError:
    return RuntimeError(INTERRUPTED)


def _makes_dictionaries() -> bool:
    """Whether an instance that is asked for its dictionary gets one that the collector visits in its place.

    So it is in Python 3.11 and 3.12, not in the first releases of 3.13, and again in later ones.
    """
    probe = _Probe(None)
    if any(type(one) is dict for one in get_referents(probe)):
        return False  # it had one from the beginning
    made = vars(probe)
    return any(one is made for one in get_referents(probe))


def _is_readable() -> bool:
    """Whether two objects made one after the other are neighbours in the list."""
    pair: tuple[list[int], list[int]] = [], []
    first, second = map(id, pair)
    one, two = _Entry.from_address(first - _LINKS), _Entry.from_address(second - _LINKS)
    links = one.after & ~_FLAGS, two.before & ~_FLAGS
    return links == (second - _LINKS, first - _LINKS) and {one.type, two.type} == {id(list)}
