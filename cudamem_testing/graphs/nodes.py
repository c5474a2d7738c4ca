"""Nodes of a captured graph, and their texts, which show a lost fusion or an extra copy.

Three levels: ``kinds`` counts kernels, copies and fills in their order; ``operators`` says which operator launched how
many of them; ``kernels`` names kernels, which differ between cards. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from cudamem_testing.model.sizes import count
from cudamem_testing.show.diagrams import Arrow, Box, Diagram

Level = Literal["kinds", "operators", "kernels"]
LEVELS: tuple[Level, ...] = ("kinds", "operators", "kernels")
NO_COUNTS = "capture with operators=True, and have NVIDIA's cuda-bindings installed, which count nodes"
NO_OPERATORS = "which operator launched a node was not recorded during the capture: {}"


class LevelError(ValueError):
    """An unknown level, or one that this graph does not have; the text says why."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node: ``kernel``, ``copy``, ``memset``, ``host`` or another kind of CUDA's, in words.

    ``name`` is the kernel's name from the driver; ``operator`` launched it, empty if that was not recorded.
    """

    kind: str
    name: str = ""
    operator: str = ""


@dataclass(frozen=True, slots=True)
class NodeList:
    """All nodes, and the edges between their places.

    ``without_operators`` says why the level ``operators`` is refused; it is empty if operators were recorded.
    """

    nodes: tuple[Node, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    without_operators: str = "not requested"

    def count(self, kind: str) -> int:
        """How many nodes of one kind there are."""
        return sum(1 for node in self.nodes if node.kind == kind)

    def text(self, level: Level = "kinds", *, edges: bool = False) -> str:
        """One line for each run of equal nodes, ``empty graph`` without any; with ``edges`` each node has a line.

        Raises:
            LevelError: for an unknown level, and for ``operators`` if they were not recorded.
        """
        names = [self._name(node, level) for node in self.nodes]
        if not names:
            return "empty graph"
        if edges:
            before: dict[int, list[int]] = {}
            for source, target in self.edges:
                before.setdefault(target, []).append(source)
            return "\n".join(_line(at, name, before.get(at, ())) for at, name in enumerate(names))
        return "\n".join(_repeated(name, len([*run])) for name, run in groupby(names))

    def diagram(self, level: Level = "kinds") -> Diagram:
        """The graph as boxes and arrows, for DOT and as a page."""
        boxes = tuple(Box(self._name(node, level), node.kind, node.name) for node in self.nodes)
        return Diagram(boxes, tuple(Arrow(*edge) for edge in self.edges), "Captured graph")

    def _name(self, node: Node, level: Level) -> str:
        if level == "kinds":
            return node.kind
        if level == "kernels":
            return f"{node.kind} {short_name(node.name)}" if node.name else node.kind
        if level != "operators":
            raise LevelError(f"level {level!r} is not known: write {', '.join(LEVELS)}")
        if self.without_operators:
            raise LevelError(NO_OPERATORS.format(self.without_operators))
        return f"{node.operator or '(no operator)'}  {node.kind}"

    def __str__(self) -> str:
        return self.text()


def ordered(captured: NodeList) -> NodeList:
    """Sort captured nodes so that each comes after those that it waits for.

    Of several nodes that could come next, the one captured first does (Kahn's algorithm with a heap), so the order
    is that of the capture if that is a valid order.

    Raises:
        ValueError: if the edges form a cycle.
    """
    found, arrows = captured.nodes, sorted({*captured.edges})
    waiting = [0] * len(found)
    followers: dict[int, list[int]] = {}
    for source, target in arrows:
        waiting[target] += 1
        followers.setdefault(source, []).append(target)
    ready = [at for at, number in enumerate(waiting) if not number]
    order: list[int] = []
    while ready:
        at = heapq.heappop(ready)
        order.append(at)
        for follower in followers.get(at, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, follower)
    if len(order) != len(found):
        raise ValueError("the edges of the graph form a cycle")
    place = {at: number for number, at in enumerate(order)}
    moved = sorted((place[source], place[target]) for source, target in arrows)
    return NodeList(tuple(found[at] for at in order), tuple(moved), captured.without_operators)


def with_operators(captured: NodeList, launched: Sequence[tuple[str, int]]) -> NodeList:
    """Captured nodes, each with the operator that launched it; ``launched`` counts nodes by operator."""
    if not launched:
        return replace(captured, without_operators=NO_COUNTS)
    operators = [name for name, number in launched for _ in range(number)]
    if len(operators) != len(captured.nodes):
        told = f"operators launched {len(operators)} of {count(len(captured.nodes), 'node')}"
        return replace(captured, without_operators=told)
    nodes = tuple(replace(node, operator=name) for node, name in zip(captured.nodes, operators, strict=True))
    return replace(captured, nodes=nodes, without_operators="")


def short_name(kernel: str) -> str:
    """A kernel's name without namespaces, template arguments and parameters: ``vectorized_elementwise_kernel``."""
    flat, depth = [], 0
    for character in kernel.replace("(anonymous namespace)", "").replace("{lambda", "<").replace("->", ""):
        depth += (character in "<(") - (character in ">)")
        if depth <= 0 and character not in "<>()":
            flat.append(character)
        elif character == "(" and depth == 1:
            break
    words = re.sub(r"\s+", " ", "".join(flat)).strip().split(" ")[-1]
    return words.rpartition("::")[2] or kernel


def _repeated(name: str, times: int) -> str:
    return name if times == 1 else f"{name} x{times}"


def _line(at: int, name: str, before: Iterable[int]) -> str:
    sources = ", ".join(map(str, sorted(before)))
    return f"{at}: {name}" + (f"  after {sources}" if sources else "")
