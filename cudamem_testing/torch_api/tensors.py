"""Reads tensors and storages without running code of their classes.

All reads use the descriptors of ``torch._C.TensorBase`` with torch functions disabled: a tensor subclass's
``__torch_function__``, ``__torch_dispatch__`` or properties never run. Shape and device of a class that overrides
``__torch_dispatch__`` may be computed by that class, so they are not read.

Importing this module imports torch.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch._C import TensorBase

from cudamem_testing import safe_access
from cudamem_testing.originals import Original
from cudamem_testing.torch_api.lacking import lacks, needed_for

__all__ = ["TensorBase"]

_DEFAULT_DISPATCH = torch.Tensor.__torch_dispatch__
_DISPATCH_HOOK = "__torch_dispatch__"
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_COO = ("_indices", "_values")
_NESTED = ("_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")
_SCRIPT_TABLES: tuple[Any, ...] = tuple(
    getattr(torch._C, name, None) for name in ("ParameterDict", "BufferDict", "ModuleDict")
)
_NoFunctions = getattr(torch._C, "DisableTorchFunction", None)
_is_functional = getattr(torch, "_is_functional_tensor", None)
_is_transformed = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", None)
_is_lazy_clone = getattr(torch._C, "_is_cow_tensor", None)
_is_freed: Any = getattr(torch.UntypedStorage, "_expired", None)
_SCRIPT_MODULE = None if None in _SCRIPT_TABLES else getattr(torch._C, "ScriptModule", None)


def quiet() -> AbstractContextManager[None]:
    """A context in which no ``__torch_function__`` of a class or mode runs (this thread only).

    Raises:
        TorchLacksError: there is none.
    """
    if _NoFunctions is None:
        raise lacks("looking at tensors", "torch._C.DisableTorchFunction")
    context: AbstractContextManager[None] = _NoFunctions()
    return context


def overrides_dispatch(cls: type) -> bool:
    """Whether a tensor class defines ``__torch_dispatch__``."""
    for base in safe_access.mro(cls):
        found = safe_access.class_dict(base).get(_DISPATCH_HOOK)
        if found is not None:
            return found is not _DEFAULT_DISPATCH
    return False


def wraps_tensors(cls: type) -> bool:
    """Whether instances of a tensor class consist of the tensors in their attributes."""
    return any("__tensor_flatten__" in safe_access.class_dict(base) for base in safe_access.mro(cls))


def field(tensor: object, name: str) -> Any:
    """A field of a tensor through the C descriptor; call inside ``quiet()``."""
    return TensorBase.__dict__[name].__get__(tensor)


def grad(tensor: object) -> object:
    """``.grad``, only if reading it cannot warn; also ``None`` for a tensor cleared by the collector."""
    try:
        return field(tensor, "grad") if field(tensor, "is_leaf") or field(tensor, "retains_grad") else None
    except RuntimeError as error:  # the collector may have cleared the tensor already: then it is undefined
        safe_access.pass_on(error)
        return None


def grad_fn(tensor: object) -> object:
    """``.grad_fn``; also ``None`` if torch refuses (a view that was modified in a forbidden way)."""
    try:
        return field(tensor, "grad_fn") if field(tensor, "requires_grad") else None
    except RuntimeError as error:
        safe_access.pass_on(error)
        return None


def base(tensor: object) -> object:
    """The base tensor of a view, or ``None``."""
    try:
        return field(tensor, "_base")
    except RuntimeError as error:
        safe_access.pass_on(error)
        return None


def hooks(tensor: object) -> Iterator[dict[Any, Any]]:
    """The hook dictionaries of a tensor."""
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if name in TensorBase.__dict__:
            found = field(tensor, name)
            if safe_access.is_a(found, dict):
                yield found


@cache
def hides_attributes() -> bool:
    """Whether the collector sees no attributes of a tensor that C++ holds as well, as up to torch 2.9."""
    tensor, gradient = torch.empty(0, device="cpu"), torch.empty(0, device="cpu")
    attributes = vars(gradient)
    attributes["name"], tensor.grad = "any", gradient
    return all(one is not attributes for one in safe_access.referents(gradient))


def parts(tensor: object) -> list[tuple[str, object]]:
    """The tensors inside one without its own storage (sparse, functional, made by a transform of
    ``torch.func``), a quantised one's scales, and the sizes of those in a nested one.

    Tensors made from the parts of a sparse tensor are new Python objects that share its storages.
    """
    try:
        if _is_functional is not None and _is_functional(tensor):
            return [("wrapped", torch._from_functional_tensor(tensor))]  # type: ignore[arg-type]
        if _is_transformed is not None and _is_transformed(tensor):
            return [("value", torch._C._functorch.get_unwrapped(tensor))]  # type: ignore[arg-type]
        return [] if overrides_dispatch(type(tensor)) else _plain_parts(tensor)
    except RuntimeError as error:
        safe_access.pass_on(error)
        return []


def _plain_parts(tensor: object) -> list[tuple[str, object]]:
    names: tuple[str, ...] = _COO if field(tensor, "is_sparse") else _COMPRESSED.get(field(tensor, "layout"), ())
    if field(tensor, "is_quantized") and TensorBase.__dict__["qscheme"].__get__(tensor)() in (
        torch.per_channel_affine,
        torch.per_channel_affine_float_qparams,
    ):
        names = ("q_per_channel_scales", "q_per_channel_zero_points")
    if field(tensor, "is_nested"):
        names = _NESTED
    if not names:
        return []
    with torch._C._DisableTorchDispatch():  # dispatch modes of the user must not see these calls
        found = [(name, TensorBase.__dict__[name].__get__(tensor)()) for name in names]
    return [(name.strip("_").removeprefix("q_per_channel_"), part) for name, part in found]


def scripted(module: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """Parameters and buffers of a TorchScript module and its submodules, each with the names that lead to it.

    Empty for other objects.
    """
    waiting: list[tuple[tuple[str, ...], Any]] = [((), module)] if type(module) is _SCRIPT_MODULE else []
    while waiting:
        names, script = waiting.pop()
        *held, inner = (table(script).items() for table in _SCRIPT_TABLES)
        yield from (((*names, name), value) for table in held for name, value in table)
        waiting += [((*names, name), module) for name, module in inner]


def storage(obj: object) -> tuple[int, int, int, str] | None:
    """Identity, address, bytes and device of the storage of a tensor or of a storage object.

    ``None`` if there is no storage or it is empty: fake, meta, sparse, opaque and wrapper tensors; or if it was freed.
    """
    try:
        if safe_access.is_a(obj, TensorBase):
            untyped: Any = TensorBase.untyped_storage(obj)
        elif safe_access.is_a(obj, torch.UntypedStorage):
            untyped = obj
            if _is_freed is not None and _is_freed(torch._C.StorageBase.__dict__["_cdata"].__get__(untyped)):
                # Before 2.10 the Python object stays as long as there are weak references, and reading its address
                # would release one that is not ours: the heap is broken by that.
                return None
        else:
            return None
        device = torch._C.StorageBase.__dict__["device"].__get__(untyped)
        nbytes = torch._C.StorageBase.nbytes(untyped)  # type: ignore[attr-defined]
        if device.type == "meta" or nbytes == 0:
            return None
        if _is_lazy_clone is not None and safe_access.is_a(obj, TensorBase) and _is_lazy_clone(obj):
            # Reading a mutable pointer would copy a lazily cloned tensor.
            address = torch._C._data_address(obj)  # type: ignore[attr-defined]
        else:
            address = torch._C.StorageBase.data_ptr(untyped)  # type: ignore[attr-defined]
        return int(torch._C.StorageBase.__dict__["_cdata"].__get__(untyped)), int(address), int(nbytes), str(device)
    except RuntimeError as error:
        safe_access.pass_on(error)
        return None


def is_lazy_clone(tensor: object) -> bool:
    """Whether a tensor shares its memory with others until one of them is modified."""
    return _is_lazy_clone is not None and bool(_is_lazy_clone(tensor))


def counts_uses() -> bool:
    """Whether this torch reports how many C++ owners a tensor and a storage have (all since 2.7 do)."""
    return hasattr(TensorBase, "_use_count") and hasattr(torch._C, "_storage_Use_Count")


def use_count(tensor: object) -> int:
    """The number of a tensor's C++ owners; its Python object is one."""
    with quiet():
        return int(TensorBase._use_count(tensor))  # type: ignore[attr-defined]


