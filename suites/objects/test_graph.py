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
from cudamem_testing.objects.graph import CHAIN_END, Graph, cut
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
