"""``storages_of``: which tensors hold real memory."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from cudamem_testing.objects.tensors import storage_of, storages_of


def _sizes(tensor: object) -> list[int]:
    return sorted(storage.nbytes for storage in storages_of(tensor))


def test_a_storage_is_its_address_and_size() -> None:
    tensor = torch.ones(4, 4)
    found = storage_of(tensor)
    assert found is not None
    assert found.address == tensor.untyped_storage().data_ptr()
    assert (found.nbytes, found.device) == (64, "cpu")
    assert str(found) == "64 bytes on cpu"


def test_views_share_a_storage() -> None:
    tensor = torch.ones(4, 4)
    assert (
        storage_of(tensor)
        == storage_of(tensor[1:])
        == storage_of(tensor.detach())
        == storage_of(tensor.untyped_storage())
    )
    assert storage_of(tensor) != storage_of(tensor.clone())


def test_a_storage_keeps_nothing_alive() -> None:
    tensor = torch.ones(4)
    seen = weakref.ref(tensor)
    kept = storage_of(tensor)
    del tensor
    assert seen() is None
    assert kept is not None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # for any option of the call
@pytest.mark.filterwarnings("ignore:.*quantiz.*")
@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (lambda: torch.ones(2), [8]),
        (lambda: torch.ones(0), []),
        (lambda: torch.ones(2, device="meta"), []),
        (lambda: torch.nn.Parameter(torch.ones(3)), [12]),
        (lambda: torch.eye(3).to_sparse(), [12, 48]),
        (lambda: torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 1.0], (2, 2), check_invariants=True), [8, 16, 24]),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), [16, 16, 16, 20]),
        (lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), [4]),
        (lambda: torch._to_functional_tensor(torch.ones(4)), [16]),  # type: ignore[attr-defined]
        (lambda: torch.from_numpy(np.ones(3)), [24]),
        (lambda: torch.ones(5).untyped_storage(), [20]),
        (lambda: [torch.ones(5)], []),
        (lambda: "tensor", []),
    ],
)
def test_sizes(make: Any, sizes: list[int]) -> None:
    obj = make()
    assert _sizes(obj) == sizes


def test_wrapper_subclasses_are_followed() -> None:
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape)  # type: ignore[attr-defined]

        def __init__(self, inner: torch.Tensor) -> None:
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, *_: object, **__: object) -> Any:
            raise AssertionError

    inner = torch.ones(6)
    assert storages_of(Wrapper(Wrapper(inner))) == (storage_of(inner),)
    gc.collect()  # the class is a cycle


def test_fake_tensors_hold_nothing() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(1000)
    assert storages_of(fake) == ()


def test_a_lazy_clone_is_not_copied() -> None:
    tensor = torch.ones(4)
    address = tensor.data_ptr()
    clone = torch._lazy_clone(tensor)[1:]
    found = storage_of(clone)
    assert found is not None
    assert found.address == address
    assert torch._C._is_cow_tensor(clone)  # type: ignore[attr-defined]
