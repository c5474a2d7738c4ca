"""Guards: the only place that changes process-wide state, and that restores it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import builtins
import ctypes
import gc
import os
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ContextDecorator, ExitStack, contextmanager
from importlib.machinery import PathFinder
from typing import Any, Literal

from cudamem_testing.originals import Original
from cudamem_testing.torch_api import capturing
from cudamem_testing.unfinalized import Unfinalized

Function = Callable[..., Any]
_Phase = Literal["start", "stop"]


class Patches:
    """Functions of modules that are replaced for a while.

    A replacement that somebody has meanwhile wrapped stays in the chain: the wrapper keeps working, and ours passes
    every call on untouched.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[object, str, Function, _Switch]] = []

    def replace(self, owner: object, name: str, make: Callable[[Function], Function]) -> Function | None:
        """Put ``make(original)`` in the place of ``owner.name``; the original, or ``None`` when there is none."""
        original: Function | None = getattr(owner, name, None)
        if original is None:
            return None
        switch = _Switch(original, make(original))
        self._replaced.append((owner, name, original, switch))
        setattr(owner, name, switch)
        return original

    def restore(self) -> None:
        """Take the replacements back, the last one first."""
        while self._replaced:
            owner, name, original, switch = self._replaced.pop()
            switch.active = False
            while isinstance(original, _Switch) and not original.active:
                original = original.__wrapped__  # somebody's who was restored before us
            if getattr(owner, name, None) is switch:
                setattr(owner, name, original)


@contextmanager
def replaced(changes: Iterable[tuple[object, str, object]]) -> Iterator[None]:
    """Attributes with other values inside; afterwards each is as it was, unless somebody else changed it meanwhile."""
    missing = object()
    earlier: list[tuple[object, str, object, object]] = []
    try:
        for owner, name, value in changes:
            if hasattr(owner, name):
                earlier.append((owner, name, vars(owner).get(name, missing), value))
                setattr(owner, name, value)
        yield
    finally:
        for owner, name, original, value in reversed(earlier):
            if vars(owner).get(name) is not value:
                continue
            if original is missing:
                delattr(owner, name)  # it is inherited
            else:
                setattr(owner, name, original)


