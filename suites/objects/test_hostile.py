"""Objects that fight back: nothing of theirs runs, nothing crashes."""

from __future__ import annotations

import concurrent.futures
import enum
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from cudamem_testing.objects.names import key_text, name_of, type_word
from cudamem_testing.objects.references import references
from cudamem_testing.objects.search import find_object_holders
from cudamem_testing.objects.tensors import storage_of, storages_of

calls: list[str] = []
_QUIET = {"__new__", "__init__", "__class__", "__dict__", "__init_subclass__", "__subclasshook__", "__del__"}


def _trap(name: str) -> Any:
    def trap(*_: object, **__: object) -> Any:
        calls.append(name)
        raise RuntimeError(f"{name} ran")

    return trap


def _traps() -> dict[str, Any]:
    kinds = (object, int, str, list, dict)
    names = {name for kind in kinds for name, found in vars(kind).items() if name.startswith("__") and callable(found)}
    names |= {"__getattr__", "__bool__", "__enter__", "__exit__", "__fspath__", "__length_hint__", "__instancecheck__"}
    return {name: _trap(name) for name in sorted(names - _QUIET)}


class HostileMeta(type):
    """A metaclass whose own methods are traps."""


class Hostile(metaclass=HostileMeta):
    """All dunders raise, ``__class__`` and ``__dict__`` are properties that raise."""

    locals().update(_traps())
    __class__ = property(_trap("__class__"))  # type: ignore[assignment]
    __dict__ = property(_trap("__dict__"))  # type: ignore[assignment]


class Liar:
    """Says that it is a tensor."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        calls.append("__class__")
        return torch.Tensor


class HostileDict(dict):  # type: ignore[type-arg]
    items = keys = values = __iter__ = __len__ = __getitem__ = _trap("dict method")  # type: ignore[assignment]


class HostileList(list):  # type: ignore[type-arg]
    __iter__ = __len__ = __getitem__ = _trap("list method")  # type: ignore[assignment]


class HostileTuple(tuple):
    _fields = property(_trap("_fields"))
    __iter__ = __len__ = __getitem__ = _trap("tuple method")  # type: ignore[assignment]


class HostileStr(str):
    __repr__ = __str__ = __hash__ = __eq__ = __len__ = __getitem__ = _trap("str method")  # type: ignore[assignment]


class LazyModule(types.ModuleType):
    """Imports on attribute access, as transformers' does."""

    __getattr__ = _trap("module __getattr__")

    def __getattribute__(self, name: str) -> Any:
        calls.append("module __getattribute__")
        raise RuntimeError

    __dir__ = __repr__ = _trap("module dunder")  # type: ignore[assignment]


class HostileTensor(torch.Tensor):
    __torch_function__ = _trap("__torch_function__")  # type: ignore[assignment]
    grad = property(_trap("grad"))  # type: ignore[assignment]
    shape = property(_trap("shape"))  # type: ignore[assignment]
    __repr__ = _trap("repr")  # type: ignore[assignment]


class DispatchTensor(torch.Tensor):
    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, dtype=inner.dtype, dispatch_sizes_strides_policy="sizes", dispatch_device=True
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, *_: object, **__: object) -> Any:
        calls.append("__torch_dispatch__")
        raise RuntimeError


class Proxy:
    """A wrapt style proxy: everything goes to the wrapped object."""

    __slots__ = ("_wrapped",)

    def __init__(self, wrapped: object) -> None:
        object.__setattr__(self, "_wrapped", wrapped)

    __class__ = property(_trap("proxy __class__"))  # type: ignore[assignment]
    __getattr__ = __getattribute__ = _trap("proxy attribute")  # type: ignore[assignment]


def _hostile(payload: object) -> Any:
    obj = object.__new__(Hostile)
    object.__setattr__(obj, "payload", payload)
    return obj


@pytest.fixture(scope="module", autouse=True)
def armed() -> Iterator[None]:
    """Arms the metaclass only while this module runs: they would hit pytest's own bookkeeping too."""
    names = ("__hash__", "__eq__", "__getattribute__", "__instancecheck__", "__subclasscheck__", "__repr__")
    for name in names:
        type.__setattr__(HostileMeta, name, _trap(f"meta {name}"))
    yield
    for name in names:
        type.__delattr__(HostileMeta, name)


