"""Tensors held by arrays and results inside dictionaries and tuples that the collector does not track."""

from __future__ import annotations

import gc
import re
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cudamem_testing.objects.search import find_holders
from cudamem_testing.objects.untracked import untracked

CACHE: dict[str, Any] = {}
HERE = f"module {__name__}"
ARRAYS = {id(np.ndarray)}


def _in_an_array_of_objects(tensor: torch.Tensor) -> object:
    array = np.empty(2, dtype=object)
    array[1] = {"x": (0, tensor.numpy())}
    return array


def _in_attributes_that_were_read(tensor: torch.Tensor) -> object:
    found = SimpleNamespace()
    assert not vars(found)
    found.array = tensor.numpy()
    return found


#: What keeps a tensor, and the chain that then holds it, behind its entry in ``CACHE``.
CASES: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "array": (lambda tensor: tensor.numpy(), " > ndarray.base"),
    "view of an array": (lambda tensor: tensor.numpy()[1:], " > ndarray.base (ndarray).base"),
    "dict": (lambda tensor: {"a": tensor.numpy(), "b": "text"}, " > dict['a'] > ndarray.base"),
    "tuple": (lambda tensor: ("loss", tensor.numpy()), " > tuple[1] > ndarray.base"),
    "list of tuples": (lambda tensor: [(1, tensor.numpy())], " > list[0] > tuple[1] > ndarray.base"),
    "nested": (
        lambda tensor: {"a": {"b": (0, (tensor.numpy(), 1))}},
        " > dict['a'] > dict['b'] > tuple[1] > tuple[0] > ndarray.base",
    ),
    "array of objects": (_in_an_array_of_objects, " > ndarray[1] > dict['x'] > tuple[1] > ndarray.base"),
    "attributes": (_in_attributes_that_were_read, " > SimpleNamespace.array (ndarray).base"),
}


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    yield
    CACHE.clear()


def _kept(keep: Callable[[torch.Tensor], object], name: str = "kept") -> int:
    """The address of a tensor that only an entry of ``CACHE`` holds; containers of it are no longer tracked."""
    tensor = torch.ones(5)
    CACHE[name] = keep(tensor)
    address = tensor.untyped_storage().data_ptr()
    del tensor
    gc.collect()
    return address


def test_the_chain_goes_through_untracked_containers() -> None:
    addresses = {name: _kept(keep, name) for name, (keep, _) in CASES.items()}
    holders = find_holders(list(addresses.values()))
    assert {name: str(holders[address]) for name, address in addresses.items()} == {
        name: f"reachable: {HERE} > CACHE (dict)[{name!r}]{chain}" for name, (_, chain) in CASES.items()
    }


def test_a_result_with_several_outputs_in_a_tuple() -> None:
    result = torch.ones(5, 5).max(0)
    address = result.values.untyped_storage().data_ptr()
    CACHE["kept"] = (0, result)
    del result
    gc.collect()
    assert str(find_holders([address])[address]) == f"reachable: {HERE} > CACHE (dict)['kept'] > tuple[1] > max.values"


def test_a_local_variable_of_another_thread() -> None:
    started, done = threading.Event(), threading.Event()
    addresses: list[int] = []

    def work() -> None:
        tensor = torch.ones(5)
        addresses.append(tensor.untyped_storage().data_ptr())
        kept = {"a": (tensor.numpy(), 1)}
        del tensor
        started.set()
        done.wait()
        del kept

    thread = threading.Thread(target=work, name="loader")
    thread.start()
    try:
        started.wait()
        gc.collect()
        result = find_holders(addresses)[addresses[0]]
    finally:
        done.set()
        thread.join()
    assert result.path is not None
    chain = " local 'kept' (dict)['a'] > tuple[0] > ndarray.base"
    assert re.sub(r"\.py:\d+", ".py", result.path.text) == f"thread 'loader' > frame work (test_untracked.py){chain}"


def test_tuples_that_share_others_are_read_once() -> None:
    def shared(tensor: torch.Tensor) -> object:
        found: Any = (tensor.numpy(), 1)
        for _ in range(60):
            found = (found, found)
        return found

    address = _kept(shared)
    began = time.process_time()
    result = find_holders([address], budget_seconds=None)[address]
    assert time.process_time() - began < 5  # 2 to the 60th steps otherwise
    assert result.path is not None
    assert result.path.text.endswith(" > tuple[0] > ndarray.base")


def test_only_containers_on_the_way_to_an_array_are_named() -> None:
    array = np.zeros(2)
    inner, beside = (array, *[1]), {"y": 1}
    holder = [("text", inner), beside, (1, *[2])]
    gc.collect()
    assert not any(map(gc.is_tracked, (inner, *holder)))
    found = [*untracked([[1, holder]], ARRAYS)]
    assert [(id(one), id(other)) for one, other in found] == [
        (id(inner), id(array)),
        (id(holder[0]), id(inner)),
        (id(holder), id(holder[0])),
    ]


def test_a_container_that_is_tracked_is_not_followed() -> None:
    holder = [{"x": np.zeros(2), "y": []}]
    assert gc.is_tracked(holder[0])
    assert [*untracked([[holder]], ARRAYS)] == []
