"""Known kinds of garbage: one cycle of each kind is read, the memory of the others is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cudamem_testing.cycles import explain, memory, words
from cudamem_testing.model.facts import CycleKept
from cudamem_testing.model.findings import Finding
from cudamem_testing.torch_api import nodes
from cudamem_testing.wording.findings import details
from suites.plugin.inner import KIB, Inner

Run = Callable[..., Inner]
HEAD = """
    import gc, torch

    class Node(torch.nn.Module):
        def __init__(self, grad=False):
            super().__init__()
            self.lin = torch.nn.Linear(64, 255)
            self.fns = [self.step]
            if grad:
                self.lin(torch.ones(64)).sum().backward()

        def step(self): pass

    class Other(Node):
        def step(self): pass

    def collect(makers, times=1):
        gc.collect()
        gc.disable()
        for _ in range(times):
            for make in makers:
                make()
            gc.collect()
        gc.enable()
"""
#: Bytes that one node keeps.
NODE = 65 * 255 * 4


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many objects each look was shown."""
    sizes: list[int] = []
    original = explain.explain

    def counted(garbage: list[object], question: Any, parts: Any = ()) -> Any:
        sizes.append(len(garbage))
        return original(garbage, question, parts)

    monkeypatch.setattr(explain, "explain", counted)
    return sizes


def judged(run_inner: Run, test: str, *options: str) -> list[tuple[int, str, str]]:
    """The bytes, the chain and how often each cycle of a test was found."""
    inner = run_inner(HEAD + f"\n    def test_it():\n        {test}\n", "--cudamem", *options)
    found = []
    for finding in inner.test("test_it").findings:
        times = next((line.strip() for line in details(finding) if "found" in line), "found once")
        found.append((finding.bytes or 0, (finding.holder or "").partition(".")[0], times))
    return found


def test_one_of_a_kind_is_read_and_all_are_counted(run_inner: Run, looks: list[int]) -> None:
    assert judged(run_inner, "collect([Node] * 30, 4)") == [(120 * NODE, "Node", "found 120 times")]
    assert len(looks) == 1
    assert looks[0] < 60  # one node and what hangs on it


def test_gradients_are_counted(run_inner: Run, looks: list[int]) -> None:
    assert judged(run_inner, "collect([lambda: Node(grad=True)] * 10, 2)") == [(40 * NODE, "Node", "found 20 times")]
    assert len(looks) == 1


def test_another_kind_is_read_too(run_inner: Run, looks: list[int]) -> None:
    found = judged(run_inner, "collect([Node] * 5); collect([Node, Other] * 5)")
    assert sorted(found) == [(5 * NODE, "Other", "found 5 times"), (10 * NODE, "Node", "found 10 times")]
    assert len(looks) == 2


def test_garbage_below_the_limit_is_not_looked_at(run_inner: Run, looks: list[int]) -> None:
    assert judged(run_inner, "collect([Node] * 3)", "--cudamem-ignore-below=1MiB") == []
    assert looks == []


def test_what_was_below_the_limit_counts_with_the_rest(run_inner: Run) -> None:
    """Garbage of 65 KiB three times: the second collection reaches the limit, the third is of a known kind."""
    found = judged(run_inner, "collect([Node], 3)", "--cudamem-ignore-below=100KiB")
    assert found == [(2 * NODE, "Node", "found 2 times")]


SAVES = """
        saved = []
        Node.__del__ = lambda self: saved.append(self) if not saved else None
        collect([Node] * 4, {times})
        del Node.__del__
        saved[0].fns = None
"""


def test_what_a_finalizer_saves_is_not_counted(run_inner: Run, looks: list[int]) -> None:
    """The one that was looked at was saved; the next collection tells what the others were."""
    assert judged(run_inner, SAVES.format(times=2)) == [(7 * NODE, "Node", "found 7 times")]
    assert len(looks) == 2


def test_where_all_that_was_looked_at_was_saved_the_rest_counts(run_inner: Run) -> None:
    assert judged(run_inner, SAVES.format(times=1)) == [(3 * NODE, "(objects not examined)", "found 3 times")]


def test_where_the_test_has_too_little_nothing_is_looked_at(run_inner: Run, looks: list[int]) -> None:
    """Autograd may have saved much for a tensor of the garbage, but not more than the test has."""
    make = "one = Node(); one.lin = None; one.big = torch.ones(1024, requires_grad=True).exp().sum()"
    test = (
        f"gc.collect()\n        for _ in range(3):\n            {make}\n            del one\n            gc.collect()"
    )
    assert judged(run_inner, test, "--cudamem-ignore-below=100KiB") == []
    assert looks == []


def test_memory_that_autograd_saved_counts(run_inner: Run) -> None:
    """The cycle holds a tensor of four bytes, and with it all that its history saved."""
    make = "one = Node(); one.big = torch.ones(64 * 1024, requires_grad=True).exp().sum(); one.lin = None"
    test = f"gc.collect()\n        {make}\n        del one\n        gc.collect()"
    ((size, _, _),) = judged(run_inner, test)
    assert size >= 256 * KIB


