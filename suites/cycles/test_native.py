"""Components, keepers and shortest cycles of graphs of objects, against networkx; storages; entries of containers."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.cycles.native import NONE, Blocks, Graph, Storages, Towards, items_in
from cudamem_testing.torch_api import tensors

Pairs = list[tuple[int, int]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, Pairs]:
    size = draw(st.integers(1, 14))
    one = st.integers(0, size - 1)
    return size, draw(st.lists(st.tuples(one, one), max_size=3 * size))


def searched(size: int, pairs: Pairs, targets: list[int] | None = None) -> Graph:
    graph = Graph([object() for _ in range(size)])
    for holder, held in pairs:
        graph.refer(holder, held)
    graph.search(None, [*range(size)] if targets is None else targets)
    return graph


def oracle(size: int, pairs: Pairs) -> nx.DiGraph:
    made = nx.DiGraph(pairs)
    made.add_nodes_from(range(size))
    return made


def is_cyclic(made: nx.DiGraph, part: set[int]) -> bool:
    return len(part) > 1 or any(made.has_edge(one, one) for one in part)


@given(graphs())
def test_source_components_keep_all_that_any_cycle_reaches(given: tuple[int, Pairs]) -> None:
    theirs = oracle(*given)
    parts = [part for part in nx.strongly_connected_components(theirs) if is_cyclic(theirs, part)]
    reach = [part | nx.descendants(theirs, min(part)) for part in parts]
    with searched(*given) as graph:
        keeper = {one: number for one in range(given[0]) if (number := graph.keeper(one)) != NONE}
        assert {*keeper} == {one for some in reach for one in some}
        for one, number in keeper.items():
            own = {*graph.component(number)}
            assert own in parts
            assert one in reach[parts.index(own)]
            assert [part for part in parts if part != own and nx.has_path(theirs, min(part), min(own))] == [], (
                "a source"
            )
            # What it keeps is reached through what it keeps.
            region = [other for other, of in keeper.items() if of == number]
            assert nx.has_path(theirs.subgraph(region), min(own), one)
            assert graph.size(number) == len(region)
            assert graph.hanging(number) == sum(part <= {*region} for part in parts) - 1


@given(graphs(), st.data())
def test_only_what_leads_to_targets_is_searched(given: tuple[int, Pairs], data: st.DataObject) -> None:
    targets = data.draw(st.lists(st.integers(0, given[0] - 1), min_size=1))
    theirs = oracle(*given)
    leading = {*targets}.union(*(nx.ancestors(theirs, one) for one in targets))
    with searched(*given, targets) as graph:
        kept = [one for one in range(given[0]) if graph.keeper(one) != NONE]
    cyclic = [part for part in nx.strongly_connected_components(theirs) if is_cyclic(theirs, part) and part <= leading]
    behind = {other for part in cyclic for other in part | nx.descendants(theirs, min(part))}
    assert {*kept} == behind & leading


@given(graphs())
def test_shortest_cycles_and_chains(given: tuple[int, Pairs]) -> None:
    size, pairs = given
    theirs = oracle(size, pairs)
    with searched(size, pairs) as graph:
        for target in (one for one in range(size) if graph.keeper(one) != NONE):
            number = graph.keeper(target)
            own = graph.component(number)
            ours = graph.cycle(target)
            assert all(pair in pairs for pair in zip(ours, [*ours[1:], ours[0]], strict=True))
            region = theirs.subgraph(one for one in range(size) if graph.keeper(one) == number)
            lengths = {one: nx.shortest_path_length(region, one, target) for one in own}
            assert lengths[ours[0]] == min(lengths.values()), "its start is the nearest"
            back = [
                nx.shortest_path_length(theirs, held, ours[0]) + 1
                for held in theirs[ours[0]]
                if nx.has_path(theirs, held, ours[0])
            ]
            assert len(ours) == min(back)
            chain = graph.chains(number, own, [target])[target]
            assert (chain[0] in own, chain[-1], len(chain) - 1) == (True, target, min(lengths.values()))
            assert all(pair in pairs for pair in itertools.pairwise(chain))


def test_long_rings_do_not_recurse() -> None:
    size = 200_000
    with searched(size, [(one, (one + 1) % size) for one in range(size)], [0]) as graph:
        assert graph.size(graph.keeper(0)) == size
        assert len(graph.cycle(0)) == size


def test_references_among_objects() -> None:
    first: list[object] = []
    second = [first, first]
    first.append(second)
    with Graph([first, second, 3]) as graph:
        assert graph.classes == [list, int]
        assert graph.instances(lambda cls: cls is list) == [0, 1]
        assert (graph.find(second), graph.find([])) == (1, NONE)
        assert graph.add("added") == 3
        graph.search(None, [0])
        assert graph.cycle(0) == [0, 1]
        assert graph.keeper(2) == NONE
    first.clear()


def test_the_start_of_a_cycle_is_no_inner_object() -> None:
    one: list[object] = []
    inner = {"one": one}
    one.append((inner, 3.5))
    target = inner["target"] = [4.5]
    with Graph([inner, one, one[0], target]) as graph:
        graph.search(None, [3])
        assert graph.cycle(3) == [1, 2, 0], "the list, although the dictionary is nearer"
    one.clear()


def read(given: list[Any], **options: Any) -> tuple[list[tuple[int, int]], Any, list[tuple[int, int]]]:
    """Place and bytes of each storage, what is left to Python, and the gradients' parameters."""
    graph = Graph([*given])
    offset = tensors.implementation_offset()
    assert offset is not None
    storages = Storages(graph, Blocks(), offset, torch.nn.Parameter)
    others = storages.read(graph, [*range(len(given))], **options)
    items = [(item.place, item.bytes) for item in storages.items(0, storages.count)]
    with graph:
        assert sum(storages.totals().values()) == sum(size for _, size in items)
    storages.settle()
    return items, others, [*storages.parameters.items()]


