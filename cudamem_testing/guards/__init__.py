"""The only code that changes process-wide state; it also restores it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import builtins
import gc
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ContextDecorator, contextmanager
from functools import cache
from typing import Any

from cudamem_testing import unfinalized
from cudamem_testing.originals import Original
from cudamem_testing.torch_api import capturing

Function = Callable[..., Any]


class Patches:
    """Functions of modules that are replaced temporarily.

    A replacement that other code has wrapped meanwhile stays in the chain: the wrapper keeps working, and ours passes
    every call on untouched.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[object, str, Function, _Switch]] = []

    def replace(self, owner: object, name: str, make: Callable[[Function], Function]) -> Function | None:
        """Replace ``owner.name`` by ``make(original)``; returns the original, or ``None`` if there is none."""
        original: Function | None = getattr(owner, name, None)
        if original is None:
            return None
        switch = _Switch(original, make(original))
        self._replaced.append((owner, name, original, switch))
        setattr(owner, name, switch)
        return original

    def restore(self) -> None:
        """Restore the originals, the last one first."""
        while self._replaced:
            owner, name, original, switch = self._replaced.pop()
            switch.active = False
            while isinstance(original, _Switch) and not original.active:
                original = original.__wrapped__  # a wrapper that was restored before us
            if getattr(owner, name, None) is switch:
                setattr(owner, name, original)


@contextmanager
def replaced(changes: Iterable[tuple[object, str, object]]) -> Iterator[None]:
    """Set attributes inside the block; afterwards restore each, unless other code changed it meanwhile."""
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


def place(changes: Iterable[tuple[object, str, object]]) -> Callable[[], None]:
    """Set attributes, also those that are missing; what sets them back, or removes them, whoever changed them since."""
    missing = object()
    earlier: list[tuple[object, str, object]] = []

    def restore() -> None:
        while earlier:
            owner, name, original = earlier.pop()
            if original is not missing:
                setattr(owner, name, original)
            elif name in vars(owner):
                delattr(owner, name)

    try:
        for owner, name, value in changes:
            original = vars(owner).get(name, missing)
            setattr(owner, name, value)
            earlier.append((owner, name, original))
    except BaseException:
        restore()
        raise
    return restore


@contextmanager
def without_warning(begins: str) -> Iterator[None]:
    """Hide warnings that begin with these words inside the block, regardless of filters."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=re.escape(begins))
        yield


#: Seconds to wait for another thread that collects garbage.
MOST_WAITED = 1.0


def collect_garbage(*, needed: bool = False) -> bool:
    """Run a full collection and leave the collector's debug flags and frozen objects unchanged.

    No collection runs while a stream captures, because frees may break the capture. Returns whether one ran.

    Raises:
        RuntimeError: if it is ``needed`` and none ran.
    """
    collected = not capturing() and _collected_in_time()
    if needed and not collected:
        raise RuntimeError("no garbage was collected: a stream captures a CUDA graph, or another collection is running")
    return collected


def collect_young_garbage() -> bool:
    """Like ``collect_garbage``, without the oldest generation: quick, and most garbage is young."""
    return not capturing() and _collected_in_time(1)


def may_have_old_garbage(before: int) -> bool:
    """Whether something made since ``before`` (``older_collections()``) may be in the oldest generation."""
    return before != unfinalized.older_collections()


def _collected_in_time(generation: int = 2) -> bool:
    end = Original.monotonic() + MOST_WAITED
    with thawed():
        while not (collected := _collected(generation)) and Original.monotonic() < end:
            Original.sleep(0.001)
    return collected


def _collected(generation: int) -> bool:
    """Collect; returns whether a collection ran: none does while another thread collects, or inside a collection."""
    before = Original.get_stats()[generation]["collections"]
    unfinalized.refresh()  # so that watchers see this collection
    Original.collect(generation)
    return bool(Original.get_stats()[generation]["collections"] > before)


@contextmanager
def thawed() -> Iterator[None]:
    """Let the collector see every object, frozen ones too; debug flags are off, so nothing is kept.

    Afterwards the flags are restored. If objects were frozen, everything tracked by then is frozen again: the collector
    cannot be told which objects were frozen.
    """
    flags, frozen = gc.get_debug(), somebody_froze()
    gc.set_debug(0)
    if frozen:
        gc.unfreeze()
    try:
        yield
    finally:
        if frozen:
            gc.freeze()
        gc.set_debug(flags)


#: Freezing sets at least these aside: an interpreter that has imported nothing tracks more.
FEWEST_FROZEN = 4_000


def somebody_froze() -> bool:
    """Whether ``gc.freeze()`` was called and not undone.

    The count alone is not enough: CPython 3.12 sets immortal objects aside with the frozen ones whenever a collection
    meets them (``update_refs`` in ``gcmodule.c``), so it is about 375 if nothing was frozen. To thaw and freeze then
    would freeze the whole process. But freezing freezes everything that is tracked, which is thousands of objects, and
    one has existed from the start and is not immortal: the module ``builtins``. The collector lists what is not
    frozen, which takes 16 ms in a process with torch. No collection starts while that list exists: it would find
    nothing to free.
    """
    if gc.get_freeze_count() < FEWEST_FROZEN:
        return False
    with CollectorPaused():
        return all(found is not builtins for found in gc.get_objects())


#: Attributes of ``sys`` that keep the last failure for debuggers.
LAST_FAILURE = ("last_exc", "last_value", "last_type", "last_traceback")


def take_last_failure() -> BaseException | None:
    """Remove ``sys.last_exc`` and related attributes; returns the failure that they held."""
    state = vars(sys)  # reading a missing attribute raises, which costs more than everything else here
    error: object = state.get("last_value")
    for name in LAST_FAILURE if "last_type" in state else ():
        state.pop(name, None)
    return error if isinstance(error, BaseException) else None


def set_variable(name: str, value: str) -> Callable[[], None]:
    """Set an environment variable for this process and its children; returns a function that restores the old value."""
    old = os.environ.get(name)
    os.environ[name] = value

    def restore() -> None:
        if old is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = old

    return restore


_at_fork: list[Callable[[], object]] = []


def at_fork(action: Callable[[], object]) -> Callable[[], None]:
    """Call an action whenever Python code forks this process, in this process; returns a function that ends that.

    Python offers no way to unregister: one function stays registered, and calls nothing when there is no action.
    """
    _watch_forks()
    _at_fork.append(action)

    def end() -> None:
        if action in _at_fork:
            _at_fork.remove(action)

    return end


@cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_parent=_forked)


def _forked() -> None:
    for action in tuple(_at_fork):
        action()


def stand_in(function: object) -> Function | None:
    """The active replacement by :class:`Patches` for a function; ``None`` for any other function."""
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


class CollectorPaused(ContextDecorator):
    """Pause automatic collection inside, for work that creates many small objects without cycles."""

    __slots__ = ("_enabled",)

    def __enter__(self) -> None:
        self._enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *error: object) -> None:
        if self._enabled:
            gc.enable()


def restore_python_profiler(previous: Any) -> None:
    """Restore the ``sys.setprofile`` function that torch's Python tracer replaced; ``None`` does nothing."""
    if previous is None or sys.getprofile() is previous:
        return
    if callable(previous):
        sys.setprofile(previous)
    else:  # up to Python 3.11 cProfile is not a function, and enables itself
        previous.enable()


@contextmanager
def traced(function: Any) -> Iterator[None]:
    """Set a trace function for functions that start inside the block; afterwards restore the previous one."""
    before = sys.gettrace()
    sys.settrace(function)
    try:
        yield
    finally:
        sys.settrace(before)
