"""Names: which tensors of a value get one, and which storage at an address is meant."""

from __future__ import annotations

import torch

from cudamem_testing import MemoryProfile
from cudamem_testing.trace.names import Address, addresses, named_tensors, resolve, with_gradients
from suites.trace.synthetic import alloc, op, read, tensor

CARD = torch.device("cuda:1")


def test_every_tensor_in_a_value_has_a_name():
    x, y = torch.ones(1), torch.ones(2)
    model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
    found = list(named_tensors("v", {"a": [x, (y,)], 3: model, ("no", "name"): x, "text": "x"}))
    assert [name for name, _ in found] == ["v.a[0]", "v.a[1][0]", "v.3.0.weight"]
    assert [name for name, _ in named_tensors("", {"a": x})] == ["a"]


def test_tensors_without_memory_have_no_address():
    places = [
        a.place for a in addresses("x", [torch.empty(0), torch.ones(2, device="meta"), torch.ones(2).to_sparse()])
    ]
    assert places == [None, None, None]
    x = torch.ones(3)
    assert addresses("x", x[1:], given=True) == [Address("x", ("cpu", x.data_ptr()), True)]


def test_gradients_follow_their_tensor():
    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    (x * 2).sum().backward()
    both = [Address("x", ("cpu", 1), True), Address("y", None, True), Address("dead", None, False)]
    assert list(with_gradients(both, [x, y, None])) == [
        both[0],
        Address("x.grad", ("cpu", x.grad.data_ptr()), False),
        both[1],
        both[2],
    ]


def test_reading_a_gradient_that_is_not_kept_warns_nothing():
    inner = torch.ones(3, requires_grad=True) * 2
    assert list(with_gradients([Address("x", None, False)], [inner])) == [Address("x", None, False)]
    inner.retain_grad()
    inner.sum().backward()
    assert [a.text for a in with_gradients([Address("x", None, False)], [inner])] == ["x", "x.grad"]


def test_the_first_storage_at_an_address_existed_before():
    first, second = tensor(1, storage_data_ptr=64), tensor(2, storage_data_ptr=64)
    card = tensor(3, storage_data_ptr=64, device=CARD)
    trace = read(
        op("aten::sin", first), alloc(first, -16), alloc(second, 16), op("aten::cos", second), op("aten::tan", card)
    )
    assert [storage.device for storage in trace.storages] == ["cpu", "cpu", "cuda:1"]
    names = resolve(
        [
            Address("given", ("cpu", 64), True),
            Address("made", ("cpu", 64), False),
            Address("card", ("cuda:1", 64), False),
            Address("elsewhere", ("cpu", 65), False),
            Address("nowhere", None, True),
        ],
        trace,
    )
    assert [(n.text, n.storage and n.storage.number, n.given) for n in names] == [
        ("given", 1, True),
        ("made", 2, False),
        ("card", 3, True),
        ("elsewhere", None, False),
        ("nowhere", None, True),
    ]


def test_of_a_wrapper_what_it_wraps_is_named():
    x, other = torch.ones(3, 2), torch.ones(2, 2)

    def double(batch):
        return batch * 2

    batch = torch.nested.as_nested_tensor([x, other], layout=torch.jagged)
    flow = MemoryProfile()(double, batch).data_flow()
    found = {name.text: name.storage and name.storage.nbytes for name in flow.names}
    assert found["batch._values"] == found["out._values"] == 40
    assert flow.writer("out._values").name == "aten::mul"
    assert "batch" not in found
