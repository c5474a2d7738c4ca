"""Components, keepers and shortest cycles, against networkx."""

from __future__ import annotations

import gc
import itertools

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.cycles import graph


@st.composite
def edges(draw: st.DrawFn) -> list[list[int]]:
    size = draw(st.integers(1, 14))
    return draw(st.lists(st.lists(st.integers(0, size - 1), max_size=3), min_size=size, max_size=size))


def oracle(nodes: list[int], found: list[list[int]]) -> nx.DiGraph:
    made = nx.DiGraph()
    made.add_nodes_from(nodes)
    made.add_edges_from((one, held) for one in nodes for held in found[one] if held in set(nodes))
    return made


@given(edges(), st.data())
def test_components_of_a_part_of_a_graph(found: list[list[int]], data: st.DataObject) -> None:
    nodes = sorted(data.draw(st.sets(st.integers(0, len(found) - 1))))
    theirs = oracle(nodes, found)
    ours = graph.components(nodes, found)
    assert sorted(map(sorted, ours)) == sorted(map(sorted, nx.strongly_connected_components(theirs)))
    place = {one: number for number, component in enumerate(ours) for one in component}
    assert all(place[held] <= place[one] for one, held in theirs.edges), "each comes before those that refer to it"


@given(edges())
def test_what_reaches_a_set(found: list[list[int]]) -> None:
    theirs = oracle([*range(len(found))], found)
    ours = graph.ancestors(graph.reversed_edges(found), [0])
    assert ours == sorted({0} | nx.ancestors(theirs, 0))


@given(edges())
def test_source_components_keep_all_that_any_cycle_reaches(found: list[list[int]]) -> None:
    nodes = [*range(len(found))]
    theirs = oracle(nodes, found)
    components = graph.components(nodes, found)
    keeper = graph.keepers(components, found)
    cyclic = [number for number, component in enumerate(components) if graph.is_cyclic(component, found)]
    reach = {number: {*components[number]} | nx.descendants(theirs, components[number][0]) for number in cyclic}
    assert {*keeper} == {one for number in cyclic for one in reach[number]}
    for one, number in keeper.items():
        assert one in reach[number]
        others = [other for other in cyclic if other != number and components[number][0] in reach[other]]
        assert others == [], "a keeper is a source"
        # The region of a keeper is connected: what it keeps is reached through what it keeps.
        region = theirs.subgraph([other for other, of in keeper.items() if of == number])
        assert nx.has_path(region, components[number][0], one)


@given(edges())
def test_shortest_cycle_through_a_node(found: list[list[int]]) -> None:
    nodes = [*range(len(found))]
    theirs = oracle(nodes, found)
    ours = graph.shortest_cycle(0, found, set(nodes))
    lengths = [nx.shortest_path_length(theirs, held, 0) + 1 for held in theirs[0] if nx.has_path(theirs, held, 0)]
    assert len(ours) == min(lengths, default=0)
    for one, held in zip(ours, [*ours[1:], *ours[:1]], strict=True):
        assert held in found[one]


@given(edges(), st.data())
def test_nearest_goal_and_chains(found: list[list[int]], data: st.DataObject) -> None:
    nodes = [*range(len(found))]
    theirs = oracle(nodes, found)
    goals = data.draw(st.sets(st.sampled_from(nodes), min_size=1))
    distance = {goal: nx.shortest_path_length(theirs, goal, 0) for goal in goals if nx.has_path(theirs, goal, 0)}
    nearest = graph.nearest(0, graph.reversed_edges(found), set(nodes), goals)
    assert (nearest is None) == (not distance)
    if nearest is not None:
        assert distance[nearest] == min(distance.values())
        chain = graph.chains([*goals], found, set(nodes), [0])[0]
        assert len(chain) - 1 == min(distance.values())
        assert all(held in found[one] for one, held in itertools.pairwise(chain))


def test_long_chains_do_not_recurse() -> None:
    size = 200_000
    ring = [[(one + 1) % size] for one in range(size)]
    assert len(graph.components(range(size), ring)) == 1
    assert len(graph.shortest_cycle(0, ring, range(size))) == size


def test_references_among_objects() -> None:
    first: list[object] = []
    second = [first, first]
    first.append(second)
    places = {id(first): 0, id(second): 1}
    assert graph.referents([first, second], places, [(0, 0)]) == [[1, 0], [0, 0]]
    first.clear()
    gc.collect()