def storage_use_count(tensor: object) -> tuple[int, int]:
    """The number of C++ owners of a tensor's storage, and of references to its Python object.

    They include the tensor and this call: compare with the numbers of a tensor with an unshared storage.
    """
    with quiet():
        untyped: Any = TensorBase.untyped_storage(tensor)  # type: ignore[arg-type]
    number = torch._C.StorageBase.__dict__["_cdata"].__get__(untyped)
    return int(torch._C._storage_Use_Count(number)), Original.getrefcount(untyped)


@cache
def implementation_offset() -> int | None:
    """Offset in bytes of the C++ tensor's address in a tensor object; ``None`` if it was not found."""
    tensor = torch.empty(0)
    words = memoryview(ctypes.string_at(id(tensor), TensorBase.__basicsize__ & ~7)).cast("Q")
    found = [place for place, word in enumerate(words) if word == tensor._cdata]
    return 8 * found[0] if len(found) == 1 else None


def parameter_class() -> type:
    """The class of parameters, whose autograd history is at most a gradient."""
    return torch.nn.Parameter


@needed_for("the check for cycles")
def check_stored_memory() -> None:
    """Check that :class:`StoredMemory` works here.

    Raises:
        TorchLacksError: it does not.
    """
    for name in ("_weak_ref", "_expired", "_free_weak_ref"):
        if not hasattr(torch.UntypedStorage, name):
            raise AttributeError(name=name, obj=torch.UntypedStorage)


class StoredMemory:
    """Reports whether a storage is still live, without keeping its bytes; Python weak references do not see C++ owners.

    It keeps a few dozen bytes until ``release``: a finalizer would lose an exception of a signal handler.
    """

    __slots__ = ("_gone", "_weak")

    def __init__(self, carrier: Any) -> None:
        """``carrier`` is a storage, or a tensor that has one."""
        self._gone: bool | None = None
        with quiet():
            storage = torch._C.TensorBase.untyped_storage(carrier) if safe_access.is_a(carrier, TensorBase) else carrier
            self._weak: Any = torch.UntypedStorage._weak_ref(storage)

    @property
    def gone(self) -> bool:
        """Whether it has been freed by now, or was freed when ``release`` was called."""
        return bool(torch.UntypedStorage._expired(self._weak)) if self._gone is None else self._gone

    def release(self) -> bool:
        """Stop watching; returns whether it was freed."""
        if self._gone is None:
            gone = self.gone
            self._gone = gone  # no signal handler runs between here and the call below: it is released once
            torch.UntypedStorage._free_weak_ref(self._weak)  # type: ignore[no-untyped-call]
        return self._gone


def writes_in_place(tensor: torch.Tensor) -> int | None:
    """How often a tensor was written in place; ``None`` for one of inference mode, which does not count it."""
    try:
        with quiet():
            return int(field(tensor, "_version"))
    except (KeyError, RuntimeError):
        return None
