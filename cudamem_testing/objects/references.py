"""All references that an object holds, each with a label as in source code.

``references(obj)`` first yields references as written in source code (``.attr``, ``['key']``, ``local 'x'``,
``.__closure__[0] 'x'``), which skip the interpreter's inner objects, then the inner objects themselves
(``.__dict__``, ``.__closure__``), and at the end everything else that the garbage collector knows to be held, so that
no edge is lost. Reading runs no code of the object: see ``static``.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

from cudamem_testing import safe_access
from cudamem_testing.model.edges import Edge, Kind, Reference
from cudamem_testing.objects import arrays
from cudamem_testing.objects.frames import frame_locals
from cudamem_testing.objects.names import clean, key_text
from cudamem_testing.objects.tensors import is_module
from cudamem_testing.objects.torch_references import Wanted, module_edges, node_edges, pairs_towards, tensor_edges
from cudamem_testing.torch_api import nodes, tensors

_LRU_WRAPPER = type(functools.lru_cache(maxsize=1)(len))


def references(obj: object) -> Iterator[tuple[Reference, object]]:
    """Labelled references of any object, in a stable order; see the module's docstring."""
    for kind, detail, referent in edges(obj):
        yield label(kind, detail), referent


def label(kind: Kind, detail: object) -> Reference:
    """The text of an edge. ``detail`` is a finished text, or a key for items, hooks and list positions."""
    if kind in (Kind.ITEM, Kind.HOOK):
        text = f"[{key_text(detail)}]" if kind is Kind.ITEM else f"hook {key_text(detail)}"
    elif kind is Kind.KEY:
        text = f"key {key_text(detail)}"
    else:
        text = clean(detail) if type(detail) is str else key_text(detail)
    return Reference(kind, text)


def edges(obj: object) -> Iterator[Edge]:
    """``references`` before labels become text, for searches that need few of them."""
    cls = type(obj)
    seen: set[int] = set()
    for kind, detail, referent in _named_edges(obj, cls, None):
        if referent is not None:  # a reference to None keeps nothing alive
            seen.add(id(referent))
            yield kind, detail, referent
    for referent in safe_access.referents(obj):
        if id(referent) not in seen and referent is not None:
            yield _leftover(obj, cls, referent)


def edges_towards(obj: object, wanted: Wanted) -> Iterator[Edge]:
    """Those of ``edges`` that lead to wanted objects, without a step of Python for each entry of a large container."""
    cls = type(obj)
    seen: set[int] = set()
    for kind, detail, referent in _named_edges(obj, cls, wanted):
        if referent is not None and referent in wanted:
            seen.add(id(referent))
            yield kind, detail, referent
    if not any(cls is plain for plain in (dict, list, tuple)):
        for referent in safe_access.referents(obj):
            if referent in wanted and id(referent) not in seen and referent is not None:
                yield _leftover(obj, cls, referent)


def _named_edges(obj: object, cls: type, wanted: Wanted | None) -> Iterator[Edge]:
    handled: type | None = None
    for base in safe_access.mro(cls):
        handler = _HANDLERS.get(id(base))
        if handler is not None:
            handled = base
            yield from handler(obj) if wanted is None else _CONTAINERS.get(id(base), _whole(handler))(obj, wanted)
            break
    else:
        if safe_access.is_a(obj, tensors.TensorBase):
            yield from tensor_edges(obj)
        elif nodes.is_node_type(cls):
            yield from node_edges(obj)
        elif arrays.is_array(obj):
            yield from arrays.array_edges(obj)
    if any(cls is plain for plain in _WITHOUT_ATTRIBUTES):
        return
    yield from _attributes(obj, handled, wanted)


def _whole(handler: Callable[[Any], Iterator[Edge]]) -> Callable[[Any, Wanted], Iterator[Edge]]:
    return lambda obj, wanted: handler(obj)


def _attributes(obj: object, handled: type | None, wanted: Wanted | None) -> Iterator[Edge]:
    """Slots and instance dictionary, without the fields that the class's handler has read."""
    for name, value in safe_access.slots(obj, handled):
        yield Kind.ATTRIBUTE, f".{name}", value
    if safe_access.is_a(obj, types.ModuleType) or safe_access.is_a(obj, type):
        return  # their handlers read their namespaces
    namespace = safe_access.instance_dict(obj)
    if namespace is None:
        return
    if is_module(obj):
        yield from module_edges(namespace, wanted)
    wraps = safe_access.is_a(obj, tensors.TensorBase) and tensors.wraps_tensors(type(obj))
    for name, value in pairs_towards(namespace, wanted):
        kind = Kind.STORAGE if wraps and safe_access.is_a(value, tensors.TensorBase) else Kind.ATTRIBUTE
        yield kind, f".{name}" if type(name) is str else f".__dict__[{key_text(name)}]", value
    yield Kind.INTERNAL, ".__dict__", namespace