def _cases() -> list[tuple[str, Any, str]]:
    held = [1]
    target = Liar()
    module = LazyModule("lazy")
    types.ModuleType.__dict__["__dict__"].__get__(module)["held"] = held
    tensor = torch.ones(3).as_subclass(HostileTensor)
    tensor.tag = held
    return [
        ("hostile", _hostile(held), "Hostile"),
        ("class", Hostile, "class Hostile"),
        ("liar", Liar(), "Liar"),
        ("dict", HostileDict(a=held), "HostileDict (1 item)"),
        ("list", HostileList([held]), "HostileList (1 item)"),
        ("tuple", HostileTuple([held]), "HostileTuple (1 item)"),
        ("str", HostileStr("x"), "HostileStr"),
        ("module", module, "module lazy"),
        ("tensor", tensor, "HostileTensor float32[3] on cpu, view of [3]"),
        ("dispatch tensor", DispatchTensor(torch.ones(2)), "DispatchTensor float32"),
        ("proxy", Proxy(held), "Proxy"),
        ("weak proxy", weakref.proxy(_keep(target)), "ProxyType"),
        ("method", types.MethodType(print, _hostile(held)), "method Hostile.builtin_function_or_method"),
    ]


_kept: list[object] = []


def _keep(obj: object) -> Any:
    _kept.append(obj)
    return obj


@pytest.mark.parametrize("index", range(13))
def test_names_and_references_run_nothing(index: int) -> None:
    _, obj, name = _cases()[index]
    calls.clear()
    got, word = name_of(obj), type_word(obj)
    labels = [str(label) for label, _ in references(obj)]
    storages_of(obj)
    storage_of(obj)
    key_text(obj)
    assert calls == []
    assert got == name if name != "ProxyType" else got in ("ProxyType", "weakproxy")
    assert word
    assert labels or name in ("HostileStr", "Liar", "ProxyType")


def test_labels_of_hostile_holders() -> None:
    held = [1]
    assert (".payload", held) in [(str(label), found) for label, found in references(_hostile(held))]
    assert ("['a']", held) in [(str(label), found) for label, found in references(HostileDict(a=held))]
    assert ("[0]", held) in [(str(label), found) for label, found in references(HostileTuple([held]))]
    assert ("._wrapped", held) in [(str(label), found) for label, found in references(Proxy(held))]
    key = HostileStr("x")
    assert calls == [] or "str method" not in calls
    del key


class Payload:
    """What is searched for."""


class HostileKey:
    """Has the hash of a name that a look-up would ask for; ``armed`` once it has been put into its dictionary."""

    armed = False

    def __init__(self, name: str) -> None:
        self._hash = str.__hash__(name)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if HostileKey.armed:
            calls.append("key __eq__")
        return False


class HostileThread(threading.Thread):
    __getattribute__ = _trap("thread attribute")


class HostileError(Exception):
    __str__ = __repr__ = _trap("error text")  # type: ignore[assignment]
    args = property(_trap("args"))  # type: ignore[assignment]


class HostileExecutor(concurrent.futures.ThreadPoolExecutor):
    __getattr__ = __len__ = __bool__ = _trap("executor")


class HostileEnum(enum.Enum):
    ONE = 1
    __hash__ = __eq__ = __repr__ = __str__ = __format__ = _trap("enum")  # type: ignore[assignment]


class HostileModel(torch.nn.Module):
    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.part = part

    __getattr__ = __len__ = __iter__ = __bool__ = __repr__ = _trap("model")  # type: ignore[assignment]


def _local_class() -> Any:
    """A class that its qualified name does not lead to, with a hostile metaclass."""

    class Inner(metaclass=HostileMeta):
        pass

    return Inner


def _with_attribute(obj: Any, payload: object) -> Any:
    object.__setattr__(obj, "payload", payload)
    return obj


def _with_hostile_keys(payload: object) -> Any:
    obj = Payload()
    obj.__dict__[HostileKey("payload")] = 1  # type: ignore[index]
    obj.__dict__["payload"] = payload
    return obj


def _function(payload: object) -> Any:
    def function() -> object:
        return payload

    function.__name__ = HostileStr("function")
    return function


def _thread(payload: object) -> Any:
    thread = threading.Thread(target=print, args=(payload,))
    thread.__class__ = HostileThread
    object.__getattribute__(thread, "__dict__")[HostileKey("_name")] = 1
    return thread


