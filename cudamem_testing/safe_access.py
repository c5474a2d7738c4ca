"""Reads objects without running their code.

Every access to a user's object uses these functions. ``obj.x``, ``isinstance(obj, cls)``, ``len(obj)``,
``repr(obj)``, ``obj == other``, ``type(obj).__name__`` and a look-up in a dictionary of the object may all run code of
the object's class, of its metaclass or of a key: a property, a lazy module that imports half a library, a proxy that
wakes a remote process. The descriptors of the built-in types below read the same C fields and run none of it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
import gc
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar, cast

T = TypeVar("T")
_MRO = type.__dict__["__mro__"]
_CLASS_DICT = type.__dict__["__dict__"]
_NAME = type.__dict__["__name__"]
_QUALNAME = type.__dict__["__qualname__"]
_FLAGS = type.__dict__["__flags__"]
_Module = types.ModuleType
_MODULE_DICT: Any = cast("Any", _Module).__dict__["__dict__"]
_HEAP_TYPE = 1 << 9
_WITH_PARTS = (int, float, complex, str, bytes)
_PLAIN: tuple[Any, ...] = (*_WITH_PARTS, bool, type(None))
#: Modules whose frames may be on the way when an object is read.
_OWN = ("cudamem_testing.", "torch.")
_GENERIC_DICT_TYPE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_generic_dict = _GENERIC_DICT_TYPE(("PyObject_GenericGetDict", ctypes.pythonapi))
# Modules whose heap types are written in C: their members are fields, though they have no ``__slots__``.
_WRITTEN_IN_C = frozenset({"functools", "_asyncio", "_thread", "_contextvars", "_queue", "collections"})


def mro(cls: type) -> tuple[type, ...]:
    """Method resolution order of a class, ignoring its metaclass; the class alone once the collector cleared it."""
    found: tuple[type, ...] | None = _MRO.__get__(cls)
    return (cls,) if found is None else found


def is_a(obj: object, cls: type[T]) -> TypeGuard[T]:
    """Whether the real class of ``obj`` derives from ``cls``; ignores ``__class__`` and ``__instancecheck__``.

    A class that is only registered with an abstract one does not derive from it.
    """
    return derives(type(obj), cls)


def is_plain(value: object) -> bool:
    """Whether a value is a number, text, bytes or ``None`` of exactly Python's own classes."""
    cls = type(value)
    return any(cls is plain for plain in _PLAIN)


def is_value(value: object) -> bool:
    """Whether a value is plain or of a subclass, such as a member of ``IntEnum``."""
    return is_one_of(value, *_PLAIN)


def plain_value(value: object) -> object:
    """The number, text or bytes in an object of a subclass; anything else unchanged."""
    if is_plain(value):
        return value
    base: Any = next((base for base in _WITH_PARTS if is_a(value, base)), None)
    return value if base is None else base(*base.__getnewargs__(value))


def is_one_of(obj: object, *classes: type[T]) -> TypeGuard[T]:
    """Whether the real class of ``obj`` derives from one of some classes."""
    cls = type(obj)
    return any(derives(cls, base) for base in classes)


def derives(cls: type, base: type) -> bool:
    """Whether a class is ``base`` or derives from it; one that the collector has cleared derives from nothing."""
    if cls is base:
        return True
    try:
        return type.__subclasscheck__(base, cls)
    except TypeError as error:
        pass_on(error)
        return False


