"""The objects where chains of references begin.

The complete list: modules, frames of running threads, classes and ``lru_cache`` wrappers that a module defines,
threads, running executors and event loops, loggers, ``weakref.finalize`` registrations, signal handlers and
context variables. ``atexit`` keeps its callbacks in C where neither Python nor the collector can see them; an object
that only ``atexit`` holds has no root.

Roots of the harness itself (packages in ``Ignore.packages``) are marked: a chain that starts there is kept
separate and never reported as the user's. So are the frames between pytest's test loop and the function of a
test or a fixture: hooks around the test, from any plugin, which end with it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextvars
import functools
import importlib
import signal
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cudamem_testing import safe_access
from cudamem_testing.model import stacks
from cudamem_testing.model.edges import Kind, Reference
from cudamem_testing.model.references import RootKind
from cudamem_testing.objects.frames import frame_locals
from cudamem_testing.objects.modules import ModuleTable
from cudamem_testing.objects.names import clean, code_place, lru_name, type_word

#: Top-level packages of the test harness.
HARNESS_PACKAGES = (
    "cudamem_testing",
    "_pytest",
    "pytest",
    "pluggy",
    "xdist",
    "execnet",
    "pytest_rerunfailures",
    "hypothesis",
    "_hypothesis_pytestplugin",
    "pytest_benchmark",
)
#: Types of the harness whose instances belong to the test that created them.
_USERS = frozenset({"ExceptionInfo", "RaisesExc", "MonkeyPatch", "WarningsRecorder"})
#: The test loop (of pytest, or of a pytest-xdist worker), and what calls the function of a test or a
#: fixture, as a hook of any plugin or inside pytest.
_TEST_LOOP = "pytest_runtestloop"
_CALLERS = frozenset({"pytest_pyfunc_call", "call_fixture_func"})
_RUN_TEST = "runtest"
_CALLING_MODULES = frozenset({("_pytest.unittest", _RUN_TEST), ("_pytest.doctest", _RUN_TEST)})
_FINALIZER: type = safe_access.class_dict(weakref.finalize)["_Info"]
_LRU_WRAPPER = type(functools.lru_cache(maxsize=1)(len))
_OF_A_LIBRARY = 3
#: Classes, by id, whose instances are never roots, except the namespaces of modules.
PLAIN = frozenset(
    map(id, (dict, list, tuple, set, frozenset, types.CellType, types.MethodType, torch.Tensor, torch.nn.Parameter))
)
_OWN_PACKAGE = __name__.rpartition(".")[0] + "."


@dataclass(frozen=True, slots=True)
class Ignore:
    """Objects that are never named as holders: by ``id()``, and modules, classes and frames of whole packages."""

    ids: frozenset[int] = frozenset()
    packages: tuple[str, ...] = HARNESS_PACKAGES

    def package(self, module: object) -> bool:
        """Whether a module name belongs to an ignored package."""
        return type(module) is str and module.partition(".")[0] in self.packages


@dataclass(frozen=True, slots=True)
class Root:
    """A root found in this process.

    ``name`` is its name in the source, without the word for its kind, or empty. ``thread`` is
    the name of a frame's thread, if it is not this one. ``holder`` is the live
    object whose references are labelled, ``None`` for frames; only for searches.
    """

    kind: RootKind
    text: str
    rank: int
    ignored: bool
    holder: object
    name: str = ""
    thread: str = ""

    @property
    def is_library(self) -> bool:
        """Whether it is a library module."""
        return self.rank == _OF_A_LIBRARY


@dataclass(frozen=True, slots=True)
class RootValue:
    """An object that a root holds directly, if the root itself is not an object of the heap.

    ``name`` is that of a frame's local variable; ``None`` for a context variable.
    """

    root: Root
    name: str | None
    value: object

    @property
    def reference(self) -> Reference:
        """The edge from the root."""
        if self.name is None:
            return Reference(Kind.ROOT, "value")
        return Reference(Kind.LOCAL, clean(f"local '{self.name}'"))


#: A root listed in a registry: the function for its text and name is called only when it is met.
_Registered = tuple[RootKind, Callable[[], tuple[str, str]], object]


class Roots:
    """All roots at one moment, by the ids of their objects. Keeps those objects alive: drop it with the search."""

    def __init__(self, ignore: Ignore, modules: ModuleTable | None = None) -> None:
        self._ignore = ignore
        self._anchors: dict[int, Root | None] = {}
        self._modules = ModuleTable() if modules is None else modules
        self._registered: dict[int, _Registered] = {}
        self._running = _running_classes()
        self.values: dict[int, list[RootValue]] = {}
        #: What frames of hooks around the test hold, from packages outside the harness.
        self.around_test: list[object] = []
        self._in_cells: set[int] = set()
        self.running_frames: set[int] = set()
        self._modules.update()
        self._add_frames()
        self._add_anchors(_threads())
        self._add_anchors(_signal_handlers())
        self._add_context()

    def anchor(self, obj: object) -> Root | None:
        """The root for an object, or ``None``; modules, classes, caches, executors and
        loops are checked when met.
        """
        number = id(obj)
        if not self._may_be_anchor(obj):
            return None
        if number not in self._anchors:
            registered = self._registered.get(number) or _registration(obj)
            if registered is not None:
                kind, text, holder = registered
                self._anchors[number] = self._root(kind, *text(), holder, "")
            else:
                self._anchors[number] = self._module(obj) if obj in self._modules else self._judge(obj)
        return self._anchors[number]

    def is_module(self, obj: object) -> bool:
        """Whether an object is a module, or the namespace of one."""
        return obj in self._modules

    def is_root(self, obj: object) -> bool:
        """Whether an object is a root; the answer is not cached, because there may be a million objects."""
        if not self._may_be_anchor(obj):
            return False
        known = obj in self._modules or id(obj) in self._registered or _registration(obj) is not None
        return known or self._judge(obj) is not None

    def _may_be_anchor(self, obj: object) -> bool:
        return id(type(obj)) not in PLAIN or obj in self._modules or id(obj) in self._registered

    def release(self) -> None:
        """Release all objects."""
        for table in (self._anchors, self._registered, self.values):
            table.clear()
        self.around_test.clear()

    def local_values(self) -> list[object]:
        """Everything that roots hold directly."""
        return [found.value for values in self.values.values() for found in values]

    def _judge(self, obj: object) -> Root | None:
        if safe_access.is_a(obj, type):
            cls = obj
            module, qualname = safe_access.class_module(cls), safe_access.class_qualname(cls)
            if safe_access.find_static(module, qualname) is cls:
                return self._root(RootKind.CLASS, f"class {module}.{qualname}", f"{module}.{qualname}", obj, module)
        elif type(obj) is _LRU_WRAPPER:
            owner = safe_access.get(safe_access.instance_dict(obj), "__module__")
            if type(owner) is str and safe_access.find_static(owner, lru_name(obj)) is obj:
                name = f"{owner}.{lru_name(obj)}"
                return self._root(RootKind.LRU_CACHE, f"lru_cache of {name}", name, obj, owner)
        elif (running := self._running_kind(obj)) is not None:
            word = type_word(obj)
            return self._root(running, f"event loop {word}" if running is RootKind.EVENT_LOOP else word, word, obj, "")
        elif safe_access.type_name(obj) not in _USERS and self._ignore.package(
            module := safe_access.class_module(type(obj))
        ):
            return self._root(*_harness(obj), obj, module)
        return None

    def _running_kind(self, obj: object) -> RootKind | None:
        """The kind of an object that stays alive by running: an executor that was not shut down, an open loop."""
        for base, ended, kind in self._running:
            if safe_access.derives(type(obj), base) and safe_access.get(safe_access.instance_dict(obj), ended) is False:
                return kind
        return None

    def _root(self, kind: RootKind, text: str, name: str, holder: object, module: str) -> Root:
        return Root(kind, clean(text), _rank(kind, module), self._ignore.package(module), holder, clean(name))

    def _module(self, obj: object) -> Root:
        key = self._modules.name(obj)
        module = sys.modules[key]  # type: ignore[index]
        own_name = safe_access.get(safe_access.instance_dict(module), "__name__")
        name = own_name if type(own_name) is str and own_name in sys.modules else key
        return self._root(RootKind.MODULE, f"module {name}", f"{name}", module, name if type(name) is str else "")

    def _add_frames(self) -> None:
        own = threading.get_ident()
        threads: Any = _namespace("threading").get("_active", {})
        for ident, top in sys._current_frames().items():
            thread = ("", "") if ident == own else _thread(threads.get(ident))
            stack = [*_callers(top)]
            around = {id(frame) for frame in _around_test(stack)}
            for frame in stack:
                self.running_frames.add(id(frame))
                self._add_frame(frame, thread, around_test=id(frame) in around)
            del top, frame  # one of them is this frame, which would hold itself
            stack.clear()
        # Several frames list the variable of one cell, so their references cannot be counted by frames.
        self.around_test = [value for value in self.around_test if id(value) not in self._in_cells]

    def _add_frame(self, frame: types.FrameType, thread: tuple[str, str], *, around_test: bool) -> None:
        code, module = frame.f_code, safe_access.get(frame.f_globals, "__name__")
        if type(module) is str and module.startswith(_OWN_PACKAGE):
            return  # the search's own frames hold these roots: their locals would close a cycle
        where, name = thread
        text = f"{where}{' > ' if where else ''}frame {code.co_name} ({code_place(code, frame.f_lineno)})"
        known = self._ignore.package(module) or id(frame) in self._ignore.ids
        ignored = around_test or known
        rank = _rank(RootKind.FRAME, "")
        root = Root(RootKind.FRAME, clean(text), rank, ignored, None, clean(code.co_name), clean(name))
        shared = {*code.co_cellvars, *code.co_freevars}
        for name, value in frame_locals(frame):
            self._add_value(root, name, value)
            if name in shared:
                self._in_cells.add(id(value))
            if around_test and not known:
                self.around_test.append(value)

    def _add_value(self, root: Root, name: str | None, value: object) -> None:
        self.values.setdefault(id(value), []).append(RootValue(root, name, value))

    def _add_anchors(self, found: Iterable[_Registered]) -> None:
        for registered in found:
            self._registered.setdefault(id(registered[2]), registered)

    def _add_context(self) -> None:
        context = contextvars.copy_context()
        for variable, value in context.items():
            root = self._root(RootKind.CONTEXT, f"context variable '{variable.name}'", variable.name, context, "")
            self._add_value(root, None, value)


def _callers(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _around_test(stack: Sequence[types.FrameType]) -> Sequence[types.FrameType]:
    """The frames of a thread (innermost first) from its test loop to the call of a test or a fixture.

    For an item of a custom class that is its ``runtest``.
    """
    called: int | None = None
    item = 0
    for place, frame in enumerate(stack):
        name = frame.f_code.co_name
        if name == _TEST_LOOP:
            return stack[item if called is None else called : place + 1]
        if name in _CALLERS or (frame.f_globals.get("__name__"), name) in _CALLING_MODULES:
            called = place
        elif name == _RUN_TEST:
            item = place + 1
    return ()


def defining_module(obj: object) -> str | None:
    """The module that defines a class or an ``lru_cache``, which may be roots; ``None`` for other objects."""
    if safe_access.is_a(obj, type):
        return safe_access.class_module(obj)
    if type(obj) is _LRU_WRAPPER:
        owner = safe_access.get(safe_access.instance_dict(obj), "__module__")
        return owner if type(owner) is str else None
    return None


def _harness(obj: object) -> tuple[RootKind, str, str]:
    """Kind, text and name of a harness object: a fixture by its name, others by their class."""
    word = type_word(obj)
    name = safe_access.get(safe_access.instance_dict(obj), "argname") if word == "FixtureDef" else None
    if type(name) is str:
        return RootKind.FIXTURE, f"fixture {name!r}", name
    return RootKind.HARNESS, word, word


def _rank(kind: RootKind, module: str) -> int:
    """Of equally long chains the lower rank is reported: the project's modules before frames before libraries."""
    if kind is RootKind.FRAME:
        return 2
    return _OF_A_LIBRARY if kind is RootKind.MODULE and _is_library(module) else 0 if module else 1


