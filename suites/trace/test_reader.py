"""One pass over the events: order, storages, sizes, owners, regions, threads."""

from __future__ import annotations

import tracemalloc

import pytest
import torch

from cudamem_testing.strategies import random_programs as programs
from cudamem_testing.trace.profile import MemoryProfile
from cudamem_testing.trace.records import Allocation, Operator, OutOfMemory, PythonCall, ScopeKind
from suites.trace.synthetic import (
    Module,
    Optimizer,
    alloc,
    builtin,
    call,
    op,
    other,
    out_of_memory,
    read,
    tensor,
)


def names(trace):
    return [getattr(event, "name", type(event).__name__) for event in trace.events]


def test_events_are_depth_first_and_subtrees_are_slices():
    x, y = tensor(1), tensor(2)
    trace = read(
        call("a.py(1): f", op("aten::mul", x, x, children=[op("aten::to", x), alloc(y, 16)]), op("aten::add", x, y)),
        op("aten::sin", x),
    )
    assert names(trace) == ["a.py(1): f", "aten::mul", "aten::to", "Allocation", "aten::add", "aten::sin"]
    assert list(trace.parents) == [-1, 0, 1, 1, 0, -1]
    assert list(trace.stops) == [5, 4, 3, 4, 5, 6]
    assert [event.name for event in trace.subtree(1)[:2]] == ["aten::mul", "aten::to"]
    assert list(trace.ancestors(3)) == [1, 0]
    assert str(trace) == "trace of 6 events, 2 storages, 1 threads"


def test_children_of_omitted_events_are_kept():
    trace = read(
        call("a.py(1): f", other(op("aten::sin", tensor(1)), other(alloc(None, 8))), op("aten::cos", tensor(1)))
    )
    assert names(trace) == ["a.py(1): f", "aten::sin", "Allocation", "aten::cos"]
    assert list(trace.parents) == [-1, 0, 0, 0]


def test_a_tree_deeper_than_the_recursion_limit_is_read():
    event = op("aten::sin", tensor(1))
    for _ in range(5000):
        event = call("a.py(1): f", event)
    trace = read(event)
    assert len(trace.events) == 5001
    assert trace.stops[0] == 5001


def test_an_empty_trace():
    trace = read()
    assert (trace.events, trace.storages, trace.threads) == ((), (), ())


def test_each_allocation_at_an_address_is_one_storage():
    x, view, later = tensor(1, impl_ptr=1), tensor(1, impl_ptr=2), tensor(2, storage_data_ptr=4097)
    trace = read(op("aten::mul", x, view), op("aten::cat", [x, later], 0))
    first, second = trace.events
    assert first.arguments[0] is first.arguments[1]
    assert second.arguments == ((trace.storages[0], trace.storages[1]),)
    assert [(s.index, s.number, s.allocation, s.pointer, s.device) for s in trace.storages] == [
        (0, 1, 1, 4097, "cpu"),
        (1, 2, 2, 4097, "cpu"),
    ]


@pytest.mark.parametrize(
    "without", [{"allocation_id": None}, {"id": None}, {"storage_data_ptr": None}, {"storage_data_ptr": 0}]
)
def test_a_tensor_without_memory_is_an_unrecorded_argument(without):
    trace = read(op("aten::mul", tensor(1), tensor(2, **without)))
    (event,) = trace.events
    assert event.arguments == (trace.storages[0],)
    assert event.signature.types == (type(trace.storages[0]), type(None))
    assert event.signature.places == (0,)


def test_a_list_with_a_tensor_without_memory_fits_no_schema():
    trace = read(op("aten::cat", [tensor(1), tensor(None)], 0))
    (event,) = trace.events
    assert event.arguments == ((trace.storages[0],),)
    assert event.signature.types == (object, int)


@pytest.mark.parametrize(
    ("fields", "nbytes"),
    [
        ({"sizes": [3, 4], "strides": [4, 1]}, 48),
        ({"sizes": [3, 4], "strides": [1, 3], "dtype": torch.float64}, 96),
        ({"sizes": [], "strides": []}, 4),
        ({"sizes": [2, 3], "strides": [0, 1], "dtype": torch.bool}, 3),
        ({"sizes": [9], "layout": torch.sparse_coo}, 0),
    ],
)
def test_the_size_of_a_storage_that_no_allocator_event_tells(fields, nbytes):
    trace = read(op("aten::sin", tensor(1, **fields)))
    assert [(s.nbytes, s.measured) for s in trace.storages] == [(nbytes, False)]


