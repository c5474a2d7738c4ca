"""The search's graph, the index, and the search itself against networkx as oracle."""

from __future__ import annotations

import gc
from itertools import pairwise
from random import Random
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.references import Reach
from cudamem_testing.objects.clock import Clock
from cudamem_testing.objects.graph import CHAIN_END, Chain, Graph, Reached, cut
from cudamem_testing.objects.index import NARROW, Heap, ReferrerIndex
from cudamem_testing.objects.search import find_object_holders

EDGES = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), max_size=60)


def _graph(edges: list[tuple[int, int]]) -> tuple[Graph, Any]:
    graph, oracle = Graph(), nx.DiGraph()
    graph.objects.update({number: number for number in range(15)})
    oracle.add_nodes_from(range(15))
    for holder, held in edges:
        graph.add(holder, held)
        oracle.add_edge(holder, held)
    return graph, oracle


@given(edges=EDGES, roots=st.sets(st.integers(0, 14), min_size=1, max_size=4))
def test_distances_and_chains(edges: list[tuple[int, int]], roots: set[int]) -> None:
    graph, oracle = _graph(edges)
    reached = graph.reach([(0, root) for root in sorted(roots)], [])
    expected = nx.multi_source_dijkstra_path_length(oracle, roots)
    assert reached.distance == expected
    for end, distance in expected.items():
        chain = reached.chain(end)
        assert len(chain.head) + len(chain.tail) + chain.left_out == distance + 1
        assert chain.head[0] in roots
        assert (chain.tail or chain.head)[-1] == end
        for part in (chain.head, chain.tail):
            assert all(oracle.has_edge(*pair) for pair in pairwise(part))
        if not chain.left_out and chain.tail:
            assert oracle.has_edge(chain.head[-1], chain.tail[0])


def _line(reached: Reached, *ids: int, root: bool = True) -> None:
    """Record a chain; without ``root`` its first object is known already."""
    for distance, one in enumerate(ids):
        if root or distance:
            reached.add(one, distance, 0, ids[distance - 1] if distance else None, None)


def test_a_long_chain_keeps_both_ends() -> None:
    reached = Reached()
    _line(reached, *range(60))
    assert reached.chain(59) == Chain(tuple(range(24)), 12, tuple(range(36, 60)))
    assert reached.chain(30) == Chain(tuple(range(24)), 0, tuple(range(24, 31)))
    assert reached.chain(23) == Chain(tuple(range(24)), 0, ())
    assert [reached.end(one) for one in (0, 1, 9)] == [[0], [0, 1], [7, 8, 9]]


def test_the_order_of_roots_decides_between_chains() -> None:
    """The known chain is 1, 11, 9; another leads from 2 over 12 to 9, and 3 is a root that refers to 9."""
    reached = Reached()
    for ids in ((1, 11, 9), (2, 12), (3,)):
        _line(reached, *ids)
    for order, is_before in (({1: 5, 2: 4}, True), ({1: 4, 2: 5}, False), ({1: 4, 2: 4}, False), ({2: -1}, True)):
        assert reached.is_before(12, 9, order, lambda ids: [("", str(ids))]) == is_before
    assert not reached.is_before(3, 9, {3: -1}, lambda ids: [])
    assert not reached.is_before(12, 1, {2: -1}, lambda ids: [])  # a root has no other chain


def test_labels_decide_between_chains_that_part() -> None:
    """Those of the last objects before they part, and of all behind."""
    reached, asked = Reached(), list[list[int]]()

    def words(ids: object) -> list[tuple[str, str]]:
        asked.append([*ids])  # type: ignore[call-overload]
        return [("", str(one)) for one in asked[-1]]

    _line(reached, 0, 1, 2, 3, 4, 6, 8, 9)
    _line(reached, 4, 5, 7, root=False)
    assert reached.is_before(7, 9, {}, words)
    assert asked == [[2, 3, 4, 5, 7, 9], [2, 3, 4, 6, 8, 9]]
    reached.previous[9] = 7
    assert not reached.is_before(8, 9, {}, words)


