"""Settling: which steps run, and what each of them freed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Verdict
from cudamem_testing.recorders.base import Owned
from cudamem_testing.run.settle import Freed, Settlement, SettlingStep, settle

CPU, CARD = Device("cpu"), Device("cuda", 0)


class Heap:
    """Blocks by device and by the step that frees them; ``None`` is freed by none."""

    def __init__(self, blocks: list[tuple[Device, str | None, int]]) -> None:
        self.blocks = blocks
        self.calls: list[str] = []

    def left(self) -> dict[Device, Owned]:
        left: dict[Device, Owned] = {}
        for device, _, size in self.blocks:
            before = left.get(device, Owned(0, 0))
            left[device] = Owned(before.bytes + size, before.blocks + 1)
        return left

    def step(self, name: str, verdict: Verdict | None = None) -> SettlingStep:
        def action() -> None:
            self.calls.append(name)
            self.blocks = [block for block in self.blocks if block[1] != name]

        return SettlingStep(name, action, verdict)


def test_nothing_left_runs_nothing() -> None:
    heap = Heap([])
    assert settle([heap.step("a"), heap.step("b")], heap.left) == Settlement()
    assert heap.calls == []


def test_it_stops_when_nothing_is_left() -> None:
    heap = Heap([(CPU, "a", 64)])
    found = settle([heap.step("a"), heap.step("b")], heap.left)
    assert heap.calls == ["a"]
    assert found == Settlement((Freed("a", None, CPU, Owned(64, 1)),), {})


def test_a_step_that_is_not_needed_is_passed_over() -> None:
    heap = Heap([(CPU, "a", 64), (CPU, "b", 8)])
    asked: list[str] = []

    def needed(name: str, answer: bool) -> Callable[[], bool]:
        return lambda: asked.append(name) is None and answer

    steps = [
        replace(heap.step("a"), needed=needed("a", answer=False)),
        replace(heap.step("b"), needed=needed("b", answer=True)),
    ]
    found = settle(steps, heap.left)
    assert (heap.calls, asked) == (["b"], ["a", "b"])
    assert found == Settlement((Freed("b", None, CPU, Owned(8, 1)),), {CPU: Owned(64, 1)})
    settle([heap.step("a"), replace(heap.step("c"), needed=needed("c", answer=True))], heap.left)
    assert asked == ["a", "b"], "it is not asked when nothing is left"


def test_each_step_is_credited_with_what_it_freed() -> None:
    heap = Heap([(CPU, "b", 64), (CPU, None, 8), (CARD, "b", 512), (CARD, "c", 1024), (CARD, "c", 512)])
    steps = [heap.step("a"), heap.step("b", Verdict.CYCLE), heap.step("c", Verdict.WORKSPACE)]
    found = settle(steps, heap.left)
    assert found.freed == (
        Freed("b", Verdict.CYCLE, CPU, Owned(64, 1)),
        Freed("b", Verdict.CYCLE, CARD, Owned(512, 1)),
        Freed("c", Verdict.WORKSPACE, CARD, Owned(1536, 2)),
    )
    assert found.left == {CPU: Owned(8, 1)}


def test_it_looks_before_every_step() -> None:
    heap = Heap([(CPU, None, 8)])
    looked: list[tuple[str, int]] = []
    steps = [heap.step("a"), heap.step("b", Verdict.CYCLE), heap.step("c", Verdict.WORKSPACE)]
    settle(steps, heap.left, lambda step: looked.append((step.name, len(heap.calls))))
    assert looked == [("a", 0), ("b", 1), ("c", 2)]


def test_what_grows_meanwhile_is_not_freed() -> None:
    heap = Heap([(CPU, None, 8)])

    def grow() -> None:
        heap.blocks.append((CPU, None, 64))

    found = settle([SettlingStep("a", grow, Verdict.CYCLE)], heap.left)
    assert found == Settlement((), {CPU: Owned(72, 2)})


@given(
    st.lists(
        st.tuples(st.sampled_from([CPU, CARD]), st.sampled_from(["a", "b", "c", None]), st.integers(1, 1000)),
        max_size=20,
    )
)
def test_every_byte_is_freed_by_one_step_or_left(blocks: list[tuple[Device, str | None, int]]) -> None:
    heap = Heap([*blocks])
    found = settle([heap.step(name) for name in "abc"], heap.left)
    for device in (CPU, CARD):
        for name in "abc":
            freed = sum(one.owned.bytes for one in found.freed if (one.device, one.step) == (device, name))
            assert freed == sum(size for on, by, size in blocks if (on, by) == (device, name))
        left = found.left.get(device, Owned(0, 0))
        assert left.bytes == sum(size for on, by, size in blocks if (on, by) == (device, None))
