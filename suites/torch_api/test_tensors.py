"""Tensors and storages, read without running code of their classes; what reads whole objects is tested with these."""

from __future__ import annotations

import ctypes
import gc

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cudamem_testing.torch_api import tensors


def test_a_storage_is_watched_and_not_kept() -> None:
    tensor = torch.ones(4)
    storage = tensor.untyped_storage()
    watched = tensors.StoredMemory(tensor), tensors.StoredMemory(storage)
    del tensor
    assert [memory.gone for memory in watched] == [False, False]
    del storage
    assert [memory.gone for memory in watched] == [True, True]


def test_a_freed_storage_is_not_read() -> None:
    tensor = torch.ones(4)
    storage = tensor.untyped_storage()
    number, weak = id(storage), StorageWeakRef(storage)
    del storage  # the tensor keeps it
    del tensor
    references = ctypes.c_uint32.from_address(weak.cdata + 12)  # of C++, to the storage
    before = references.value
    found = [tensors.storage(one) for one in gc.get_objects() if id(one) == number]
    assert found in ([], [None])  # before 2.10 the weak reference keeps the Python object
    assert references.value == before
    assert weak.expired()


def test_a_tensor_held_by_an_autograd_node_is_live() -> None:
    weight = torch.ones(4, requires_grad=True)
    factor = torch.full((4,), 2.0)
    watched = tensors.StoredMemory(factor)
    product = weight * factor
    del factor
    assert not watched.gone
    product.sum().backward()
    assert watched.gone


def test_a_lazily_cloned_tensor_is_not_copied_by_looking() -> None:
    tensor = torch.ones(4)
    clone = torch._lazy_clone(tensor)
    with tensors.quiet():
        addresses = {tensors.storage(one)[1] for one in (tensor, clone)}
    assert len(addresses) == 1
    assert torch._C._is_cow_tensor(clone)


def test_a_gradient_is_read_only_where_asking_cannot_warn(recwarn: pytest.WarningsRecorder) -> None:
    leaf = torch.ones(2, requires_grad=True)
    inner = leaf * 2
    kept = leaf * 3
    kept.retain_grad()
    (inner.sum() + kept.sum()).backward()
    with tensors.quiet():
        found = [tensors.grad(one) for one in (leaf, inner, kept)]
    assert found == [leaf.grad, None, kept.grad]
    assert [*recwarn] == []


def test_a_tensor_cleared_by_the_collector_holds_nothing() -> None:
    slot = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_int)(("PyType_GetSlot", ctypes.pythonapi))
    tensor = torch.ones(4)
    clear = slot(type(tensor), 51)  # Py_tp_clear, which only the collector calls
    ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object)(clear)(tensor)
    with pytest.raises(RuntimeError, match="undefined tensor"):
        tensor.grad  # noqa: B018 - this is what torch says
    assert (tensors.grad(tensor), tensors.grad_fn(tensor), tensors.base(tensor)) == (None, None, None)
    assert (tensors.storage(tensor), [*tensors.hooks(tensor)], [*tensors.parts(tensor)]) == (None, [], [])
