"""Recording: what is named, what is refused, and that nothing is left behind."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch
from torch.profiler import profile

from cudamem_testing.recorders.profiler import TAKEN, ProfilerRecorder
from cudamem_testing.torch_api.profiler import memory_profiler_config, older_profiler_is_running, profiler_is_running
from cudamem_testing.torch_api.tensors import StoredMemory
from cudamem_testing.trace.profile import MemoryProfile, from_profile
from cudamem_testing.trace.records import PythonCall

FLAGS = {"record_shapes": True, "profile_memory": True, "with_stack": True}


def header(profile):
    return str(profile.data_flow()).split("\n\n")[0].splitlines()


def test_arguments_and_results_are_named():
    def f(a, b, *, model, batch):
        loss = (model(a) * b + batch["mask"] + batch["parts"][0]).sum()
        loss.backward()
        return a * 2, [b + 1]

    p = MemoryProfile()(
        f,
        torch.ones(2, 3),
        torch.ones(1),
        model=torch.nn.Sequential(torch.nn.Linear(3, 4)),
        batch={"mask": torch.ones(4), "parts": (torch.ones(1),)},
    )
    assert [line.split(":")[0] for line in header(p)] == [
        "a",
        "b",
        "model.0.weight",
        "model.0.weight.grad",
        "model.0.bias",
        "model.0.bias.grad",
        "batch.mask",
        "batch.parts[0]",
        "out[0]",
        "out[1][0]",
    ]
    assert [line.split()[-1] for line in header(p)[:3]] == ["T0", "T1", "T2"]
    flow = p.data_flow()
    assert [node.name for node in flow.readers("a")] == ["aten::linear", "AddmmBackward0", "aten::mul"]
    assert flow.writer("model.0.weight.grad").name == "AddmmBackward0"


def test_what_was_called_dies_as_without_a_recording():
    module = torch.nn.Linear(3, 4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    living = [weakref.ref(module), weakref.ref(optimizer)]
    with MemoryProfile():
        module(torch.ones(3)).sum().backward()
        optimizer.step()
        within = torch.nn.Linear(3, 4)
        within(torch.ones(3))
        living.append(weakref.ref(within))
        del within
    del module, optimizer
    gc.collect()
    assert [one() for one in living] == [None] * 3


def test_names_of_results_and_of_unnamed_callables():
    p = MemoryProfile(collect=False)(torch.mul, torch.ones(3), torch.ones(3))
    assert header(p) == ["arg0:    T0", "arg1:    T1", "out:     T2"]
    p = MemoryProfile(collect=False)(lambda x: x.sin_(), torch.ones(3))
    assert header(p) == ["x:       T0", "out:     T0"]


def test_the_block_form_with_names_regions_and_marks():
    x = torch.ones(8, requires_grad=True)
    with MemoryProfile() as p:
        with p.region("forward"):
            loss = (x * 2).sum()
        p.mark("backward")
        loss.backward()
        p.mark("after")
        y = x.detach() + 1
        y.neg_()
        p.name(y=y, x=x, gone=torch.ones(3))
    text = p.data_flow().text(regions=True, frees=False)
    assert [line.strip("- ") for line in text.splitlines() if line.startswith("--")] == ["forward", "backward", "after"]
    assert [line.split(":")[0] for line in header(p)] == ["y", "x", "x.grad", "gone"]


def test_results_that_no_operator_took_have_numbers_too():
    def f(x):
        x.sin()  # dropped, and what comes next has its address
        return {"out": x.cos(), "same": x}

    p = MemoryProfile(collect=False)(f, x=torch.ones(1000))
    assert str(p.data_flow()) == "\n".join(
        [
            "x:       T0",
            "out:     T1",
            "same:    T0",
            "",
            "aten::sin                 T0(v0)           ->",
            "aten::cos                 T0(v0)           ->  T1(v0)",
        ]
    )
    assert p.data_flow().lifetime("out").created.name == "aten::cos"
    assert "out:     T1" in p.data_flow().text(ids="profiler").splitlines()


def test_two_storages_at_one_address_are_distinguished():
    with MemoryProfile(collect=False) as p:
        for _ in range(3):
            x = torch.ones(1000)
            x.sin_()
            del x
    rows = [line.split() for line in str(p.data_flow()).splitlines()]
    assert [row[-1] for row in rows if row[0] == "aten::sin_"] == ["T0(v1)", "T1(v1)", "T2(v1)"]


def test_an_open_profiler_is_an_error_before_anything_starts():
    ran = []
    with profile(**FLAGS) as prof:
        with pytest.raises(RuntimeError, match="a torch profiler is recording already"):
            MemoryProfile()(ran.append, 1)
        with pytest.raises(RuntimeError, match="a torch profiler is recording already"), MemoryProfile():
            ran.append(2)
        torch.ones(3).sin()
    assert ran == []
    assert [node.name for node in from_profile(prof).data_flow().nodes if node.name != "[memory]"] == [
        "aten::ones",
        "aten::sin",
    ]


def test_torchs_older_profiler_is_an_error_unless_it_stops():
    from torch.autograd import profiler_legacy

    profiler_legacy._enable_profiler_legacy(memory_profiler_config())
    try:
        with pytest.raises(RuntimeError, match="a torch profiler is recording already"):
            MemoryProfile()(torch.sin, torch.ones(3))
        assert older_profiler_is_running()
    finally:
        profiler_legacy._disable_profiler_legacy()
    MemoryProfile(collect=False)(torch.sin, torch.ones(3))  # torch's profiler was not left half started
    recorder = ProfilerRecorder()
    try:
        recorder.wake(limited=True)
        assert older_profiler_is_running()
        p = MemoryProfile()(torch.sin, torch.ones(3))
        assert p.data_flow().nodes[0].name == "aten::sin"
        assert recorder.incomplete == TAKEN
    finally:
        recorder.close()


def test_a_profiler_that_takes_over_is_an_error():
    taken_over = pytest.raises(RuntimeError, match="another torch profiler was started inside the memory profile")
    with taken_over, MemoryProfile() as p, profile(profile_memory=True):
        torch.ones(3).sin()
    with pytest.raises(LookupError), MemoryProfile(), profile():
        raise LookupError
    assert not profiler_is_running()
    with pytest.raises(RuntimeError, match="nothing is recorded yet"):
        p.data_flow()
    MemoryProfile(collect=False)(torch.sin, torch.ones(3))


def test_an_exception_leaves_no_profiler_running():
    def fail(x):
        x.sin()
        raise LookupError("mine")

    p = MemoryProfile()
    with pytest.raises(LookupError, match="mine"):
        p(fail, torch.ones(3))
    assert not profiler_is_running()
    assert p.data_flow().nodes[0].name == "aten::sin"
    MemoryProfile(collect=False)(torch.sin, torch.ones(3))


def test_a_profiler_that_cannot_start_leaves_nothing_running(monkeypatch):
    class Broken:
        def __enter__(self):
            self.inner = profile(**FLAGS)
            self.inner.start()
            raise OSError("no start")

    monkeypatch.setattr("cudamem_testing.trace.profile.new_profiler", Broken)
    with pytest.raises(OSError, match="no start"):
        MemoryProfile()(torch.sin, torch.ones(3))
    assert not torch._C._autograd._profiler_enabled()
    assert not profiler_is_running()


def test_a_profiler_in_its_warm_up_is_reported(monkeypatch):
    class Prepared:
        def __enter__(self):  # as torch 2.12 and before say it; later ones drop what the other prepared
            raise RuntimeError("Can't disable Kineto profiler when it's not running")

    monkeypatch.setattr("cudamem_testing.trace.profile.new_profiler", Prepared)
    with pytest.raises(RuntimeError, match="another torch profiler is prepared and not started"):
        MemoryProfile()(torch.sin, torch.ones(3))


def test_a_profile_records_once():
    p = MemoryProfile(collect=False)(torch.sin, torch.ones(3))
    with pytest.raises(RuntimeError, match="records once: make a new one"):
        p(torch.sin, torch.ones(3))
    with pytest.raises(RuntimeError, match=r"name\(\) works inside the recording"):
        p.name(x=torch.ones(1))
    with pytest.raises(RuntimeError, match=r"mark\(\) works inside the recording"):
        p.mark("late")
    with pytest.raises(RuntimeError, match="nothing is recorded yet"):
        MemoryProfile().data_flow()
    with MemoryProfile(collect=False) as inside, pytest.raises(RuntimeError, match="nothing is recorded yet"):
        inside.data_flow()


def test_no_tensor_is_kept():
    x = torch.ones(10)
    gone = weakref.ref(x)
    with MemoryProfile() as p:
        p.name(x=x)
        del x
    assert gone() is None
    y = torch.ones(10)
    gone = weakref.ref(y)
    p = MemoryProfile()(lambda y: {"z": y * 2}, y=y)
    p.data_flow()
    del y
    assert gone() is None
    assert not [o for o in gc.get_referrers(p) if isinstance(o, torch.Tensor)]


def test_what_cycles_hold_is_freed_before_the_recording_ends():
    def cyclic(x):
        box = [x.sin()]
        box[0].neg_()
        box.append(box)

    def freed(collect):
        flow = MemoryProfile(collect=collect)(cyclic, x=torch.ones(64)).data_flow()
        return flow.freed("T1") is not None

    gc.collect()
    gc.disable()
    try:
        assert (freed(True), freed(False)) == (True, False)
    finally:
        gc.enable()
        gc.collect()


def test_a_python_profiler_of_the_users_own_is_put_back():
    seen = []

    def mine(frame, event, arg):
        if event == "call":
            seen.append(frame.f_code.co_name)

    def later():
        pass

    sys.setprofile(mine)
    try:
        MemoryProfile(collect=False)(torch.sin, torch.ones(3))
        assert sys.getprofile() is mine
        later()
    finally:
        sys.setprofile(None)
    assert "later" in seen


def test_code_of_tensors_modules_and_containers_is_not_run():
    class Loud(torch.nn.Module):
        def __getattr__(self, name):
            if name in ("parameters", "named_parameters"):
                raise AssertionError("asked")
            return super().__getattr__(name)

        def named_parameters(self, *args, **kwargs):
            raise AssertionError("asked")

    class Sly(dict):
        def items(self):
            raise AssertionError("asked")

    class Mean:
        @property
        def __class__(self):
            raise AssertionError("asked")

    loud = Loud()
    loud.weight = torch.nn.Parameter(torch.ones(2))
    p = MemoryProfile(collect=False)(
        lambda **given: torch.ones(1),
        loud=loud,
        sly=Sly(x=torch.ones(2)),
        mean=Mean(),
        meta=torch.ones(2, device="meta"),
    )
    assert [line.split(":")[0] for line in header(p)] == ["loud.weight", "sly.x", "meta", "out"]


def test_self_containing_arguments_are_looked_into_once():
    box = [torch.ones(2)]
    box.append(box)
    p = MemoryProfile(collect=False)(lambda box: box[0].neg_(), box=box)
    assert header(p) == ["box[0]:  T0", "out:     T0"]


def test_a_profile_without_stacks_is_analysed_with_a_note():
    with profile(record_shapes=True, profile_memory=True) as prof:
        torch.ones(3).sin_()
    flow = from_profile(prof).data_flow()
    assert flow.notes == ("recorded without with_stack=True",)
    assert not [event for event in flow.trace.events if isinstance(event, PythonCall)]


def test_an_unfinished_profile_is_an_error():
    prof = profile(**FLAGS)
    with pytest.raises(RuntimeError, match="the profile has recorded nothing"):
        from_profile(prof)
    with torch.autograd.profiler.profile(use_kineto=True, **FLAGS) as inner:
        torch.ones(3).sin_()
    assert from_profile(inner).data_flow().nodes[0].name == "aten::ones"


def test_a_vmapped_call_leaves_no_tensor_behind():
    def f(x):
        return {"y": torch.func.vmap(torch.sin)(x)}

    p = MemoryProfile()(f, x=torch.ones(3, 4))
    assert str(p.data_flow()).splitlines()[-1] == "aten::sin                 T0(v0)           ->  T1(v0)"
    assert p.data_flow().diagnostics == ()


def test_what_the_profiler_holds_is_freed_with_the_recording():
    x = torch.ones(3, 4)
    memory = StoredMemory(x)
    gc.disable()
    try:
        MemoryProfile(collect=False)(torch.func.vmap(torch.sin), x)
        del x
        assert memory.gone
    finally:
        gc.enable()