def _error(payload: object) -> Any:
    return _with_attribute(HostileError(), payload)


def _executor(payload: object) -> Any:
    return _with_attribute(HostileExecutor(1), payload)


def _traceback(payload: object) -> Any:
    try:
        raise HostileError
    except HostileError as error:
        return error.__traceback__


def _lazy_module(payload: object) -> Any:
    module = LazyModule("lazy")
    namespace = types.ModuleType.__dict__["__dict__"].__get__(module)
    namespace.update({HostileKey("__name__"): 1, "payload": payload})
    return module


def _enum_key(payload: object) -> Any:
    return _pair(HostileEnum.ONE, payload)


def _pair(key: object, payload: object) -> list[tuple[object, object]]:
    return [(key, payload)]


def _tensor(payload: object) -> Any:
    tensor = torch.ones(3).as_subclass(HostileTensor)
    tensor.payload = payload  # type: ignore[attr-defined]
    return tensor


def _model(payload: object) -> Any:
    inner = torch.nn.Linear(1, 1)
    model = HostileModel(inner)
    object.__setattr__(inner, "payload", payload)
    object.__getattribute__(model, "__dict__")[HostileKey("_parameters")] = 1
    return model


HOLDERS: dict[str, tuple[Callable[[object], Any], str]] = {
    "plain": (lambda payload: _with_attribute(Payload(), payload), "Payload.payload"),
    "metaclass": (_hostile, "Hostile.payload"),
    "class of a hostile metaclass": (lambda payload: _with_attribute(_local_class()(), payload), "Inner.payload"),
    "hostile class": (lambda payload: _set_on_class(_local_class(), payload), "class Inner.payload"),
    "key of a namespace": (_with_hostile_keys, "Payload.payload"),
    "dict": (lambda payload: HostileDict(a=payload), "HostileDict['a']"),
    "key of a dict": (lambda payload: {HostileKey("a"): payload}, "dict[<HostileKey>]"),
    "list": (lambda payload: HostileList([payload]), "HostileList[0]"),
    "tuple": (lambda payload: HostileTuple([payload]), "HostileTuple[0]"),
    "enum": (_enum_key, "list[0] > tuple[1]"),
    "proxy": (Proxy, "Proxy._wrapped"),
    "function": (_function, "function function.__closure__[0] 'payload'"),
    "bound method": (
        lambda payload: types.MethodType(print, _hostile(payload)),
        "method Hostile.builtin_function_or_method.__self__ (Hostile).payload",
    ),
    "lazy module": (_lazy_module, "module lazy > payload"),
    "thread": (_thread, "HostileThread.args[0]"),
    "error": (_error, "HostileError.payload"),
    "traceback": (_traceback, "traceback.tb_frame > frame _traceback local 'payload'"),
    "executor": (_executor, "HostileExecutor.payload"),
    "tensor": (_tensor, "HostileTensor.payload"),
    "model": (_model, "].part > Linear.payload"),
}


def _set_on_class(cls: Any, payload: object) -> Any:
    type.__setattr__(cls, "payload", payload)
    return cls


def _put(name: str) -> weakref.ref[Payload]:
    payload = Payload()
    _kept.append(HOLDERS[name][0](payload))
    return weakref.ref(payload)


@pytest.fixture(scope="module")
def searched(armed: None) -> dict[str, Any]:
    """What one search for what all of them hold found, and the code that ran meanwhile."""
    _kept.clear()
    payloads = [_put(name) for name in HOLDERS]
    calls.clear()
    HostileKey.armed = True
    found = find_object_holders([payload() for payload in payloads])
    HostileKey.armed = False
    ran = [*calls]
    _kept.clear()
    return {**dict(zip(HOLDERS, found, strict=True)), "ran": ran}


def test_a_search_through_hostile_objects_runs_nothing(searched: dict[str, Any]) -> None:
    assert searched["ran"] == []


@pytest.mark.parametrize("name", HOLDERS)
def test_the_path_through_a_hostile_object(searched: dict[str, Any], name: str) -> None:
    result = searched[name]
    assert result.complete
    assert result.path is not None
    assert HOLDERS[name][1] in result.path.text


def test_a_lying_class_is_no_tensor() -> None:
    calls.clear()
    assert storages_of(Liar()) == ()
    assert calls == []
