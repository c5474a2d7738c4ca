"""Short, readable names of any object, without running the object's code.

``name_of`` gives what a reader wants to see of a node in a graph (``module project.cache``, ``dict (3 items)``,
``float32[1024, 1024] on cuda:0``); ``type_word`` the shorter word inside a path (``dict``, ``function step``);
``key_text`` a dictionary key. All are bounded in length and on one line.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import collections
import functools
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from math import prod
from pathlib import PurePath
from typing import Any, NamedTuple, cast

import torch

from cudamem_testing import safe_access
from cudamem_testing.model.edges import View
from cudamem_testing.show.printable import one_line
from cudamem_testing.torch_api import nodes, tensors

#: Longest name, in characters.
LONGEST_NAME = 100
_LONGEST_KEY = 48
#: Classes of objects that run code: their word, and the attribute with the code.
RUNNING = {
    types.FrameType: ("frame", "f_code"),
    types.GeneratorType: ("generator", "gi_code"),
    types.CoroutineType: ("coroutine", "cr_code"),
    types.AsyncGeneratorType: ("async generator", "ag_code"),
}
_LRU_WRAPPER = type(functools.lru_cache(maxsize=1)(len))


def clean(text: str, longest: int = LONGEST_NAME) -> str:
    """``text`` on one line, control and unprintable characters escaped, at most ``longest`` characters."""
    head = one_line(text[: longest + 1])
    return head if len(head) <= longest else head[: longest - 3] + "..."


def name_of(obj: object) -> str:
    """Name of any object, for a report."""
    cls = type(obj)
    for base in safe_access.mro(cls):
        namer = _NAMERS.get(id(base))
        if namer is not None:
            return clean(namer(obj))
    if safe_access.is_a(obj, tensors.TensorBase):
        return clean(str(tensor_name(obj)))
    if nodes.is_node_type(cls):
        return clean(f"autograd {safe_access.class_name(cls)}")
    return clean(safe_access.class_name(cls))


def type_word(obj: object) -> str:
    """The word for an object inside a path: its class, or for functions, frames, classes and modules their name too."""
    cls = type(obj)
    running = _WORDS.get(id(cls))
    if running is not None:
        return clean(running(obj))
    if safe_access.is_a(obj, type):
        return clean(f"class {safe_access.class_name(obj)}")
    if cls is types.FunctionType:
        return clean(f"function {safe_access.plain_text(cast('types.FunctionType', obj).__name__)}")
    if cls is types.MethodType:
        return clean(_method(obj))
    if cls is types.BuiltinFunctionType:
        return clean(_builtin(obj))
    if cls is weakref.ref:
        return "weakref"
    if cls is _LRU_WRAPPER:
        return clean(f"lru_cache of {lru_name(obj)}")
    if safe_access.is_a(obj, types.ModuleType):
        return clean(f"module {safe_access.module_name(obj)}")
    return clean(safe_access.class_name(cls))


def key_text(key: object) -> str:
    """A dictionary key: literals as written, enum members and classes by name, the rest as ``<type>``."""
    cls = type(key)
    if cls is str or cls is bytes:
        text = cast("str | bytes", key)
        return clean(repr(text[: _LONGEST_KEY + 1]), _LONGEST_KEY)
    if any(cls is kind for kind in (int, float, bool, complex, type(None))):
        return clean(repr(key), _LONGEST_KEY) if cls is not int else _int_text(cast("int", key))
    if cls is tuple:
        parts = [key_text(part) if type(part) is not tuple else "(...)" for part in cast("tuple[Any, ...]", key)[:4]]
        return clean(
            f"({', '.join(parts)}{', ...' if tuple.__len__(cast('tuple[Any, ...]', key)) > 4 else ''})", _LONGEST_KEY
        )
    if safe_access.is_a(key, str):
        return clean(str.__repr__(key), _LONGEST_KEY)
    if safe_access.is_a(key, type):
        return clean(safe_access.class_name(key), _LONGEST_KEY)
    member = safe_access.get(safe_access.instance_dict(key), "_name_")
    if type(member) is str and "_member_map_" in safe_access.class_dict(cls):
        return clean(f"{safe_access.class_name(cls)}.{member}", _LONGEST_KEY)
    if any(cls is kind for kind in (torch.dtype, torch.device, torch.layout)):  # their repr is torch's own C++ code
        return str(key)
    return clean(f"<{safe_access.class_name(cls)}>", _LONGEST_KEY)


def view_of(objects: Sequence[object]) -> View | None:
    """The first of some tensors, if each of them is a view of a part of its storage."""
    views = [_part(obj) for obj in objects]
    return views[0] if views and all(views) else None


def _part(tensor: object) -> View | None:
    """A tensor with the shape of its larger base; ``None`` for a tensor that uses its whole storage."""
    if not safe_access.is_a(tensor, tensors.TensorBase) or tensors.overrides_dispatch(type(tensor)):
        return None
    with tensors.quiet():
        try:
            whole = None if tensors.field(tensor, "is_nested") else tensors.base(tensor)
            if whole is None:
                return None
            shapes = [tuple(tensors.field(one, "shape")) for one in (tensor, whole)]
        except RuntimeError:
            return None
    if any(type(length) is not int for shape in shapes for length in shape) or prod(shapes[0]) >= prod(shapes[1]):
        return None
    return View(clean(str(tensor_name(tensor)._replace(base=""))), shapes[1])


class TensorName(NamedTuple):
    """The name of a tensor: ``cls`` unless it is a plain one, dtype and shape, device, the shape of its base."""

    cls: str
    shape: str = ""
    device: str = ""
    base: str = ""

    @property
    def without_place(self) -> str:
        """Class, dtype and shape."""
        return clean(str(self._replace(device="", base="")))

    def __str__(self) -> str:
        text = " ".join(filter(None, (self.cls, self.shape, self.device and f"on {self.device}")))
        return text + (f", view of {self.base}" if self.base else "")


def tensor_name(tensor: object) -> TensorName:
    """``float32[1024, 1024] on cuda:0``, with subclass, view, sparse, fake, meta if it applies."""
    cls = type(tensor)
    name, whole = "" if cls is torch.Tensor else safe_access.class_name(cls), ""
    with tensors.quiet():
        try:
            dtype = str(tensors.field(tensor, "dtype")).removeprefix("torch.")
            if tensors.overrides_dispatch(cls):
                return TensorName(safe_access.class_name(cls), dtype)
            layout = tensors.field(tensor, "layout")
            nested = tensors.field(tensor, "is_nested")
            shape = "[nested]" if nested else f"[{', '.join(map(str, tensors.field(tensor, 'shape')))}]"
            text = f"{dtype}{shape}"
            if layout is not torch.strided:
                text = f"{str(layout).removeprefix('torch.').removeprefix('_')} {text}"
            base = tensors.base(tensor)
            if base is not None and not nested:
                whole = f"[{', '.join(map(str, tensors.field(base, 'shape')))}]"
            return TensorName(name, text, str(tensors.field(tensor, "device")), whole)
        except RuntimeError as error:
            safe_access.pass_on(error)
            return TensorName(safe_access.class_name(cls))


def _int_text(number: int) -> str:
    return repr(number) if number.bit_length() < 128 else "<int>"


def lru_name(wrapper: object) -> str:
    """Qualified name of the function that an ``lru_cache`` wraps."""
    found = safe_access.get(safe_access.instance_dict(wrapper), "__qualname__")
    return found if type(found) is str else "?"


def code_place(code: types.CodeType, line: int | None = None) -> str:
    """``file.py:12`` of a code object, without folders."""
    return f"{_file_name(safe_access.plain_text(code.co_filename))}:{code.co_firstlineno if line is None else line}"


@functools.lru_cache(maxsize=512)
def _file_name(path: str) -> str:
    return PurePath(path).name


def _sized(word: str, size: int) -> str:
    return f"{word} ({size} item{'' if size == 1 else 's'})"


def _container(base: Any) -> Callable[[Any], str]:
    def name(obj: Any) -> str:
        return _sized(safe_access.class_name(type(obj)), base.__len__(obj))

    return name


def _function(obj: Any) -> str:
    return f"function {safe_access.plain_text(obj.__name__)} ({code_place(obj.__code__)})"


def _method(obj: Any) -> str:
    function = obj.__func__
    is_plain = type(function) is types.FunctionType
    name = safe_access.plain_text(function.__name__) if is_plain else safe_access.type_name(function)
    return f"method {safe_access.class_name(type(obj.__self__))}.{name}"


def _class(obj: Any) -> str:
    return f"class {safe_access.class_name(obj)}"


def _frame(obj: Any) -> str:
    return f"{type_word(obj)} ({code_place(obj.f_code, obj.f_lineno)})"


def _running(word: str, attribute: str) -> Callable[[Any], str]:
    def name(obj: Any) -> str:
        return f"{word} {object.__getattribute__(obj, attribute).co_name}"

    return name


def _coroutine(obj: Any) -> str:
    code = object.__getattribute__(obj, RUNNING[type(obj)][1])
    return f"{type_word(obj)} ({code_place(code)})"


def _traceback(obj: Any) -> str:
    return f"traceback at {code_place(obj.tb_frame.f_code, obj.tb_lineno)}"


def _weakref(obj: Any) -> str:
    referent = weakref.ref.__call__(obj)
    return "weakref (dead)" if referent is None else f"weakref to {safe_access.class_name(type(referent))}"


def _thread(obj: Any) -> str:
    name = safe_access.get(safe_access.instance_dict(obj), "_name")
    return f"thread {name!r}" if type(name) is str else "thread"


def _literal(obj: Any) -> str:
    if obj is None or type(obj) is bool:
        return str(obj)
    name = safe_access.class_name(type(obj))
    return f"{name} {key_text(obj)}" if any(type(obj) is kind for kind in (str, bytes, int, float)) else name


def _partial(obj: Any) -> str:
    return f"partial of {type_word(functools.partial.func.__get__(obj))}"


def _builtin(obj: Any) -> str:
    return f"built-in {obj.__name__}"


def _code(obj: Any) -> str:
    return f"code {obj.co_name} ({code_place(obj)})"


_WORDS = {id(kind): _running(*words) for kind, words in RUNNING.items()}
# Built-in types are never freed, so their ids are safe keys; a hostile metaclass's __hash__ is not called.
_NAMERS: dict[int, Callable[[Any], str]] = {
    id(type): _class,
    id(types.ModuleType): lambda obj: f"module {safe_access.module_name(obj)}",
    id(types.FunctionType): _function,
    id(types.BuiltinFunctionType): _builtin,
    id(types.MethodType): _method,
    id(types.CodeType): _code,
    id(types.TracebackType): _traceback,
    id(functools.partial): _partial,
    id(_LRU_WRAPPER): lambda obj: f"lru_cache of {lru_name(obj)}",
    id(weakref.ref): _weakref,
    id(threading.Thread): _thread,
    **{id(kind): _literal for kind in (type(None), bool, str, bytes, int, float)},
    **{id(kind): _coroutine for kind in RUNNING},
    id(types.FrameType): _frame,
    **{id(kind): _container(kind) for kind in (dict, list, tuple, set, frozenset, collections.deque)},
}
