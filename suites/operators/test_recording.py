"""Recording: what it measures, regions, steps and markers, misuse, and that it leaves others alone."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cudamem_testing import Device, Memory, OperatorMemory
from cudamem_testing.operators import recording
from cudamem_testing.operators.mode import OperatorMode
from cudamem_testing.operators.recording import ELSEWHERE, _devices, _note_of
from cudamem_testing.operators.rows import BETWEEN, Phase
from cudamem_testing.recorders.journal import OLDER
from cudamem_testing.recorders.native import NativeRecorder
from cudamem_testing.recorders.native_journal import Note


def test_regions_steps_and_markers() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    x = torch.ones(2, 4)
    with OperatorMemory(model) as memory:
        for _ in range(2):
            with memory.region("loss"):
                loss = model(x)
                with memory.region("sum"):
                    loss = loss.sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            memory.step()
    rows = [row for row in memory.table.rows if row.operator in ("aten::addmm", "aten::sum", "aten::mm", "aten::add_")]
    seen = [(row.operator.removeprefix("aten::"), row.region, row.step) for row in rows]
    once = [("addmm", "loss"), ("sum", "loss/sum"), ("mm", ""), ("sum", ""), ("add_", ""), ("add_", "")]
    assert seen == [(*one, step) for step in (0, 1) for one in once]
    named = ["fw_start", "fw_bw_boundary", "optimizer_step"]
    assert [marker.name for marker in memory.table.markers] == [*named, "step 1", *named, "step 2"]
    calls = {row.call: row for row in memory.table.rows if row.operator != BETWEEN}
    for marker in memory.table.markers[:3]:
        before, after = calls.get(marker.call - 1), calls[marker.call]
        if marker.name == "fw_start":
            assert (before, after.phase) == (None, Phase.FORWARD)
        elif marker.name == "fw_bw_boundary":
            assert before is not None
            assert (before.phase, after.phase, after.operator) == (Phase.FORWARD, Phase.OTHER, "aten::sum")
        else:
            assert before is not None
            assert (before.operator, after.phase) == ("profiler::_record_function_enter_new", Phase.OPTIMIZER)
    assert [row.phase for row in memory.table.rows if row.operator == "aten::add_"] == [Phase.OPTIMIZER] * 4


def test_frees_between_operators_belong_to_the_earlier_phase() -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    x = torch.ones(2, 4)
    with OperatorMemory(model) as memory:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    between = [(row.phase.value, row.kept) for row in memory.table.rows if row.operator == BETWEEN]
    assert between[-1] == ("other", -64)  # the gradient, after the step
    assert sum(kept for phase, kept in between if phase == "optimizer") == 0


def test_higher_order_operators() -> None:
    x = torch.ones(4)
    with OperatorMemory(device="cpu") as memory:
        torch.ops.higher_order.cond(torch.tensor(True), torch.sin, torch.cos, (x,))
    assert "cond" in [row.operator for row in memory.table.rows]


def test_misuse() -> None:
    memory = OperatorMemory(nn.Linear(2, 2))
    for ask in (lambda: memory.table, lambda: memory.by_module(), lambda: memory.summary()):
        with pytest.raises(
            RuntimeError, match=r"^nothing is recorded yet: leave the with block of OperatorMemory first$"
        ):
            ask()
    with pytest.raises(RuntimeError, match=r"^step\(\) works only inside the recording"):
        memory.step()
    with pytest.raises(RuntimeError, match=r"^region\(\) works only inside the recording"), memory.region("x"):
        pass
    with memory:
        with pytest.raises(RuntimeError, match=r"^an OperatorMemory records only once: create a new one$"):
            memory.__enter__()
        with pytest.raises(RuntimeError, match=r"^nothing is recorded yet"):
            memory.by_phase()
    with pytest.raises(RuntimeError, match=r"^an OperatorMemory records only once"), memory:
        pass
    memory.__exit__(None, None, None)
    assert memory.table.table is memory.table
    with pytest.raises(ValueError, match=r"^device 'tpu' is not known"):
        OperatorMemory(device="tpu")
    with pytest.raises(ValueError, match=r"^no device is given: write device='cpu', or leave it out for the model"):
        OperatorMemory(device=[])
    with pytest.raises(TypeError, match=r"^the model is a str, not a torch.nn.Module$"):
        OperatorMemory("model")  # type: ignore[arg-type]


def test_a_model_on_a_thread_of_the_program_is_noted() -> None:
    model = nn.Linear(64, 64)
    with OperatorMemory(model) as memory:
        worker = threading.Thread(target=lambda: model(torch.ones(64, 64)))
        worker.start()
        worker.join()
    assert ELSEWHERE in memory.table.notes
    assert memory.table.markers == ()
    assert {row.operator: row.phase for row in memory.table.rows} == {BETWEEN: Phase.OTHER}
    assert ELSEWHERE not in _of_reentrant_checkpoint().table.notes


def _of_reentrant_checkpoint() -> OperatorMemory:
    model, x = nn.Linear(4, 4), torch.ones(4, 4, requires_grad=True)
    with OperatorMemory(model) as memory:
        checkpoint(model, x, use_reentrant=True).sum().backward()
    return memory


def test_an_error_in_the_block_passes_and_ends_the_recording() -> None:
    memory = OperatorMemory(device="cpu")

    def fails() -> None:
        with memory, memory.region("open"):
            torch.ones(2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert [(row.operator, row.region) for row in memory.table.rows] == [("aten::ones", "open"), (BETWEEN, "open")]
    torch.ones(3)
    assert len(memory.table.rows) == 2


def test_what_fails_to_begin_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    native = NativeRecorder.load()
    was_installed = native.is_installed()
    model = nn.Linear(2, 2)

    def broken(self: OperatorMode) -> None:
        raise KeyError

    with monkeypatch.context() as patch:
        patch.setattr(OperatorMode, "__enter__", broken)
        with pytest.raises(KeyError), OperatorMemory(model):
            pass
    assert native.is_installed() == was_installed
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_an_out_of_memory_error_is_a_row() -> None:
    with Memory.on("cpu") as outer, OperatorMemory(device="cpu") as memory:
        with outer.limit("1KiB"), pytest.raises(torch.OutOfMemoryError):
            torch.ones(1000)
        torch.ones(2)
    assert [(row.operator, row.allocated) for row in memory.table.rows if row.operator != BETWEEN] == [
        ("aten::ones", 0),
        ("aten::ones", 8),
    ]


def test_windows_around_and_inside_are_right() -> None:
    gc.collect()  # nothing of other tests goes meanwhile
    with Memory.on("cpu") as outer, outer.window("around") as around, OperatorMemory(device="cpu") as memory:
        with outer.window("inside") as inside:
            torch.ones(1000)
        with OperatorMemory(device="cpu") as nested:
            torch.ones(500)
        torch.ones(250)
    assert (around.peak_growth, inside.peak_growth) == (4000, 4000)
    assert [row.allocated for row in memory.table.rows if row.operator == "aten::ones"] == [4000, 2000, 1000]
    assert [row.allocated for row in nested.table.rows if row.operator == "aten::ones"] == [2000]


def test_blocks_from_before_are_known_where_the_recorder_was() -> None:
    with Memory.on("cpu"):
        before = torch.ones(100)
        with OperatorMemory(device="cpu") as memory:
            del before
            torch.ones(1)
    assert memory.table.notes == ()
    assert memory.table.rows[0][:7] == (0, BETWEEN, None, Phase.OTHER, "cpu", 0, 400)
    if not NativeRecorder.load().is_installed():
        with OperatorMemory(device="cpu") as memory:
            pass
        assert memory.table.notes == (OLDER,)


def test_devices() -> None:
    assert _devices(None, "cpu") == (Device("cpu"),)
    assert _devices(None, ["cuda:1", torch.device("cpu")]) == (Device("cuda", 1), Device("cpu"))
    assert _devices(nn.Linear(2, 2), None) == (Device("cpu"),)
    assert _devices(nn.Linear(2, 2, device="meta"), None) == (Device("meta"),)
    assert _devices(nn.ReLU(), None)[0].kind == ("cuda" if torch.cuda.is_initialized() else "cpu")


class Scripted:
    """A journal of a device with given notes."""

    remarks = ()

    def __init__(self, device: Device, levels: list[int]) -> None:
        self.device, self.levels, self.taken = device, levels, 0

    def note(self) -> int:
        self.taken += 1
        return self.taken - 1

    def notes(self) -> list[Note]:
        totals = [
            sum(max(0, b - a) for a, b in zip(self.levels[:n], self.levels[1 : n + 1], strict=False)) for n in range(99)
        ]
        return [Note(self.levels[n], self.levels[n], totals[n], 0, -1, -1, 0) for n in range(self.taken)]

    def close(self) -> None:
        pass


def test_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = {"cuda:0": [0, 0, 8, 8, 8, 8], "cuda:1": [5, 5, 5, 3, 10, 10]}
    monkeypatch.setattr(recording, "open_journal", lambda device, say: Scripted(device, levels[str(device)]))
    with OperatorMemory(device=[0, 1]) as memory:
        torch.ones(1)
        torch.zeros(1)
    assert [(row.call, row.operator, row.device, row.kept) for row in memory.table.rows] == [
        (0, "aten::ones", "cuda:0", 8),
        (1, BETWEEN, "cuda:1", -2),
        (1, "aten::zeros", "cuda:0", 0),
        (1, "aten::zeros", "cuda:1", 7),
    ]
    assert [level[1:] for level in memory.table.levels] == [(0, 8, 8), (5, 10, 10)]


def test_notes_of_several_journals_agree_on_the_order() -> None:
    journals = [Scripted(Device("cuda", index), []) for index in (0, 1)]
    note = _note_of(journals)
    found: list[Any] = []

    def many() -> None:
        found.extend(note() for _ in range(200))

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [*range(800)]
    assert [journal.taken for journal in journals] == [800, 800]


@pytest.mark.gpu
def test_backward_on_a_card_has_modules() -> None:
    """Backward of a card runs on a separate thread; checkpointing runs forward again on it."""
    from torch.utils.checkpoint import checkpoint

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.block, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 8)

        def forward(self, x: torch.Tensor, reentrant: bool) -> torch.Tensor:
            return self.last(checkpoint(self.block, self.first(x), use_reentrant=reentrant).tanh())

    model = Model().cuda()
    x = torch.ones(16, 64, device="cuda")
    for reentrant in (False, True):
        model(x, reentrant).sum().backward()
        with OperatorMemory(model) as memory:
            model(x, reentrant).sum().backward()
        rows = [row for row in memory.table.rows if row.phase is Phase.BACKWARD]
        assert [row.module for row in rows if row.operator == "aten::mm"] == [
            "last",
            "last",
            "block",
            "block",
            "first",
        ]
        assert [row.module for row in rows if row.operator == "aten::tanh_backward"] == [""]
        assert {row.device for row in memory.table.rows} == {"cuda:0"}
        assert memory.table.rows[-1].reserved == torch.cuda.memory_reserved()


@pytest.mark.gpu
def test_a_card_has_all_columns() -> None:
    x = torch.ones(1000, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    with OperatorMemory(device="cuda") as memory:
        y = x.exp()
    (row,) = [row for row in memory.table.rows if row.operator == "aten::exp"]
    assert (row.allocated, row.freed, row.allocations, row.retries) == (4096, 0, 1, 0)
    assert row.after == torch.cuda.memory_allocated()
    assert row.active == torch.cuda.memory_stats()["active_bytes.all.current"]
    assert row.reserved == torch.cuda.memory_reserved()
    assert torch.cuda.max_memory_allocated() == row.peak
    del y