def test_the_allocators_size_overrules_the_largest_view():
    small, large = tensor(1, sizes=[2], impl_ptr=1), tensor(1, sizes=[8], impl_ptr=2)
    assert read(op("aten::sin", small), op("aten::sin", large), op("aten::sin", small)).storages[0].nbytes == 32
    trace = read(op("aten::sin", large), alloc(large, -64))
    assert [(s.nbytes, s.measured) for s in trace.storages] == [(64, True)]
    assert trace.notes == ()


def test_tensors_are_measured_again_after_they_may_have_grown():
    before, after = tensor(1, sizes=[2]), tensor(1, sizes=[8])
    assert read(op("aten::sin", before), op("aten::sin", after)).storages[0].nbytes == 8
    trace = read(op("aten::sin", before), op("aten::resize_", before, None, None), op("aten::sin", after))
    assert trace.storages[0].nbytes == 32


def test_memory_reused_without_a_free_is_another_storage():
    old, new = tensor(1, sizes=[2]), tensor(1)
    trace = read(op("aten::sin", old), alloc(new, 16), op("aten::cos", new), alloc(new, 16), alloc(new, -16))
    sin, first, cos, second, free = trace.events
    assert sin.arguments[0] is trace.storages[0]
    assert cos.arguments[0] is first.storage is trace.storages[1]
    assert second.storage is free.storage is trace.storages[2]
    assert [(s.allocation, s.nbytes) for s in trace.storages] == [(1, 8), (1, 16), (1, 16)]
    assert trace.notes == ("2 frees were not recorded: of other threads, or of memory from before the recording",)


def test_memory_of_a_thread_read_later_is_the_same_storage():
    x = tensor(1)
    trace = read(op("aten::sin", x, start=20), alloc(x, 16, start=10, tid=2))
    assert trace.events[1].storage is trace.events[0].arguments[0]
    assert trace.notes == ()


def test_an_allocator_that_contradicts_itself_is_a_note():
    x = tensor(1)
    assert read(alloc(x, 64), alloc(x, -32)).notes == ("storage 0 (cpu) was 64 bytes long, then 32",)


def test_allocations_without_a_tensor_keep_their_size():
    trace = read(alloc(None, 256, pointer=99), alloc(None, -256, pointer=99))
    assert [(e.storage, e.pointer, e.device, e.nbytes) for e in trace.events] == [
        (None, 99, "cpu", 256),
        (None, 99, "cpu", -256),
    ]
    assert trace.storages == ()


def test_refused_allocations_are_counted():
    trace = read(op("aten::mul", tensor(1), tensor(1), children=[out_of_memory()]), out_of_memory())
    assert [type(event) for event in trace.events] == [Operator, OutOfMemory, OutOfMemory]
    assert trace.notes == ("an allocator ran out of memory 2 times",)


def test_threads_are_numbered_by_first_appearance():
    trace = read(
        op("aten::sin", tensor(1), tid=40), op("aten::sin", tensor(1), tid=11), op("aten::sin", tensor(1), tid=40)
    )
    assert [event.thread for event in trace.events] == [0, 1, 0]
    assert trace.threads == (40, 11)
    assert [event.scope.name for event in trace.events] == ["thread 0", "thread 1", "thread 0"]


def test_scopes_come_down_the_tree():
    inner = Module(2, "Linear", [])
    trace = read(
        call(
            "nn.Module: Net",
            call("nn.Module: Linear", op("aten::addmm", tensor(1)), module=inner),
            op("MulBackward0", tensor(1), role="BACKWARD_FUNCTION", children=[op("aten::mul", tensor(1))]),
            module=Module(1, "Net", []),
        ),
        op("aten::sin", tensor(1)),
    )
    by_name = {event.name: event.scope for event in trace.events}
    assert by_name["aten::addmm"].path(ScopeKind.MODULE) == ("Net", "Linear")
    assert by_name["aten::mul"].path(ScopeKind.MODULE) == ("Net",)
    assert [s.name for s in by_name["aten::mul"].chain()] == ["MulBackward0", "Net", "thread 0"]
    assert [by_name[name].backward for name in ("aten::addmm", "MulBackward0", "aten::mul", "aten::sin")] == [
        False,
        True,
        True,
        False,
    ]
    assert by_name["aten::sin"].within(ScopeKind.MODULE) is None