@pytest.mark.parametrize(("length", "is_before"), [(23, True), (24, False)])
def test_chains_that_part_far_back_are_equal(length: int, is_before: bool) -> None:
    """``length`` objects lead from where they part to the one that both reach."""
    reached = Reached()
    _line(reached, 0, *range(100, 100 + length), 9)
    _line(reached, 0, *range(50, 50 + length), root=False)
    assert reached.is_before(49 + length, 9, {}, lambda ids: [("", f"{one:03}") for one in ids]) == is_before


@given(edges=EDGES, ends=st.sets(st.integers(0, 14), min_size=1, max_size=4))
def test_ancestors(edges: list[tuple[int, int]], ends: set[int]) -> None:
    graph, oracle = _graph(edges)
    assert graph.ancestors(ends) == ends.union(*(nx.ancestors(oracle, end) for end in ends))


@given(edges=EDGES, end=st.integers(0, 14))
def test_cycle_or_source(edges: list[tuple[int, int]], end: int) -> None:
    graph, oracle = _graph(edges)
    chain = graph.cycle_or_source([end])
    assert chain[-1] == end
    assert all(oracle.has_edge(*pair) for pair in pairwise(chain))
    cycles = [nx.shortest_path_length(oracle, held, end) + 1 for held in oracle[end] if nx.has_path(oracle, held, end)]
    if cycles:
        assert (chain[0], len(chain) - 1) == (end, min(cycles))
        return
    sources = [one for one in nx.ancestors(oracle, end) if oracle.in_degree(one) == 0]
    if sources:
        assert len(chain) - 1 == min(nx.shortest_path_length(oracle, source, end) for source in sources)


def test_ranks_break_ties() -> None:
    graph = Graph()
    graph.objects.update(dict.fromkeys(range(4)))
    for holder, held in [(0, 2), (1, 2), (2, 3)]:
        graph.add(holder, held)
    assert graph.reach([(3, 0), (0, 1)], []).chain(3).head == (1, 2, 3)
    assert graph.reach([(0, 0), (0, 1)], []).chain(3).head == (0, 2, 3)


def test_labels_break_ties_after_ranks() -> None:
    graph, _ = _graph([(0, 1), (0, 2), (1, 3), (2, 3)])
    assert graph.reach([(0, 0)], []).chain(3).head == (0, 1, 3)
    assert graph.reach([(0, 0)], [], lambda ids: [("", str(-one)) for one in ids]).chain(3).head == (0, 1, 3)
    assert graph.reach([(0, 0)], [], lambda ids: [("", str(9 - one)) for one in ids]).chain(3).head == (0, 2, 3)


def test_the_shortest_cycle_or_the_nearest_source() -> None:
    graph, _ = _graph([(1, 1), (2, 3), (3, 2), (4, 5), (5, 6)])
    assert [graph.cycle_or_source([one]) for one in (1, 2, 6)] == [[1, 1], [2, 3, 2], [4, 5, 6]]
    assert graph.cycle_or_source([6, 2, 1]) == [1, 1]


@given(length=st.integers(1, 40))
def test_cut(length: int) -> None:
    chain = cut(range(length))
    assert len(chain.head) + chain.left_out + len(chain.tail) == length
    assert (*chain.head, *range(len(chain.head), len(chain.head) + chain.left_out), *chain.tail) == tuple(range(length))
    assert (chain.left_out > 0) == (length > 2 * CHAIN_END)


class Node:
    """An object with any number of references."""

    def __init__(self) -> None:
        self.held: list[Node] = []


