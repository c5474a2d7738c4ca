"""What is read of given garbage, without a collection: each part of the question decides what it says it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from cudamem_testing.cycles import explain as explaining
from cudamem_testing.cycles.draft import Question
from cudamem_testing.cycles.explain import MOST_ALIKE, explain
from cudamem_testing.cycles.memory import Memory
from cudamem_testing.cycles.results import UNREAD, Cycle
from cudamem_testing.model.stacks import Frame, Locator, Stack
from cudamem_testing.torch_api import nodes

LOCATOR = Locator("")


class Node:
    """Anything with attributes."""


class Other(Node):
    """Another class."""


def node(cls: type = Node, **fields: Any) -> Any:
    made = cls()
    made.__dict__.update(fields)
    return made


def ring(cls: type = Node, **fields: Any) -> list[object]:
    """An object that refers to itself, and what belongs to it: garbage."""
    one = node(cls, **fields)
    one.me = one
    return [one, one.__dict__, *fields.values()]


def sparse(count: int) -> torch.Tensor:
    """A tensor that only Python can read: ``count`` indices of 8 bytes and as many values of 4."""
    return torch.sparse_coo_tensor(torch.arange(count).unsqueeze(0), torch.ones(count), (count,), check_invariants=True)


def facts(cycles: Sequence[Cycle]) -> list[tuple[str, int, int]]:
    return [(cycle.chain[0], cycle.count, cycle.bytes) for cycle in cycles]


def test_where_the_cycles_of_each_part_are() -> None:
    """For parts that have a fingerprint, and whose cycles do not leave them."""
    first, second, third, plain = ring(big=torch.ones(4)), ring(big=torch.ones(4)), ring(big=torch.ones(4)), [Node()]
    left, right = node(big=torch.ones(4)), node()
    left.to, right.back = right, left
    parts = [(11, len(first)), (12, len(plain)), (13, len(second)), (0, len(third)), (14, 1), (15, 3)]
    memory = Memory(LOCATOR)
    garbage = [*first, *plain, *second, *third, left, left.__dict__, right, right.__dict__]
    explain(garbage, Question(LOCATOR, memory=memory), parts).settled(freed=False)
    (known,) = memory.parts.pop(11)
    assert (known.places[0], known.places[-1]) == (0, 0)
    assert memory.parts == {13: (known,)}
    assert memory.recognises(second, 13)
    assert not memory.recognises(ring(big=torch.ones(4), other=1)[:1], 13)
    explain(garbage, Question(LOCATOR), parts).settled(freed=False)  # nothing is kept


def test_tensors_that_only_python_reads_count_with_the_others() -> None:
    """The largest group first: 16 + 12 bytes are more than 24."""
    small, mixed = ring(Other, big=sparse(2)), ring(a=torch.ones(4), b=sparse(1))
    found = explain([*small, *mixed], Question(LOCATOR)).settled(freed=False)
    assert [sorted(tensor.bytes for tensor in cycle.tensors) for cycle in found] == [[4, 8, 16], [8, 16]]


def test_what_does_not_count_is_not_kept() -> None:
    big, other = torch.ones(4), sparse(1)
    garbage = ring(big=big, other=other)
    asked: list[int] = []

    def counts(device: str, address: int) -> bool:
        asked.append(address)
        return address == big.data_ptr()

    (cycle,) = explain(garbage, Question(LOCATOR, blocks=None, counts=counts)).settled(freed=False)
    assert [(tensor.name, tensor.bytes) for tensor in cycle.tensors] == [("big", 16)]
    assert {*asked} == {big.data_ptr(), other._indices().data_ptr(), other._values().data_ptr()}
    other_device = Question(LOCATOR, blocks=None, device=lambda device: device == "cuda:0")
    assert explain(garbage, other_device).settled(freed=False) == []


def test_blocks_without_a_known_stack() -> None:
    big, other = torch.ones(4), torch.ones(8)
    stack = Stack((Frame("a.py", 1, "f", "project"),))

    def allocated(device: str, address: int) -> Stack | None:
        return stack if address == big.data_ptr() else None

    question = Question(LOCATOR, blocks=None, allocated=allocated, known_only=True)
    (cycle,) = explain(ring(big=big, other=other), question).settled(freed=False)
    assert [(tensor.name, tensor.stack) for tensor in cycle.tensors] == [("big", stack)]


@pytest.mark.skipif(not nodes.shows_saved(), reason="this torch does not show what autograd saved: it holds less")
@pytest.mark.parametrize(("beyond", "cuts"), [(4, 1), (5, 0)])
def test_how_far_it_reads_beyond_the_garbage(beyond: int, cuts: int) -> None:
    """Five objects are held through C++ alone: nodes of autograd, and tensors behind them."""
    x = torch.ones(4, requires_grad=True)
    garbage = ring(loss=(x * 2).sum())
    cut: list[None] = []
    explain(garbage, Question(LOCATOR, beyond=beyond, cut=lambda: cut.append(None))).settled(freed=False)
    assert len(cut) == cuts


@pytest.mark.parametrize(("seconds", "read"), [(-1.0, 1), (3.5, 4), (9.0, 6)])
def test_no_further_cycle_is_read_after_some_time(monkeypatch: pytest.MonkeyPatch, seconds: float, read: int) -> None:
    """The first one is. Here each takes a second."""
    clock = [0.0]

    def hops(objects: Sequence[object]) -> Any:
        clock[0] += 0.5  # once for a cycle, and once for the way to its tensor
        return real(objects)

    real = explaining.hops
    monkeypatch.setattr(explaining, "hops", hops)
    monkeypatch.setattr(explaining, "thread_time", lambda: clock[0])
    kinds = [type(f"Node{number}", (Node,), {}) for number in range(6)]
    garbage = [obj for cls in kinds for obj in ring(cls, big=torch.ones(4))]
    stopped: list[None] = []
    question = Question(LOCATOR, seconds=seconds, stopped=lambda: stopped.append(None), draws=False)
    found = facts(explain(garbage, question).settled(freed=False))
    left = [one for one in found if one[0] == UNREAD]
    assert (len(found) - len(left), left) == (read, [(UNREAD, 6 - read, 16 * (6 - read))] if read < 6 else [])
    assert len(stopped) == (read < 6)


def test_cycles_alike_are_read_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def hops(objects: Sequence[object]) -> Any:
        read[-1] += 1
        return real(objects)

    real = explaining.hops
    monkeypatch.setattr(explaining, "hops", hops)
    for count in (MOST_ALIKE - 1, MOST_ALIKE, MOST_ALIKE + 9):
        read.append(0)
        garbage = [obj for _ in range(count) for obj in ring(big=torch.ones(4))]
        found = explain(garbage, Question(LOCATOR)).settled(freed=False)
        assert facts(found) == [("Node.__dict__['me']", count, 16 * count)]
    assert read[0] < read[1] == read[2]


def test_cycles_of_other_classes_are_not_alike() -> None:
    """Also where they begin alike, and keep as much."""
    garbage: list[object] = []
    for number in range(MOST_ALIKE + 2):
        first, other = node(big=torch.ones(4)), node(Other if number > MOST_ALIKE else Node)
        first.next, other.back = other, first
        garbage += [first, first.__dict__, other, other.__dict__, first.big]
    chains = [cycle.chain for cycle in explain(garbage, Question(LOCATOR)).settled(freed=False)]
    assert sorted(chains) == [
        ("Node.__dict__['next']", "Node.__dict__['back']", "Node"),
        ("Node.__dict__['next']", "Other.__dict__['back']", "Node"),
    ]


def test_tensors_of_unknown_lines_get_their_own_names() -> None:
    """Those of known lines are named like the ones of the first cycle with these lines."""
    for stack, second in ((None, "b"), (Stack((Frame("a.py", 1, "f", "project"),)), "a")):
        question = Question(
            LOCATOR, blocks=None, memory=Memory(LOCATOR), allocated=lambda device, address, stack=stack: stack
        )
        names = [
            tensor.name
            for name in "ab"
            for cycle in explain(ring(**{name: torch.ones(4)}), question).settled(freed=False)
            for tensor in cycle.tensors
        ]
        assert names == ["a", second]
