"""Gradients: who saw them, when, and which are still some when the trace ends. Made-up events."""

from __future__ import annotations

from cudamem_testing.trace.gradients import find_gradients, find_owners, held
from suites.trace.synthetic import Module, Optimizer, alloc, call, op, read, tensor


def accumulate(*children):
    return op("torch::autograd::AccumulateGrad", children=children, role="BACKWARD_FUNCTION")


def seen(trace):
    return [
        (one.storage.number, None if one.parameter is None else one.parameter.number, one.event, one.witness)
        for one in find_gradients(trace)
    ]


def test_the_engine_shows_what_its_first_operator_takes():
    g, other = tensor(1), tensor(2)
    trace = read(
        op("aten::mul", g, other),
        accumulate(op("aten::detach", g)),
        accumulate(op("aten::add_", other, g, 1)),
        accumulate(op("aten::mul", g, other)),
        accumulate(alloc(g, 16), op("aten::detach", g)),
        accumulate(op("aten::detach", None)),
        accumulate(),
        op("torch::autograd::AccumulateGrad", children=[op("aten::detach", g)]),
    )
    assert seen(trace) == [(1, None, 1, "operator"), (2, None, 3, "operator")]


def test_an_owners_first_call_and_fullest_record_count():
    w, g, unnumbered = tensor(1), tensor(2), tensor(None)
    trace = read(
        call("f", module=Module(5, "Linear", [("weight", unnumbered, None)])),
        call("f", module=Module(5, "Linear", [("weight", w, g)])),
        call("f", optimizer=Optimizer(6, [(w, g, []), (w, None, [])])),
    )
    assert [(index, owner.identity) for index, owner in find_owners(trace)] == [(0, 5), (2, 6)]
    assert seen(trace) == [(2, 1, 0, "module"), (2, 1, 2, "optimizer")]


def test_what_was_freed_or_replaced_is_no_gradient_any_more():
    w, other, first, second, third = (tensor(number) for number in range(1, 6))
    trace = read(
        call("f", module=Module(5, "Linear", [("weight", w, first), ("bias", other, third)])),
        alloc(third, -16),
        accumulate(op("aten::detach", second)),
        call("f", optimizer=Optimizer(6, [(w, second, [])])),
    )
    gradients = find_gradients(trace)
    assert [one.storage.number for one in gradients] == [3, 5, 4, 4]
    assert [(one.storage.number, one.witness) for one in held(gradients, trace)] == [(4, "operator"), (4, "optimizer")]