def test_index_finds_what_the_collector_finds() -> None:
    nodes = [Node() for _ in range(500)]
    for number, node in enumerate(nodes):
        node.held.append(nodes[(number * 7) % 500])
    heap: list[object] = [*nodes, *(node.held for node in nodes)]
    index = ReferrerIndex(heap, Clock(None))
    for _ in range(15):  # past the point where the index is inverted
        wanted = {id(node): node for node in nodes[:50]}
        found = {(id(holder), referent) for holder, referent in index.referrers(wanted)}
        expected = {
            (id(holder), id(referent))
            for holder in heap
            for referent in gc.get_referents(holder)
            if id(referent) in wanted
        }
        assert found == expected
        assert len(found) == 50


def test_the_heap_answers_as_its_index_does() -> None:
    """By scans of the collector's lists, then by the index; what was made since is left out."""
    nodes = [Node() for _ in range(60)]
    for number, node in enumerate(nodes):
        node.held += [nodes[(number * 7) % 60], nodes[(number * 11) % 60]]
    with CollectorPaused():
        heap = Heap(Clock(None))
        since = [{"node": nodes[0]}, [nodes[1]], (nodes[2],)]
        index = ReferrerIndex(heap.objects, Clock(None))
        for asked in (nodes[:1], nodes[:3], nodes[:NARROW], nodes, nodes[:2]):
            wanted = {id(node): node for node in asked}
            found = [(id(holder), one) for holder, one in heap.referrers(wanted) if holder is not asked]
            expected = [(id(holder), one) for holder, one in index.referrers(wanted) if holder is not asked]
            assert found == expected
            assert not {*map(id, since)}.intersection(holder for holder, _ in found)
            assert {(id(node.held), one) for node in nodes for one in map(id, node.held) if one in wanted} <= {*found}
        index.release()
        heap.release()


def test_attributes_are_found_where_their_dictionary_is_new() -> None:
    """Reading a root may make one; until then an object keeps its attributes in itself."""

    class Holder:
        held: object

    target = Node()
    for scans in (8, 0):
        holder = Holder()
        holder.held = target
        with CollectorPaused():
            heap = Heap(Clock(None))
            heap._scans = scans  # 0: the index answers
            assert vars(holder) == {"held": target}
            found = [holder for holder, _ in heap.referrers({id(target): target})]
            assert any(one is holder or one is vars(holder) for one in found)
            heap.release()


def test_equally_long_chains_follow_the_order_of_holders() -> None:
    target = Node()
    left, right = [target], [target]
    for order in ((left, right), (right, left)):
        holder = [*order]
        graph = Graph()
        graph.objects.update((id(one), one) for one in (holder, left, right, target))
        for inner in (right, left):
            graph.add(id(inner), id(target))
            graph.add(id(holder), id(inner))
        assert graph.reach([(0, id(holder))], []).chain(id(target)).head[1] == id(order[0])


ROOT: list[Node] = []


@pytest.mark.slow
@settings(max_examples=5)
@given(seed=st.integers(0, 10**6))
def test_search_of_random_objects(seed: int) -> None:
    """A forest, cycles and orphans of 200 objects: exactly the reachable ones are found, by shortest chains."""
    random = Random(seed)
    size = 200
    oracle = nx.DiGraph()
    oracle.add_nodes_from(range(size))
    oracle.add_edges_from((random.randrange(size), random.randrange(size)) for _ in range(random.randrange(400)))
    roots = random.sample(range(size), 5)
    nodes = [Node() for _ in range(size)]
    try:
        for holder, held in oracle.edges:
            nodes[holder].held.append(nodes[held])
        ROOT.extend(nodes[root] for root in roots)
        results = find_object_holders(nodes, budget_seconds=60)
        expected = nx.multi_source_dijkstra_path_length(oracle, roots)
        for number, result in enumerate(results):
            assert (result.reach is Reach.REACHABLE) == (number in expected)
            if number in expected and result.path is not None and expected[number] < 4:
                assert result.path.text.startswith(f"module {__name__} > ROOT (list)[")
                assert result.path.text.count("Node.held") == expected[number]
            elif number not in expected:
                assert (result.reach is Reach.UNREACHABLE) == (oracle.in_degree(number) > 0)
    finally:
        ROOT.clear()
        for node in nodes:
            node.held.clear()