def _leftover(obj: object, cls: type, referent: object) -> Edge:
    if referent is cls:
        return Kind.CLASS, ".__class__", referent
    if safe_access.is_a(obj, type) and type(referent) is dict:
        return Kind.INTERNAL, ".__dict__", referent
    return Kind.OTHER, "(internal)", referent


def _dict(obj: Any, wanted: Wanted | None = None) -> Iterator[Edge]:
    pairs = safe_access.items(obj) if wanted is None else [*wanted.pairs(obj)]
    for key, value in pairs:
        yield Kind.ITEM, key, value
    for key, _ in pairs:
        yield Kind.KEY, key, key


def _list_towards(obj: Any, wanted: Wanted) -> Iterator[Edge]:
    for position, value in wanted.pairs(obj):
        yield Kind.ITEM, position, value


def _sequence(base: Any) -> Callable[[Any], Iterator[Edge]]:
    def handler(obj: Any) -> Iterator[Edge]:
        for position, value in enumerate(list(base.__iter__(obj))):
            yield Kind.ITEM, position, value

    return handler


def _tuple(obj: Any, wanted: Wanted | None = None) -> Iterator[Edge]:
    fields: Any = ()
    for cls in safe_access.mro(type(obj)):
        namespace = safe_access.class_dict(cls)
        found = namespace.get("__match_args__" if "n_sequence_fields" in namespace else "_fields")
        if cls is not tuple and type(found) is tuple:
            fields = found
            break
    for position, value in enumerate(tuple.__iter__(obj)) if wanted is None else wanted.pairs(obj):
        if position < len(fields) and type(fields[position]) is str:
            yield Kind.ATTRIBUTE, f".{fields[position]}", value
        else:
            yield Kind.ITEM, position, value


def _set(base: Any) -> Callable[[Any], Iterator[Edge]]:
    def handler(obj: Any) -> Iterator[Edge]:
        for value in list(base.__iter__(obj)):
            yield Kind.ELEMENT, "element", value

    return handler


def _mappingproxy(obj: Any) -> Iterator[Edge]:
    for referent in safe_access.referents(obj):
        yield Kind.INTERNAL, "mapping", referent


def _module(obj: Any) -> Iterator[Edge]:
    namespace = safe_access.module_dict(obj)
    if namespace is None:
        return
    for name, value in safe_access.items(namespace):
        yield Kind.GLOBAL, name if type(name) is str else f"[{key_text(name)}]", value
    yield Kind.INTERNAL, ".__dict__", namespace


def _class(obj: Any) -> Iterator[Edge]:
    for name, value in tuple(safe_access.class_dict(obj).items()):
        if type(name) is str:
            yield Kind.ATTRIBUTE, f".{name}", value
    for base in safe_access.mro(obj)[1:]:
        yield Kind.CLASS, f"base class {safe_access.class_name(base)}", base


def _function(obj: Any) -> Iterator[Edge]:
    names = obj.__code__.co_freevars
    for position, cell in enumerate(obj.__closure__ or ()):
        name = f" '{names[position]}'" if position < len(names) else ""
        for value in _cell_contents(cell):
            yield Kind.CLOSURE, f".__closure__[{position}]{name}", value
        yield Kind.CLOSURE, f".__closure__[{position}]{name}", cell
    for position, value in enumerate(obj.__defaults__ or ()):
        yield Kind.ATTRIBUTE, f".__defaults__[{position}]", value
    for name, value in safe_access.items(obj.__kwdefaults__ or {}):
        yield Kind.ATTRIBUTE, f".__kwdefaults__[{key_text(name)}]", value
    yield Kind.INTERNAL, ".__closure__", obj.__closure__
    yield Kind.INTERNAL, ".__defaults__", obj.__defaults__
    yield Kind.INTERNAL, ".__kwdefaults__", obj.__kwdefaults__
    yield Kind.INTERNAL, ".__globals__", obj.__globals__
    yield Kind.INTERNAL, ".__code__", obj.__code__


def _cell_contents(cell: types.CellType) -> Iterator[object]:
    try:
        yield cell.cell_contents
    except ValueError:  # the variable is not assigned yet
        return


def _cell(obj: Any) -> Iterator[Edge]:
    for value in _cell_contents(obj):
        yield Kind.INTERNAL, ".cell_contents", value