def test_owners_are_read_until_a_storage_appears():
    w, unnumbered, grad, state = tensor(1), tensor(None), tensor(2), tensor(3)
    trace = read(
        call("f", module=Module(5, "Linear", [("weight", unnumbered, None)])),
        call("f", module=Module(5, "Linear", [("weight", w, grad)])),
        call("f", module=Module(5, "Linear", [("weight", tensor(9), None)])),
        call("f", optimizer=Optimizer(6, [(w, grad, [("exp_avg", state), ("none", unnumbered)])])),
    )
    first, second, third, optimizer = (event.owner for event in trace.events)
    assert first.parameters == (("weight", None, None, ()),)
    assert second is third
    assert [(p.name, p.storage.number, p.gradient.number) for p in second.parameters] == [("weight", 1, 2)]
    assert (second.is_optimizer, optimizer.is_optimizer) == (False, True)
    assert [(p.name, [(n, s.number) for n, s in p.state]) for p in optimizer.parameters] == [("0", [("exp_avg", 3)])]


def test_regions_are_found_by_time():
    def annotation(name, start, end, **more):
        return builtin(
            "enter", op(name, role="USER_SCOPE", start=start, end=end, **more), start=start, end=start, **more
        )

    trace = read(
        annotation("outer", 10, 50),
        annotation("inner", 20, 30),
        annotation("next", 50, 60),
        annotation("elsewhere", 5, 100, tid=9),
    )
    at = {time: tuple(r.name for r in trace.regions_at(time, 0)) for time in (9, 10, 20, 30, 49, 50, 60)}
    assert at == {
        9: (),
        10: ("outer",),
        20: ("outer", "inner"),
        30: ("outer",),
        49: ("outer",),
        50: ("next",),
        60: (),
    }
    assert [r.name for r in trace.regions_at(20, 1)] == ["elsewhere"]
    assert [(r.name, r.parent) for r in trace.regions] == [("outer", -1), ("inner", 0), ("next", -1), ("elsewhere", -1)]
    assert [r.name for r in trace.regions_at(20, 2)] == ["outer", "inner"]


def test_roles_of_calls_without_arguments_are_distinguished():
    trace = read(op("work"), op("work", role="USER_SCOPE"), op("work"))
    assert [event.signature.role for event in trace.events] == ["FUNCTION", "USER_SCOPE", "FUNCTION"]
    assert trace.events[0].signature is trace.events[2].signature


def test_python_calls_and_the_line_that_led_to_an_event():
    trace = read(
        call(
            "model.py(10): forward",
            builtin("<built-in method sin>", op("aten::sin", tensor(1)), line=12),
            op("aten::mul", tensor(1)),
            call("model.py(30): helper", op("aten::cos", tensor(1)), line=15),
        ),
        op("aten::tan", tensor(1)),
    )
    where = {getattr(e, "name", ""): next(trace.stack(i), None) for i, e in enumerate(trace.events)}
    assert where == {
        "model.py(10): forward": None,
        "<built-in method sin>": ("model.py", 12, "forward"),
        "aten::sin": ("model.py", 12, "forward"),
        "aten::mul": ("model.py", 0, "forward"),
        "model.py(30): helper": ("model.py", 15, "forward"),
        "aten::cos": ("model.py", 0, "helper"),
        "aten::tan": None,
    }


def test_a_name_that_the_profiler_lost_does_not_stop_the_reader():
    assert names(read(call("(raises)", op("aten::sin", tensor(1))))) == ["(unreadable)", "aten::sin"]


def test_records_of_a_real_trace_are_compact():
    profile = MemoryProfile(collect=False)
    with profile:
        for seed in (3, 4):
            programs.make(seed, "training").compile()()
    tracemalloc.start()
    trace = profile.trace
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(trace.events) > 3000
    assert size / len(trace.events) < 400
    assert {type(event) for event in trace.events} == {Operator, Allocation, PythonCall}
