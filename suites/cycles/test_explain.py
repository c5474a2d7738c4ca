"""What is said of a cycle: exact texts, and random objects with planted cycles against networkx."""

from __future__ import annotations

import functools
import gc
import inspect
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing import reference_cycles
from cudamem_testing.cycles.draft import Question
from cudamem_testing.cycles.explain import explain
from cudamem_testing.model.stacks import Locator

pytestmark = pytest.mark.usefixtures("small_heap")


class Node:
    """Anything with attributes."""

    def step(self) -> None:
        """Something to call."""


class Slotted:
    __slots__ = ("big", "me")


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 8, bias=False))
        self.hook = lambda: self


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.y = x.square()
        return ctx.y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.y


def node(**fields: Any) -> Node:
    made = Node()
    made.__dict__.update(fields)
    return made


def own_attribute() -> None:
    one = node(big=torch.ones(256))
    one.me = one


def through_a_list() -> None:
    one = node()
    one.items = [0, {"back": one, "big": torch.ones(256)}]


def through_slots() -> None:
    one = Slotted()
    one.me, one.big = one, torch.ones(256)


def own_method() -> None:
    one = node(big=torch.ones(256))
    one.fn = one.step


def through_a_partial() -> None:
    one = node(big=torch.ones(256))
    one.fn = functools.partial(print, 1, one)


def recursive_function() -> None:
    big = torch.ones(256)

    def recurse() -> Any:
        return recurse, big


def tensor_on_itself() -> None:
    one: Any = torch.ones(256)
    one.me = one


def output_on_the_context() -> None:
    Square.apply(torch.ones(256, requires_grad=True))


def local_class() -> None:
    class Local:
        big = torch.ones(256)


def weak_callback() -> None:
    one = node(big=torch.ones(256))
    one.ref = weakref.ref(Node, lambda _: one)


def forward_hook() -> None:
    linear = torch.nn.Linear(256, 1, bias=False)
    linear.register_forward_hook(lambda *_: linear)


def two_rings_in_a_row() -> None:
    outer, inner = node(), node(big=torch.ones(256))
    outer.me, inner.me = outer, inner
    outer.inner = inner


def error_in_a_local() -> None:
    big = torch.ones(256)
    try:
        raise ValueError(big.numel())
    except ValueError as error:
        last = error  # noqa: F841 - the fault


KIB = "keeps 1.0 KiB in 1 tensor: "
PARAMETERS = "layer.0.weight float32[512, 256]", "layer.1.weight float32[8, 512]", "layer.0.bias float32[512]"
TEXTS = [
    (
        Encoder,
        [
            "Encoder.__dict__['hook'] -> function <lambda> -> __closure__[0] -> cell -> Encoder",
            "keeps 530.0 KiB in 3 tensors: " + ", ".join(PARAMETERS),
        ],
    ),
    (own_attribute, ["Node.__dict__['me'] -> Node", KIB + "big float32[256]"]),
    (
        through_a_list,
        ["Node.__dict__['items'] -> list[1] -> dict['back'] -> Node", KIB + "['big'] float32[256]"],
    ),
    (through_slots, ["Slotted.me -> Slotted", KIB + "big float32[256]"]),
    (own_method, ["Node.__dict__['fn'] -> method Node.step -> __self__ -> Node", KIB + "big float32[256]"]),
    (through_a_partial, ["Node.__dict__['fn'] -> partial.args[1] -> Node", KIB + "big float32[256]"]),
    (recursive_function, ["function recurse -> __closure__[1] -> cell -> function recurse", KIB + "big float32[256]"]),
    (tensor_on_itself, ["Tensor.__dict__['me'] -> Tensor", KIB + "me float32[256]"]),
    (
        output_on_the_context,
        [
            "SquareBackward.__dict__['y'] -> Tensor.grad_fn[SquareBackward] -> SquareBackward",
            "keeps 2.0 KiB in 2 tensors: y float32[256], next[AccumulateGrad].variable float32[256]",
        ],
    ),
    (local_class, ["class Local -> __mro__ -> class Local", KIB + "big float32[256]"]),
    (
        weak_callback,
        [
            "Node.__dict__['ref'] -> weakref.__callback__ -> function <lambda> -> __closure__[0] -> cell -> Node",
            KIB + "big float32[256]",
        ],
    ),
    (
        forward_hook,
        ["Linear -> hook 0 -> function <lambda> -> __closure__[0] -> cell -> Linear", KIB + "weight float32[1, 256]"],
    ),
    (two_rings_in_a_row, ["Node.__dict__['me'] -> Node", KIB + "inner.big float32[256]"]),
    (
        error_in_a_local,
        [
            "ValueError.__traceback__ -> traceback.tb_frame -> frame error_in_a_local -> local 'last'",
            "  -> ValueError",
            KIB + "big float32[256]",
        ],
    ),
]