def _method(obj: Any) -> Iterator[Edge]:
    yield Kind.ATTRIBUTE, ".__self__", obj.__self__
    yield Kind.ATTRIBUTE, ".__func__", obj.__func__


def _builtin(obj: Any) -> Iterator[Edge]:
    yield Kind.ATTRIBUTE, ".__self__", obj.__self__


def _partial(obj: Any) -> Iterator[Edge]:
    function, arguments, keywords = (
        functools.partial.__dict__[name].__get__(obj) for name in ("func", "args", "keywords")
    )
    yield Kind.ATTRIBUTE, ".func", function
    for position, value in enumerate(arguments):
        yield Kind.ATTRIBUTE, f".args[{position}]", value
    for name, value in safe_access.items(keywords):
        yield Kind.ATTRIBUTE, f".keywords[{key_text(name)}]", value
    yield Kind.INTERNAL, ".args", arguments
    yield Kind.INTERNAL, ".keywords", keywords


def _lru_cache(obj: Any) -> Iterator[Edge]:
    """Arguments and results that an ``lru_cache`` keeps; only the collector can see them."""
    held = safe_access.referents(obj)
    namespace = safe_access.instance_dict(obj)
    tables = [held_one for held_one in held if type(held_one) is dict and held_one is not namespace]
    keys = {id(key): key for table in tables for key in dict.keys(table)}
    wrapped = safe_access.get(namespace, "__wrapped__")
    inner = {id(value) for value in tables} | {id(namespace), id(wrapped)}
    for referent in held:
        if id(referent) in keys:
            if safe_access.is_a(referent, tuple):
                for position, argument in enumerate(tuple.__iter__(referent)):
                    yield Kind.CACHED, f"cached argument {position}", argument
            elif safe_access.is_a(referent, list):  # a key with its hash, as in the pure Python version
                for argument in list.__iter__(referent):
                    yield Kind.CACHED, "cached arguments", argument
            yield Kind.CACHED, "cached arguments", referent
        elif id(referent) not in inner and not safe_access.is_a(referent, type) and type(referent) is not object:
            yield Kind.CACHED, "cached result", referent
    for table in tables:
        yield Kind.INTERNAL, "cache", table


def _weakref(obj: Any) -> Iterator[Edge]:
    yield Kind.CALLBACK, ".__callback__", weakref.ref.__dict__["__callback__"].__get__(obj)


def _coroutine(prefix: str, waits_for: str) -> Callable[[Any], Iterator[Edge]]:
    def handler(obj: Any) -> Iterator[Edge]:
        frame = object.__getattribute__(obj, f"{prefix}_frame")
        if frame is not None:
            for name, value in frame_locals(frame):
                yield Kind.LOCAL, f"local '{name}'", value
        yield Kind.ATTRIBUTE, f".{waits_for}", object.__getattribute__(obj, waits_for)
        yield Kind.INTERNAL, f".{prefix}_code", object.__getattribute__(obj, f"{prefix}_code")
        yield Kind.INTERNAL, f".{prefix}_frame", frame

    return handler


def _frame(obj: types.FrameType) -> Iterator[Edge]:
    for name, value in frame_locals(obj):
        yield Kind.LOCAL, f"local '{name}'", value
    yield Kind.STACK, ".f_back", obj.f_back
    yield Kind.INTERNAL, ".f_globals", obj.f_globals
    yield Kind.INTERNAL, ".f_builtins", obj.f_builtins
    yield Kind.INTERNAL, ".f_code", obj.f_code
    yield Kind.ATTRIBUTE, ".f_trace", obj.f_trace


def _traceback(obj: types.TracebackType) -> Iterator[Edge]:
    yield Kind.STACK, ".tb_frame", obj.tb_frame
    yield Kind.STACK, ".tb_next", obj.tb_next


def _exception(obj: Any) -> Iterator[Edge]:
    for name in ("__traceback__", "__context__", "__cause__"):
        yield Kind.ATTRIBUTE, f".{name}", BaseException.__dict__[name].__get__(obj)
    arguments = BaseException.__dict__["args"].__get__(obj)
    for position, value in enumerate(arguments):
        yield Kind.ATTRIBUTE, f".args[{position}]", value
    yield Kind.INTERNAL, ".args", arguments


