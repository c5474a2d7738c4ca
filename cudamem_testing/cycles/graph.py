"""Graphs of numbered objects: strongly connected components, and the objects that each cycle keeps.

An object is its position in a list, an edge a reference. All algorithms are iterative and take time in proportion to
the objects and references.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

from cudamem_testing import safe_access

Edges = Sequence[Sequence[int]]


def referents(
    objects: Sequence[object], places: Mapping[int, int], extra: Iterable[tuple[int, int]] = ()
) -> list[list[int]]:
    """The references of each object to the others: those that the collector sees, and given pairs.

    ``places`` maps the ``id()`` of each object to its number.
    """
    number, get = places.get, safe_access.reader_of(objects)
    found = [[one for one in map(number, map(id, get(obj))) if one is not None] for obj in objects]
    for holder, held in extra:
        found[holder].append(held)
    return found


def reversed_edges(edges: Edges) -> list[list[int]]:
    """The objects that refer to each object."""
    found: list[list[int]] = [[] for _ in edges]
    for holder, held in enumerate(edges):
        for one in held:
            found[one].append(holder)
    return found


def ancestors(holders: Edges, starts: Iterable[int]) -> list[int]:
    """The starts and all objects from which one of them is reached, in ascending order."""
    inside = bytearray(len(holders))
    waiting = [*starts]
    for one in waiting:
        inside[one] = 1
    while waiting:
        for holder in holders[waiting.pop()]:
            if not inside[holder]:
                inside[holder] = 1
                waiting.append(holder)
    return [one for one, flag in enumerate(inside) if flag]


def components(nodes: Iterable[int], edges: Edges) -> list[list[int]]:
    """Strongly connected components of the graph on ``nodes``, each before those that refer to it.

    R. Tarjan, "Depth-first search and linear graph algorithms" (1972), with a stack of iterators in the place of
    recursion.
    """
    nodes = [*nodes]
    size = len(edges)
    done = size + 1
    order = [done] * size  # not among the nodes: as if its component were complete
    for one in nodes:
        order[one] = 0
    low = [0] * size
    found: list[list[int]] = []
    path: list[int] = []
    work: list[tuple[int, Iterator[int]]] = []
    count = 0
    for root in nodes:
        if order[root]:
            continue
        one, rest, least = root, iter(edges[root]), count + 1
        count = order[one] = least
        path.append(one)
        while True:
            for held in rest:
                seen = order[held]
                if seen:
                    if seen < least:
                        least = seen
                else:
                    low[one] = least
                    work.append((one, rest))
                    count += 1
                    order[held] = least = count
                    path.append(held)
                    one, rest = held, iter(edges[held])
                    break
            else:
                if least == order[one]:
                    place = len(path) - 1
                    while path[place] != one:
                        place -= 1
                    component = path[place:]
                    del path[place:]
                    for member in component:
                        order[member] = done
                    found.append(component)
                if not work:
                    break
                inner = least
                one, rest = work.pop()
                least = low[one] if low[one] < inner else inner
    return found


def is_cyclic(component: Sequence[int], edges: Edges) -> bool:
    """Whether a component has a cycle: more than one member, or one that refers to itself."""
    return len(component) > 1 or component[0] in edges[component[0]]


def keepers(found: Sequence[Sequence[int]], edges: Edges) -> dict[int, int]:
    """For each object that a cycle reaches, the source component that keeps it, as its place in ``found``.

    A source component has a cycle and no other cycle reaches it: breaking any other cycle first frees nothing. Where
    several reach an object, it is the first one's. ``found`` is in the order that ``components`` gives.
    """
    keeper: dict[int, int] = {}
    reached: dict[int, int] = {}
    for place in range(len(found) - 1, -1, -1):
        component = found[place]
        owner = next((reached[one] for one in component if one in reached), None)
        if owner is None and is_cyclic(component, edges):
            owner = place
        if owner is None:
            continue
        for one in component:
            keeper[one] = owner
            for held in edges[one]:
                reached.setdefault(held, owner)
    return keeper


def shortest_cycle(start: int, edges: Edges, inside: Container[int]) -> list[int]:
    """The shortest cycle through an object, without repeating it at the end; empty where there is none.

    Breadth-first (E. F. Moore, "The shortest path through a maze", 1959).
    """
    if start in edges[start]:
        return [start]
    previous = {start: start}
    waiting = deque([start])
    while waiting:
        one = waiting.popleft()
        for held in edges[one]:
            if held == start:
                chain = [one]
                while chain[-1] != start:
                    chain.append(previous[chain[-1]])
                return chain[::-1]
            if held not in previous and held in inside:
                previous[held] = one
                waiting.append(held)
    return []


def nearest(start: int, holders: Edges, inside: Container[int], goals: Container[int]) -> int | None:
    """The nearest of the goals that reaches an object, going back through objects ``inside``."""
    seen = {start}
    waiting = deque([start])
    while waiting:
        one = waiting.popleft()
        if one in goals:
            return one
        for holder in holders[one]:
            if holder not in seen and holder in inside:
                seen.add(holder)
                waiting.append(holder)
    return None


def chains(
    starts: Sequence[int], edges: Edges, inside: Container[int], wanted: Collection[int]
) -> Mapping[int, list[int]]:
    """The shortest chain from one of the starts to each wanted object."""
    previous: dict[int, int | None] = dict.fromkeys(starts)
    waiting = deque(starts)
    missing = set(wanted).difference(previous)
    while waiting and missing:
        one = waiting.popleft()
        for held in edges[one]:
            if held not in previous and held in inside:
                previous[held] = one
                missing.discard(held)
                waiting.append(held)
    found: dict[int, list[int]] = {}
    for one in wanted:
        if one in previous:
            chain: list[int] = [one]
            while (before := previous[chain[-1]]) is not None:
                chain.append(before)
            found[one] = chain[::-1]
    return found