@pytest.mark.parametrize(("make", "lines"), TEXTS, ids=[make.__name__ for make, _ in TEXTS])
def test_texts(make: Callable[[], object], lines: list[str]) -> None:
    with reference_cycles() as cycles:
        make()
    text = re.sub(r"hook \d+", "hook 0", cycles.text)
    assert text.splitlines() == lines
    assert all(len(cycle.text.splitlines()) <= 10 for cycle in cycles.found)


def test_the_line_that_closes_it() -> None:
    with reference_cycles() as cycles:
        Encoder()
    source, first = inspect.getsourcelines(Encoder)
    number = first + next(place for place, line in enumerate(source) if "self.hook" in line)
    assert (cycles.found[0].closed_by or "").endswith(f"test_explain.py:{number}: self.hook = lambda: self")
    with reference_cycles() as cycles:
        through_slots()
    assert cycles.found[0].closed_by is None


def test_plain_objects_are_the_projects_helpers_the_librarys() -> None:
    with reference_cycles() as cycles:
        own_attribute()
        linear: Any = torch.nn.Linear(4, 4)
        linear.me = linear
        del linear
        tensor_on_itself()
        torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4)))
    made = {cycle.signature.partition(" ")[0]: cycle.project for cycle in cycles.found}
    assert {name for name, project in made.items() if project} == {
        f"{Node.__module__}.Node",
        "torch.nn.modules.linear.Linear",
        "torch.Tensor",
    }
    assert [name for name, project in made.items() if not project]


WRAPPED = """
import torch

class Ensemble(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(256))
        self.step_all = torch.vmap(self.step)

    def step(self, x):
        return x
"""


def test_a_library_whose_method_torch_wraps_made_the_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    file = f"{Path(torch.__file__).parents[1]}/ensembles/nn.py"
    module = types.ModuleType("ensembles.nn")
    module.__file__ = file
    monkeypatch.setitem(sys.modules, "ensembles.nn", module)
    exec(compile(WRAPPED, file, "exec"), module.__dict__)
    with reference_cycles() as cycles:
        module.Ensemble()
    (cycle,) = cycles.found
    assert (cycle.project, cycle.origin.library) == (False, "ensembles")
    with reference_cycles() as cycles:
        torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4)))
    assert {cycle.origin.library for cycle in cycles.found} == {"torch"}


def test_what_finalizers_break_is_read_before_they_run() -> None:
    ran: list[str] = []

    def steps(held: Node) -> Iterator[Node]:
        try:
            yield held
        finally:
            ran.append("generator")

    async def work(held: Node) -> Node:
        return held

    class Closes(Node):
        def __del__(self) -> None:
            ran.append("__del__")
            self.me = self.big = None

    def forgotten() -> None:
        one = node(big=torch.ones(256))
        one.work = work(one)  # type: ignore[attr-defined]
        del one
        gc.collect()

    with reference_cycles() as cycles:
        one = node(big=torch.ones(256))
        one.steps = steps(one)  # type: ignore[attr-defined]
        next(one.steps)
        del one
        assert ran == []
    assert [cycle.chain for cycle in cycles.found] == [
        ("Node.__dict__['steps']", "generator steps", "local 'held'", "Node")
    ]
    with reference_cycles() as cycles:
        one = node(big=torch.ones(256))
        one.steps = steps(one)  # type: ignore[attr-defined]
        del one
    assert [(cycle.chain, cycle.bytes) for cycle in cycles.found] == [
        (("Node.__dict__['steps']", "generator steps", "local 'held'", "Node"), 1024)
    ]
    with reference_cycles() as cycles, pytest.warns(RuntimeWarning, match="never awaited"):
        forgotten()
    assert [cycle.chain for cycle in cycles.found] == [
        ("Node.__dict__['work']", "coroutine work", "local 'held'", "Node")
    ]
    with reference_cycles() as cycles:
        closes: Any = Closes()
        closes.me, closes.big = closes, torch.ones(256)
        del closes
    assert [(cycle.chain, cycle.bytes) for cycle in cycles.found] == [(("Closes.__dict__['me']", "Closes"), 1024)]
    assert ran == ["generator", "__del__"]


def test_a_tensor_that_lives_on_is_not_counted() -> None:
    kept = torch.ones(512)
    with reference_cycles() as cycles:
        one = node(big=torch.ones(256), shared=kept, view=kept[:3])
        one.me = one
        del one
    assert [(tensor.name, tensor.bytes) for tensor in cycles.found[0].tensors] == [("big", 1024)]
    with reference_cycles() as cycles:
        one = node(shared=kept)
        one.me = one
        del one
    cycles.assert_none()
    assert kept.sum() == 512