def pass_on(error: BaseException) -> None:
    """Re-raise an error that came from a signal handler, neither from the called code nor from this package.

    Reading an object calls only C functions. Their own errors have no foreign frames, and are expected.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = None if trace is None else trace.tb_frame.f_globals.get("__name__")
    if type(name) is str and not f"{name}.".startswith(_OWN):
        raise error


def class_dict(cls: type) -> types.MappingProxyType[str, Any]:
    """The namespace of a class, read-only. A look-up compares keys, as Python does at each use of the class."""
    found: types.MappingProxyType[str, Any] = _CLASS_DICT.__get__(cls)
    return found


def class_name(cls: type) -> str:
    """``__name__`` of a class."""
    return plain_text(_NAME.__get__(cls))


def class_qualname(cls: type) -> str:
    """``__qualname__`` of a class."""
    return plain_text(_QUALNAME.__get__(cls))


def type_name(obj: object) -> str:
    """``__name__`` of the real class of an object."""
    return class_name(type(obj))


def plain_text(text: object) -> str:
    """The characters of a text, also of a subclass of ``str``; ``"?"`` if it is not a text."""
    return text if type(text) is str else str.__str__(text) if is_a(text, str) else "?"


def error_text(error: BaseException) -> str:
    """``KeyError: 'x'``: class and message of an exception; only the class if its code gives no message."""
    try:
        words = plain_text(str(error))
    except Exception:
        words = ""
    return f"{type_name(error)}: {words}" if words else type_name(error)


def class_module(cls: type) -> str:
    """``__module__`` of a class, ``""`` if it is not a plain string."""
    if not is_heap_type(cls):
        return "builtins"
    found = class_dict(cls).get("__module__")
    return found if type(found) is str else ""


def is_heap_type(cls: type) -> bool:
    """Whether a class was created at run time (all classes written in Python are)."""
    return bool(_FLAGS.__get__(cls) & _HEAP_TYPE)


def instance_dict(obj: object) -> dict[str, Any] | None:
    """The attributes of an instance, or ``None`` if it has no ``__dict__``.

    If a class defines ``__dict__`` itself, for example as a property, Python has no other way to the attributes, and
    the C function behind the genuine one is called.
    """
    if is_a(obj, types.ModuleType):
        return module_dict(obj)
    for cls in mro(type(obj)):
        descriptor = class_dict(cls).get("__dict__")
        if descriptor is not None and cls is not type:
            genuine = type(descriptor) is types.GetSetDescriptorType
            try:
                # Boxed by hand: ctypes would read the object's attribute ``_as_parameter_``.
                boxed = None if genuine else ctypes.py_object(obj)
                found = types.GetSetDescriptorType.__get__(descriptor, obj) if genuine else _generic_dict(boxed, None)
            except Exception as error:
                pass_on(error)
                return None
            return found if is_a(found, dict) else None
    return None


def module_dict(module: object) -> dict[str, Any] | None:
    """The namespace of a module, without its ``__getattr__`` or ``__getattribute__``."""
    found = _MODULE_DICT.__get__(module)
    return found if type(found) is dict else None


def module_name(module: object) -> str:
    """``__name__`` of a module, from its namespace."""
    found = get(module_dict(module), "__name__")
    return found if type(found) is str else "?"


def slots(obj: object, until: type | None = None) -> Iterator[tuple[str, object]]:
    """Set members of an instance: ``__slots__`` of Python classes and object fields of C types.

    Members of the class ``until`` and those above it in the MRO are left out.
    """
    for cls in mro(type(obj)):
        if cls is until:
            return
        namespace = class_dict(cls)
        if is_heap_type(cls) and "__slots__" not in namespace and class_module(cls) not in _WRITTEN_IN_C:
            continue
        for name, descriptor in tuple(namespace.items()):
            if type(descriptor) is types.MemberDescriptorType and type(name) is str:
                try:
                    yield name, types.MemberDescriptorType.__get__(descriptor, obj)
                except Exception as error:
                    pass_on(error)
                    continue


def referents(*objects: object) -> list[Any]:
    """What objects refer to, as the collector sees it. Only this module calls ``gc.get_referents``.

    The module ``_asyncio`` of CPython 3.12 shows the collector objects that were already freed and wait for reuse.
    A caller that gets one frees it again, which makes their list endless, and every collection with it. So
    that module is never queried; its namespace is read like any other.
    """
    for obj in objects:
        if type(obj) is _Module and _shows_freed(obj):
            return referents(*(one for one in objects if one is not obj))
    return gc.get_referents(*objects)


def reader_of(objects: Sequence[object]) -> Callable[[object], list[Any]]:
    """``referents`` for each of some objects; where none of them is a module, without asking each."""
    return referents if id(_Module) in set(map(id, map(type, objects))) else gc.get_referents


def _shows_freed(module: object) -> bool:
    return module_name(module) == "_asyncio"


def get(namespace: Mapping[Any, Any] | None, name: str) -> Any:
    """The value of a name in the namespace of an instance, a module or a class; ``None`` if there is none.

    Only plain strings are compared: a look-up would call ``__eq__`` of a key with the same hash.
    """
    if namespace is None:
        return None
    if type(namespace) is types.MappingProxyType:
        return _first(namespace.items(), name)
    try:
        return _first(dict.items(namespace), name)  # type: ignore[arg-type]
    except RuntimeError:  # another thread inserts: read a copy
        return _first(items(namespace), name)


def _first(pairs: Iterable[tuple[Any, Any]], name: str) -> Any:
    for key, value in pairs:
        if type(key) is str and key == name:
            return value
    return None


def contents(container: object) -> list[Any]:
    """The elements of a list or tuple, the values of a dict, also of subclasses; empty for other objects."""
    if is_a(container, dict):
        return [value for _, value in items(container)]
    base: Any = list if is_a(container, list) else tuple if is_a(container, tuple) else None
    return [] if base is None else [*base.__iter__(container)]


def items(mapping: object) -> tuple[tuple[Any, Any], ...]:
    """Items of any dict, also of a subclass that overrides ``items``; safe while another thread inserts."""
    return tuple(dict.items(mapping))  # type: ignore[arg-type]


def find_in_class(cls: type, name: str) -> Any:
    """The value of a name in a class or the first base that has it; ``None`` if none does."""
    return next((class_dict(base)[name] for base in mro(cls) if name in class_dict(base)), None)


def find_static(module: str, qualname: str) -> object:
    """The object that ``module.qualname`` names, or ``None``; walks namespaces only and imports nothing."""
    holder: object = sys.modules.get(module)
    for part in qualname.split("."):
        if holder is None:
            return None
        if is_a(holder, type):
            namespace: Any = class_dict(holder)
        elif is_a(holder, types.ModuleType):
            namespace = module_dict(holder)
        else:
            return None
        holder = get(namespace, part)
    return holder
