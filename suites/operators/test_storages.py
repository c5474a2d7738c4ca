"""Counting storages: fake tensors beside the real run, containers, views, and what dies when."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from cudamem_testing import Device, OperatorMemory
from cudamem_testing.operators import recording
from cudamem_testing.operators.rows import BETWEEN
from cudamem_testing.operators.storages import StorageJournal
from suites.operators.models import TASKS

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
FAKE = "inner peaks are unknown: only results of operators are seen (tensors are fake)"
FUSED_ATTENTION = ("aten::_scaled_dot_product_efficient_attention",)
# Of the others, fake tensors cannot be made: their initialisation reads values, or copies tensors by address.
SAME = ["mlp", "residual", "hourglass", "recurrent", "shared", "attention", "bag", "gpt2", "llama"]


@contextmanager
def fake_tensors() -> Iterator[None]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def recorded(name: str, device: str, fake: bool) -> OperatorMemory:
    with fake_tensors() if fake else nullcontext(), torch.device(device):
        torch.manual_seed(0)
        task = TASKS[name]()
        batch = [one.to(device) for one in task.batch]
        with OperatorMemory(task.model, device=device) as memory:
            task.loss(task.model(*batch)).backward()
    return memory


def outputs(memory: OperatorMemory) -> list[tuple[str, str | None, str, int]]:
    """What operator calls kept, in order; those without memory are left out."""
    return [
        (row.operator, row.module, row.phase.value, row.kept)
        for row in memory.table.rows
        if row.operator != BETWEEN and row.kept
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SAME)
def test_fake_outputs_have_the_bytes_of_real_ones(name: str, device: str) -> None:
    if device == "cuda" and name == "recurrent":
        pytest.skip("on a card torch's recurrent modules read the addresses of their weights when they are made")
    recorded(name, device, False)  # libraries allocate their workspaces and free those of others
    gc.collect()  # nothing of other tests goes meanwhile
    real, fake = recorded(name, device, False), recorded(name, device, True)
    expected = outputs(real)
    if device == "cuda":  # seed and offset of dropout: on the card by torch's fake kernel, not by the real one
        expected = [(*row[:3], row[3] + 1024 * (row[0] in FUSED_ATTENTION)) for row in expected]
    assert outputs(fake) == expected
    assert FAKE in fake.table.notes
    for row in fake.table.rows:
        assert (row.peak, row.temporary, row.active, row.reserved, row.retries) == (None,) * 5
    (levels,), (real_levels,) = fake.table.levels, real.table.levels
    assert levels.peak is None
    assert levels.end - levels.start == real_levels.end - real_levels.start
    assert sum(row.kept for row in fake.table.rows) == levels.end - levels.start


# -- the CPU without its recorder -------------------------------------------------------------------------


@pytest.fixture
def without_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "open_journal", lambda device, say: "no C++ compiler found")


def bytes_of(memory: OperatorMemory) -> list[tuple[str, int, int]]:
    """Operators with what they allocated and freed; those without are left out."""
    rows = [row for row in memory.table.rows if row.operator != BETWEEN and (row.allocated or row.freed)]
    return [(row.operator.removeprefix("aten::"), row.allocated, row.freed) for row in rows]


def test_views_and_writes_are_nothing(without_recorder: None) -> None:
    before = torch.ones(4, 5)
    with OperatorMemory(device="cpu") as memory:
        before.t().reshape(20).view(2, 10)[0].detach()
        before.add_(1).mul_(2)
        torch.add(before, 1, out=before)
        new = before + 1
        new.t()
        again = new.view(-1)
        del new
        again.sin()
    assert bytes_of(memory) == [
        ("clone", 80, 0),
        ("add", 80, 0),
        ("sin", 80, 0),
    ]
    assert memory.table.notes == (
        "inner peaks are unknown: only results of operators are seen (no C++ compiler found)",
    )
    # The copy that ``reshape`` made and the sine die at once; ``again`` keeps the storage of ``new``.
    assert memory.table.levels[0].end == 80


def test_storages_in_containers_count_once(without_recorder: None) -> None:
    tensors = [torch.ones(10), torch.ones(20)]
    with OperatorMemory(device="cpu") as memory:
        torch._foreach_add(tensors, 1)
        torch.ones(7, 7).split(2)
        torch.ones(6).topk(2)
    assert bytes_of(memory) == [
        ("_foreach_add", 120, 0),
        ("ones", 196, 0),
        ("ones", 24, 0),
        ("topk", 24, 0),
    ]
    (topk,) = [row for row in memory.table.rows if row.operator == "aten::topk"]
    assert topk.allocations == 2


def test_a_storage_lives_as_long_as_autograd_keeps_it(without_recorder: None) -> None:
    weight = torch.ones(8, requires_grad=True)
    with OperatorMemory(device="cpu") as memory:
        out = weight.exp()  # keeps its result
        out = out.sum()
        weight.sin()
        out.backward()
        torch.ones(1)
    after = {row.operator: row.after for row in memory.table.rows if row.operator != BETWEEN}
    assert after["aten::sin"] == 32 + 4 + 32
    assert weight.grad is not None
    assert memory.table.levels[0].end == 4 + 32  # the loss and the gradient


def test_frees_of_older_tensors_are_seen(without_recorder: None) -> None:
    model = nn.Linear(4, 4, bias=False)
    model(torch.ones(1, 4)).sum().backward()
    with OperatorMemory(model) as memory:
        model.zero_grad()
        torch.ones(1)
    assert memory.table.levels[0] == ("cpu", 128, None, 64)


class Wrapper(torch.Tensor):
    """A tensor made of two others."""

    one: torch.Tensor
    two: torch.Tensor

    @staticmethod
    def __new__(cls, one: torch.Tensor, two: torch.Tensor) -> Wrapper:
        self = torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype)
        self.one, self.two = one, two
        return self

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["one", "two"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        (self,) = args
        return cls(func(self.one), func(self.two))


def test_wrappers_and_sparse_tensors(without_recorder: None) -> None:
    wrapped = Wrapper(torch.ones(4), torch.ones(4))
    dense = torch.eye(3)
    with OperatorMemory(device="cpu") as memory:
        kept = wrapped.exp()
        sparse = dense.to_sparse()
    rows = [row for row in memory.table.rows if row.operator != BETWEEN and row.allocated]
    assert [(row.operator, row.allocated) for row in rows] == [
        ("aten::exp", 32),
        ("aten::_to_sparse", 3 * 2 * 8 + 3 * 4),
    ]
    del kept, sparse


def test_a_device_without_counters() -> None:
    model = nn.Linear(4, 4, device="meta")
    with OperatorMemory(model) as memory:
        model(torch.ones(2, 4, device="meta"))
    assert [(row.operator, row.device, row.allocated) for row in memory.table.rows if row.allocated] == [
        ("aten::ones", "meta", 32),
        ("aten::addmm", "meta", 32),
    ]
    assert memory.table.notes == (
        "inner peaks are unknown: only results of operators are seen (torch's allocator of meta is not measured)",
    )


def test_cards_round_up() -> None:
    journal = StorageJournal(Device("meta"), "why")
    journal._granularity = 512
    journal.see([torch.empty(1, device="meta"), torch.empty(0, device="meta"), torch.empty(257, device="meta")], ())
    assert journal.notes() == []
    journal.note()
    assert journal.notes()[0].allocated_total == 512 + 1536
    assert journal.notes()[0].allocations == 2