def test_equal_cycles_are_one() -> None:
    with reference_cycles() as cycles:
        for _ in range(60):
            own_attribute()
    (cycle,) = cycles.found
    assert (cycle.count, cycle.bytes, len(cycle.tensors)) == (60, 60 * 1024, 60)
    assert cycle.text.splitlines()[-1] == "found 60 times"


def test_cycles_that_there_is_no_time_for_are_counted() -> None:
    made = [node(big=torch.ones(size)) for size in (8, 4, 2, 1)]
    for one in made:
        one.me = one
    stopped: list[None] = []
    question = Question(Locator(inspect.getfile(Node)), seconds=0, stopped=lambda: stopped.append(None))
    read, rest = explain([part for one in made for part in (one, vars(one), one.big)], question).settled(freed=False)
    assert (read.bytes, read.signature, read.count) == (32, "suites.cycles.test_explain.Node .me", 1)
    assert (rest.bytes, rest.signature, rest.count, len(stopped)) == (16 + 8 + 4, "(objects not examined)", 3, 1)


def test_many_cycles_towards_one_tensor() -> None:
    with reference_cycles() as cycles:
        big = torch.ones(256)
        for name in "ab":
            one = node(**{name: big})
            setattr(one, f"me_{name}", one)
        del big, one
    assert cycles.text == "Node.__dict__['me_b'] -> Node\nkeeps 1.0 KiB in 1 tensor: b float32[256]"


@pytest.mark.parametrize(("size", "more"), [(48, None), (49, 1), (5000, 4952)])
def test_a_long_cycle_is_cut(size: int, more: int | None) -> None:
    with reference_cycles() as cycles:
        first: list[object] = []
        last = first
        for _ in range(size - 1):
            last.append([])
            last = last[0]  # type: ignore[assignment]
        last.append(first)
        first.append(torch.ones(256))
        del first, last
    (cycle,) = cycles.found
    middle = ("list[0]",) if more is None else ("list", f"... {more} more object{'s' if more > 1 else ''} ...")
    assert cycle.chain == (*["list[0]"] * 23, *middle, *["list[0]"] * 24, "list")
    lines = cycle.text.splitlines()
    assert len(lines) <= 10
    assert max(map(len, lines[:-1])) <= 104
    assert lines[2] == ("  ... 3 more lines ..." if more is None else f"  ... 3 more lines, {middle[1][4:]}")


def test_instances_of_a_class() -> None:
    with reference_cycles(kind=Slotted) as cycles:
        one = Slotted()
        one.me = [one]
        del one
    assert cycles.text == "Slotted.me -> list[0] -> Slotted\nkeeps no tensor"


class Hostile(type):
    def __hash__(cls) -> int:
        raise RuntimeError("asked")

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("asked")


class Rude(metaclass=Hostile):
    def __repr__(self) -> str:
        raise RuntimeError("asked")

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("asked")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("asked")

    __hash__ = None  # type: ignore[assignment]


def test_no_code_of_the_user_runs() -> None:
    with reference_cycles() as cycles:
        one = Rude()
        object.__setattr__(one, "me", one)
        object.__setattr__(one, "big", torch.ones(256))
        del one
    assert cycles.text == "Rude.__dict__['me'] -> Rude\nkeeps 1.0 KiB in 1 tensor: big float32[256]"


@given(st.integers(2, 12), st.data())
def test_planted_cycles(size: int, data: st.DataObject) -> None:
    """Random objects: each tensor that is in or behind a cycle is kept by one, and by nothing else."""
    pairs = data.draw(st.sets(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=2 * size))
    holding = data.draw(st.sets(st.integers(0, size - 1), max_size=4))
    made = nx.DiGraph(pairs)
    made.add_nodes_from(range(size))
    cyclic = {one for part in nx.strongly_connected_components(made) for one in part if len(part) > 1}
    cyclic |= {one for one in range(size) if made.has_edge(one, one)}
    behind = cyclic | {held for one in cyclic for held in nx.descendants(made, one)}
    nodes = [node() for _ in range(size)]
    for holder, held in pairs:
        setattr(nodes[holder], f"to_{held}", nodes[held])
    for one in holding:
        nodes[one].big = torch.ones(16 + one)
    question = Question(Locator(""))
    found = explain([*nodes, *(one.__dict__ for one in nodes), *(nodes[one].big for one in holding)], question)
    settled = found.settled(freed=False)
    named = {
        tensor.bytes // 4 - 16
        for cycle in settled
        if cycle.chain[0] != "(through C++, where it cannot be followed)"
        for tensor in cycle.tensors
    }
    assert named == holding & behind
    for cycle in settled:
        for piece, following in zip(cycle.chain, cycle.chain[1:], strict=False):
            match = re.fullmatch(r"Node\.__dict__\['to_(\d+)'\]", piece)
            assert (match is None) == piece.startswith("(")
            assert following.startswith("Node")
    for one in nodes:
        one.__dict__.clear()