def _thread(obj: Any) -> Iterator[Edge]:
    """What a thread will call, with the names of its constructor's arguments."""
    namespace = safe_access.instance_dict(obj)
    for word, value in (
        ("target", safe_access.get(namespace, "_target")),
        ("args", safe_access.get(namespace, "_args")),
    ):
        if word == "target" and value is not None:
            yield Kind.ATTRIBUTE, ".target", value
        elif type(value) is tuple:
            for position, argument in enumerate(value):
                yield Kind.ATTRIBUTE, f".args[{position}]", argument
    keywords = safe_access.get(namespace, "_kwargs")
    for name, value in safe_access.items(keywords) if safe_access.is_a(keywords, dict) else ():
        yield Kind.ATTRIBUTE, f".kwargs[{key_text(name)}]", value


def _thread_local(obj: Any) -> Iterator[Edge]:
    """The attributes in every thread: a table has a dictionary for each thread."""
    for table in safe_access.referents(obj):
        for values in dict.values(table) if type(table) is dict else ():
            for name, value in safe_access.items(values) if type(values) is dict else ():
                yield Kind.ATTRIBUTE, f".{name}" if type(name) is str else f".__dict__[{key_text(name)}]", value


def _context(obj: contextvars.Context) -> Iterator[Edge]:
    for variable, value in obj.items():
        yield Kind.LOCAL, f"context variable '{variable.name}'", value


def _contained(*names: str) -> Callable[[Any], Iterator[Edge]]:
    """Handler for descriptors and other C objects with a few object fields."""

    def handler(obj: Any) -> Iterator[Edge]:
        for name in names:
            for base in safe_access.mro(type(obj)):
                descriptor: Any = safe_access.class_dict(base).get(name)
                kind: type = type(descriptor)
                if kind is types.MemberDescriptorType or kind is types.GetSetDescriptorType:
                    yield Kind.ATTRIBUTE, f".{name}", descriptor.__get__(obj)
                    break

    return handler


def _future(*names: str) -> Callable[[Any], Iterator[Edge]]:
    """Handler for futures and tasks, including their callbacks."""
    fields, waiting = _contained(*names, "_result", "_exception"), _contained("_callbacks")

    def handler(obj: Any) -> Iterator[Edge]:
        yield from fields(obj)
        for _, _, pairs in waiting(obj):  # (callback, context), in a list created by the read
            for position, pair in enumerate(cast("list[tuple[object, object]]", pairs or [])):
                yield Kind.CALLBACK, f"._callbacks[{position}]", pair[0]

    return handler


_SEQUENCES = (list, collections.deque)
_SETS = (set, frozenset)
# Exact built-in classes whose instances have neither slots nor a dictionary: their members need not be examined.
_WITHOUT_ATTRIBUTES = (
    *(dict, list, tuple, set, frozenset, types.CellType, types.FrameType, types.TracebackType, types.MethodType),
    *(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.BuiltinFunctionType),
    *(types.MappingProxyType, collections.deque),
)
# Keyed by id, because a lookup by class would call a hostile metaclass's __hash__; the classes are never freed.
_HANDLERS: dict[int, Callable[[Any], Iterator[Edge]]] = {
    id(dict): _dict,
    id(tuple): _tuple,
    id(type): _class,
    id(types.ModuleType): _module,
    id(types.FunctionType): _function,
    id(types.CellType): _cell,
    id(types.MethodType): _method,
    id(types.BuiltinFunctionType): _builtin,
    id(types.MappingProxyType): _mappingproxy,
    id(functools.partial): _partial,
    id(_LRU_WRAPPER): _lru_cache,
    id(weakref.ref): _weakref,
    id(types.GeneratorType): _coroutine("gi", "gi_yieldfrom"),
    id(types.CoroutineType): _coroutine("cr", "cr_await"),
    id(types.AsyncGeneratorType): _coroutine("ag", "ag_await"),
    id(types.FrameType): _frame,
    id(types.TracebackType): _traceback,
    id(BaseException): _exception,
    id(threading.Thread): _thread,
    id(threading.local): _thread_local,
    id(contextvars.Context): _context,
    id(contextvars.Token): _contained("old_value"),
    id(asyncio.Future): _future(),
    id(asyncio.Task): _future("_coro", "_fut_waiter"),
    id(property): _contained("fget", "fset", "fdel"),
    id(classmethod): _contained("__func__"),
    id(staticmethod): _contained("__func__"),
    **{id(base): _sequence(base) for base in _SEQUENCES},
    **{id(base): _set(base) for base in _SETS},
}
#: The same for references to a few objects.
_CONTAINERS: dict[int, Callable[[Any, Wanted], Iterator[Edge]]] = {
    id(dict): _dict,
    id(list): _list_towards,
    id(tuple): _tuple,
}