SAME = """
    import pytest

    class Owner:
        def __init__(self):
            self.state = torch.empty(2**15)

    @pytest.fixture
    def owner():
        return Owner()

    @pytest.mark.parametrize("number", range(4))
    def test_same(number, owner):
        owner.me = owner

    def test_by_another_name(owner):
        owner.other = owner

    @pytest.mark.parametrize("number", range(3))
    def test_with_history(number):
        one = Node()
        one.big = torch.ones(64 * 1024, requires_grad=True).exp().sum()
        one.history = [one]
"""


def test_garbage_alike_is_recognised_in_later_tests(
    run_inner: Run, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What differs by a name only is read again; findings are the same as those of what was read."""
    read: list[list[int]] = []  # of how many objects references are read, each time
    recognises, edges = memory.Memory.recognises, words.edges_towards

    def counted(self: memory.Memory, objects: list[object], fingerprint: int) -> bool:
        read.append([len(objects), 0])
        found = recognises(self, objects, fingerprint)
        read[-1].append(int(found))
        return found

    def counting(holder: object, towards: Any) -> Any:
        if read and len(read[-1]) == 2:
            read[-1][1] += 1
        return edges(holder, towards)

    monkeypatch.setattr(memory.Memory, "recognises", counted)
    monkeypatch.setattr(words, "edges_towards", counting)
    inner = run_inner(HEAD + SAME, "--cudamem")
    found = {test.nodeid.partition("::")[2]: test.findings for test in inner.run.tests}
    same = [found[f"test_same[{number}]"] for number in range(4)]
    assert [len(one) for one in same] == [1] * 4
    assert {(one.cause, one.bytes, str(one.fact)) for (one,) in same} == {
        (same[0][0].cause, 2**17, str(same[0][0].fact))
    }
    ((other,),) = [found["test_by_another_name"]]
    assert (other.holder, other.bytes) == ("Owner.__dict__['other'] -> Owner", 2**17)
    first = 0 if nodes.shows_saved() else 1  # what is read lacks what autograd saved there, what is counted does not
    history = [found[f"test_with_history[{number}]"] for number in range(first, 3)]
    assert {(one.cause, one.bytes, str(one.fact)) for (one,) in history} == {
        (history[0][0].cause, history[0][0].bytes, str(history[0][0].fact))
    }
    assert len(looks) == 3  # of eight tests
    assert read == [[2, 1, 1]] * 3 + [[2, 1, 0]] + [[36, 2, 1]] * 2


VARIED = """
    import pytest, random

    class Tree(torch.nn.Module):
        def __init__(self, rng, depth):
            super().__init__()
            self.lin = torch.nn.Linear(64, rng.choice((64, 128)))
            self.parts = [Tree(rng, depth - 1) for _ in range(rng.randrange(3))] if depth else []
            if rng.random() < 0.5:
                self.lin(torch.ones(64)).sum().backward()

        def step(self): pass

    def close(tree, rng):
        kind = rng.randrange(6)
        if kind == 0:
            tree.fn = tree.step
        elif kind == 1:
            setattr(tree, rng.choice("ab"), [tree])
        elif kind == 2:
            tree.table = {rng.choice("ab"): tree}
        elif kind == 3:
            tree.call = lambda: tree
        elif kind == 4:
            tree.out = tree.lin(torch.ones(8, 64)).relu()
            tree.outs = (tree,)
        else:
            tree.hook = tree.lin.register_forward_hook(lambda *_: tree)

    @pytest.mark.parametrize("number", range(30))
    def test_varied(number):
        rng = random.Random(number % 10)
        gc.collect(1)
        gc.disable()
        for _ in range(1 + number % 3):
            for _ in range(1 + number % 2):
                tree = Tree(rng, 2)
                close(tree, rng)
                del tree
            gc.collect(0)
        gc.enable()
"""


@pytest.mark.slow
@pytest.mark.skipif(not nodes.shows_saved(), reason="what is read lacks what autograd saved; what is counted does not")
def test_what_is_recognised_is_what_reading_it_tells(run_inner: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> dict[str, list[tuple[Any, ...]]]:
        inner = run_inner(HEAD + VARIED, "--cudamem")
        return {test.nodeid: sorted(map(numbers, test.findings)) for test in inner.run.tests}

    def numbers(finding: Finding) -> tuple[Any, ...]:
        """Names and positions aside: of several cycles of one cause, which stands for them may differ."""
        fact = finding.fact
        assert isinstance(fact, CycleKept)
        return finding.cause, finding.bytes, fact.count, fact.times, fact.at_once, len(fact.chain)

    original, answers = memory.Memory.recognises, []

    def counted(self: memory.Memory, objects: list[object], fingerprint: int) -> bool:
        answers.append(original(self, objects, fingerprint))
        return answers[-1]

    monkeypatch.setattr(memory.Memory, "recognises", counted)
    recognised = found()
    assert (answers.count(True), len(recognised)) == (43, 30)
    monkeypatch.setattr(memory.Memory, "recognises", lambda self, objects, fingerprint: False)
    read = found()
    assert {name: (one, read[name]) for name, one in recognised.items() if one != read[name]} == {}