def _is_library(module: str) -> bool:
    if module == "__main__":
        return False
    file = safe_access.get(safe_access.instance_dict(sys.modules.get(module)), "__file__")
    return type(file) is not str or stacks.is_library(file)


def _named(word: str, name: str) -> tuple[str, str]:
    return word + name, name


def _thread(thread: object) -> tuple[str, str]:
    name = safe_access.get(safe_access.instance_dict(thread), "_name")
    return (f"thread {name!r}", name) if type(name) is str else ("thread", "")


def _namespace(module: str) -> dict[str, Any]:
    return safe_access.instance_dict(sys.modules.get(module)) or {}


def _threads() -> Iterator[_Registered]:
    for table in ("_active", "_limbo"):
        for thread in tuple(_namespace("threading").get(table, {}).values()):
            yield RootKind.THREAD, partial(_thread, thread), thread


def _registration(obj: object) -> _Registered | None:
    """The registration of an object in a long registry: only objects that can be in it are looked up."""
    if type(obj) is _FINALIZER:
        registered = tuple(safe_access.class_dict(weakref.finalize).get("_registry", {}).values())
        return (RootKind.FINALIZER, partial(_finalizer, obj), obj) if _among(obj, registered) else None
    namespace = _namespace("logging")
    if not namespace or not safe_access.is_one_of(obj, namespace["Logger"], namespace["PlaceHolder"]):
        return None
    if obj is namespace.get("root"):
        return RootKind.LOGGER, partial(_named, "logger ", "root"), obj
    manager = safe_access.class_dict(namespace["Logger"]).get("manager")
    for name, logger in safe_access.items(safe_access.get(safe_access.instance_dict(manager), "loggerDict") or {}):
        if logger is obj and type(name) is str:
            return RootKind.LOGGER, partial(_named, "logger ", name), obj
    return None


def _among(obj: object, others: Iterable[object]) -> bool:
    return any(other is obj for other in others)


def _finalizer(info: object) -> tuple[str, str]:
    return _named("weakref.finalize with ", type_word(dict(safe_access.slots(info)).get("func")))


def _signal_handlers() -> Iterator[_Registered]:
    module = importlib.import_module("_signal")  # the public module would hash the handler
    for number in range(1, module.NSIG):
        handler = module.getsignal(number)
        if handler is not None and type(handler) is not int:
            yield RootKind.SIGNAL, partial(_signal, number), handler


def _signal(number: int) -> tuple[str, str]:
    names = {int(one): one.name for one in signal.Signals}
    return _named("handler of ", str(names.get(number, number)))


def _running_classes() -> list[tuple[type, str, RootKind]]:
    """Imported classes whose instances stay alive by running, with the attribute that says they have ended."""
    known = (
        ("concurrent.futures._base", "Executor", "_shutdown", RootKind.EXECUTOR),
        ("asyncio.base_events", "BaseEventLoop", "_closed", RootKind.EVENT_LOOP),
    )
    found = ((_namespace(module).get(name), ended, kind) for module, name, ended, kind in known)
    return [(base, ended, kind) for base, ended, kind in found if base is not None]