def test_storages_are_read_once_each() -> None:
    tensor = torch.ones(8)
    assert read([tensor[:3], tensor, torch.ones(2), torch.empty(0)]) == ([(0, 32), (2, 8)], ([], [0]), []), (
        "a view has a base"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, 2).to_sparse(),
        lambda: torch.quantize_per_channel(torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8),
        lambda: torch.empty(4, device="meta"),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_with_parts_are_left_to_python(make: Callable[[], torch.Tensor]) -> None:
    assert read([make()])[:2] == ([], ([0], []))


def test_what_has_a_history_is_followed_and_gradients_are_added() -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    result = (parameter * 2).sum()
    result.backward()  # type: ignore[no-untyped-call]
    assert read([parameter, result]) == ([(0, 16), (1, 4), (2, 16)], ([], [1]), [(2, 0)])
    assert read([parameter], gradients=False) == ([(0, 16)], ([], []), [])
    gradient = parameter.grad
    assert read([parameter, gradient]) == ([(0, 16), (1, 16)], ([], []), []), "it has a Python object"


def test_what_was_freed_is_known_without_keeping_it() -> None:
    kept, freed = torch.ones(4), torch.ones(8)
    graph = Graph([kept, freed])
    offset = tensors.implementation_offset()
    assert offset is not None
    storages = Storages(graph, Blocks(), offset, torch.nn.Parameter)
    with graph:
        storages.read(graph, [0, 1])
        graph.search(storages, [])
        assert storages.groups() == [(NONE, 2)]
    del freed
    raw, gone = storages.settle()
    assert [(item.bytes, flag) for item, flag in zip(items_in(raw), gone, strict=True)] == [(32, 1), (16, 0)]
    assert storages.settle() == (raw, gone), "a signal handler may interrupt it"


def test_entries_of_containers_by_identity() -> None:
    one, other = [1], [1]
    assert Towards([one]).pairs([other, one]) == [(1, one)]
    assert Towards([one]).pairs((one, other, one)) == [(0, one), (2, one)]
    pairs = Towards([one]).pairs(collections.OrderedDict(a=other, b=one))
    assert pairs == [("b", one)]
    assert pairs[0][1] is one
    assert one in Towards([one])
    assert other not in Towards([one])