@contextmanager
def without_warning(begins: str) -> Iterator[None]:
    """Warnings that begin with these words are not shown inside, whatever the filters say."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=re.escape(begins))
        yield


#: Seconds to wait for another thread that collects garbage.
MOST_WAITED = 1.0


def collect_garbage(*, needed: bool = False) -> bool:
    """A full collection that leaves the collector as it was: its debug flags, and what it was told to keep frozen.

    None while a stream captures: what goes then may break the capture. Whether there was one.

    Raises:
        RuntimeError: when it is ``needed`` and there was none.
    """
    collected = not capturing() and _collected_in_time()
    if needed and not collected:
        raise RuntimeError("no garbage was collected: a stream captures a CUDA graph, or another collection goes on")
    return collected


def collect_young_garbage() -> bool:
    """A collection as ``collect_garbage`` does it, without the oldest generation: quick, and most garbage is young."""
    return not capturing() and _collected_in_time(1)


def _collected_in_time(generation: int = 2) -> bool:
    end = Original.monotonic() + MOST_WAITED
    with thawed():
        while not (collected := _collected(generation)) and Original.monotonic() < end:
            Original.sleep(0.001)
    return collected


def _collected(generation: int) -> bool:
    """Whether a collection ran: none does while another thread collects, or inside a collection."""
    before = Original.get_stats()[generation]["collections"]
    Original.collect(generation)
    return bool(Original.get_stats()[generation]["collections"] > before)


@contextmanager
def thawed() -> Iterator[None]:
    """The collector sees every object: those that somebody froze too; debug flags are off, so nothing is kept.

    Afterwards the flags are back. What is tracked by then is frozen again if anybody froze: the collector cannot be
    told which objects those were.
    """
    flags, frozen = gc.get_debug(), _somebody_froze()
    gc.set_debug(0)
    if frozen:
        gc.unfreeze()
    try:
        yield
    finally:
        if frozen:
            gc.freeze()
        gc.set_debug(flags)


def _somebody_froze() -> bool:
    """Whether ``gc.freeze()`` was called and not undone.

    The count alone does not tell: CPython 3.12 sets immortal objects aside with the frozen ones whenever a collection
    meets them (``update_refs`` in ``gcmodule.c``), so it is about 375 where nobody froze. To thaw and freeze there
    would freeze the whole process. But who freezes, freezes all that is tracked, and one object has been there from
    the start and is not immortal: the module ``builtins``. The collector lists what is not frozen.
    """
    return gc.get_freeze_count() > 0 and all(found is not builtins for found in gc.get_objects())


#: Where a failure is left for debuggers.
LAST_FAILURE = ("last_exc", "last_value", "last_type", "last_traceback")


def take_last_failure() -> BaseException | None:
    """The failure that the interpreter keeps for debuggers, which it keeps no longer."""
    state = vars(sys)  # asking for an attribute that is not there makes an error, which costs more than all the rest
    error: object = state.get("last_value")
    for name in LAST_FAILURE if "last_type" in state else ():
        state.pop(name, None)
    return error if isinstance(error, BaseException) else None


_OLDEST = 2  # the generation whose collection looks at all objects
#: Numbers of slots of a class in CPython's stable interface (``typeslots.h``).
_CLEAR, _OLD_FINALIZER = 51, 53
# Objects are passed by address: ctypes would ask an object itself for an attribute ``_as_parameter_``.
_slot_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(("PyType_GetSlot", ctypes.pythonapi))
_CLEARER = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class GarbageWatch:
    """Shows the garbage of every collection to ``look``, and lets it go right after, inside the same collection.

    While the collector runs it is told to keep what it finds (``DEBUG_SAVEALL``). Finalizers have run by then and weak
    references are dead, so nobody else can reach it; ``look`` gets it in a list, must keep nothing of it, and may
    return a function to be called when it is gone. Then each object is cleared with its class's own function, as the
    collector does it (``delete_garbage`` in CPython's ``gc.c``). A second collection would not do: none can start
    inside a callback of the first. Garbage with finalizers is shown before they run, where that can be done
    (:mod:`~cudamem_testing.unfinalized`), and not again.

    Nobody notices: the flag is set after every other callback for the start has run, and taken back before the first
    for the end. Where the user collects garbage with the same flag, it is shown and left to the user. Of several
    watches each sees the garbage, and it goes after the last; a watch may end at any time, also inside a collection.
    """

    def __init__(self, look: Callable[[list[object]], Callable[[], None] | None]) -> None:
        self._look = look
        #: Whether the last garbage was left where the user's own flag had it collected.
        self.users = False
        #: Whether the last collection passed over objects: those of older generations, or frozen ones.
        self.partial = False
        self._before: int | None = None
        self._around: GarbageWatch | None = None
        self._gone: list[Callable[[], None]] = []
        self._walked, self._looked, self._leaving = False, False, True
        self._unfinalized = Unfinalized()
        self._whole = WholeModules(__package__.partition(".")[0])
        self._clearers: dict[int | None, Function | None] = {None: None}

    def start(self) -> None:
        """Watch from here on; nothing changes where that is so already."""
        self.stop()
        self._leaving = False
        sys.meta_path.insert(0, self._whole)
        if self._collected not in gc.callbacks:
            gc.callbacks.insert(0, self._collected)
        if self._collecting not in gc.callbacks:
            gc.callbacks.append(self._collecting)

    def stop(self) -> None:
        """Leave the collector as it was found: at once, or when the collection that is under way has ended."""
        if self._leaving:
            return
        self._leaving = True
        if self._whole in sys.meta_path:
            sys.meta_path.remove(self._whole)
        if not self._walked:
            for ours in (self._collecting, self._collected):
                if ours in gc.callbacks:
                    gc.callbacks.remove(ours)

    def _collecting(self, phase: _Phase, info: dict[str, int]) -> None:
        if phase == "stop":
            self._walked = False
        elif not self._leaving:
            flags = gc.get_debug()
            self._around = self._next_around()
            outer = self._around
            self.users = bool(flags & gc.DEBUG_SAVEALL) if outer is None else outer.users
            self.partial = info["generation"] < _OLDEST or gc.get_freeze_count() > 0
            self._before = len(gc.garbage)
            if not (self.users or flags & gc.DEBUG_COLLECTABLE):  # which prints what was found
                self._unfinalized.begin(self._look_early)
            gc.set_debug(flags | gc.DEBUG_SAVEALL)
        if self._leaving:
            self._leave(self._collecting, phase, info)

    def _collected(self, phase: _Phase, info: dict[str, int]) -> None:
        self._walked = True
        try:
            if phase == "stop" and self._before is not None:
                self._show()
        finally:
            if self._leaving:
                self._leave(self._collected, phase, info)

    def _look_early(self, garbage: list[object]) -> None:
        if self._leaving:
            return
        self._looked = True
        try:
            gone = self._look(garbage)
        finally:
            garbage.clear()
        if gone is not None:
            self._gone.append(gone)

    def _show(self) -> None:
        looked, self._looked = self._looked, False
        start, self._before = self._before, None
        around, self._around = self._around, None
        is_last = around is None and not self.users
        if is_last:
            gc.set_debug(gc.get_debug() & ~gc.DEBUG_SAVEALL)
        found = gc.garbage[start:]
        if is_last:
            del gc.garbage[start:]
        told, self._gone = self._gone, []
        try:
            gone = self._look(found) if found and not looked else None
            if gone is not None:
                told.append(gone)
        finally:
            if around is not None:
                self._unfinalized.pass_on(around._unfinalized)
            else:
                rest = self._unfinalized.end(found)
                if is_last:
                    found += rest
                    del rest
                    _let_go(found, self._clearers)
            found.clear()
            if around is not None:
                around._gone += told
            else:
                with ExitStack() as stack:  # each is called, whatever another one raises
                    for one in reversed(told):
                        stack.callback(one)

    def _next_around(self) -> GarbageWatch | None:
        """The watch that began before this one: it sees the same garbage after it, and lets it go."""
        place = gc.callbacks.index(self._collecting)
        watches = (hook.__self__ for hook in reversed(gc.callbacks[:place]) if type(hook) is types.MethodType)
        return next((one for one in watches if type(one) is GarbageWatch and one._before is not None), None)

    @staticmethod
    def _leave(ours: Function, phase: _Phase, info: dict[str, int]) -> None:
        """Go from the collector's list while it walks along it.

        The next one moves up to a place that it has passed (``invoke_gc_callback`` counts), so it is called from here.
        """
        place = gc.callbacks.index(ours)
        del gc.callbacks[place]
        if place < len(gc.callbacks):
            gc.callbacks[place](phase, info)


def _let_go(garbage: list[object], known: dict[int | None, Function | None]) -> None:
    """Break every reference between objects that only each other hold, the first first.

    Where a C class with a finalizer of the old kind is among them, the collector frees nothing that hangs on it and
    keeps that object in ``gc.garbage``: here too, and the rest is left to its next run. ``known`` are the functions of
    classes that were met before, by their address.
    """
    clearers: dict[int, Function | None] = {}
    uncollectable: set[int] = set()
    for cls in dict(zip(map(id, map(type, garbage)), map(type, garbage), strict=True)).values():
        slot = _slot_of(id(cls), _CLEAR)
        if slot not in known:
            known[slot] = _CLEARER(slot)
        clearers[id(cls)] = known[slot]
        if _slot_of(id(cls), _OLD_FINALIZER):
            uncollectable.add(id(cls))
    if uncollectable:
        gc.garbage.extend(obj for obj in garbage if id(type(obj)) in uncollectable)
        return
    garbage.reverse()
    while garbage:
        obj = garbage.pop()
        clear = clearers[id(type(obj))]
        if clear is not None:
            clear(id(obj))
        del obj


def set_variable(name: str, value: str) -> Callable[[], None]:
    """Set an environment variable of this process and of those that it starts; what puts the old value back."""
    old = os.environ.get(name)
    os.environ[name] = value

    def restore() -> None:
        if old is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = old

    return restore


def stand_in(function: object) -> Function | None:
    """What :class:`Patches` made of a function, while it is at work; ``None`` for any other function."""
    return function.replacement if isinstance(function, _Switch) and function.active else None


class _Switch:
    """Calls the replacement while it is active, and the original afterwards."""

    def __init__(self, original: Function, replacement: Function) -> None:
        self.__wrapped__ = original
        self.__name__ = getattr(original, "__name__", "function")
        self.__doc__ = original.__doc__
        self.active = True
        self.replacement = replacement

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.replacement if self.active else self.__wrapped__)(*args, **kwargs)


class WholeModules:
    """A finder of modules: no collection starts amid the import of one of a package's.

    ``look`` may import what explains, and would find it half done.
    """

    def __init__(self, package: str) -> None:
        self._inside = f"{package}."

    def find_spec(self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> Any:
        """As Python's own finder; ``None`` for other modules."""
        spec = PathFinder.find_spec(name, path, target) if name.startswith(self._inside) else None
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = CollectorPaused()(spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


class CollectorPaused(ContextDecorator):
    """No automatic collection inside, as for work that makes many small objects without a cycle; then as before."""

    def __enter__(self) -> None:
        self._enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *error: object) -> None:
        if self._enabled:
            gc.enable()


def restore_python_profiler(previous: Any) -> None:
    """Give ``sys.setprofile`` back what torch's Python tracer took away; ``None`` is nothing."""
    if previous is None or sys.getprofile() is previous:
        return
    if callable(previous):
        sys.setprofile(previous)
    else:  # cProfile up to Python 3.11 is no function, and switches itself on
        previous.enable()


@contextmanager
def traced(function: Any) -> Iterator[None]:
    """Python calls a trace function inside, for functions that begin there; afterwards whoever traced traces again."""
    before = sys.gettrace()
    sys.settrace(function)
    try:
        yield
    finally:
        sys.settrace(before)
