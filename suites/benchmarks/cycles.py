"""What explaining garbage costs, beside torch's own graph and page on the same garbage.

``python -m suites.benchmarks.cycles``: 30,000 objects must take at most 0.3 s and a third of torch's time, and
1,000,000 at most 45 times as long as 30,000: linear is 33, and the caches hold the smaller one. Times are processor
times, which other work on the machine changes least.
"""

from __future__ import annotations

import gc
import io
import itertools
import sys
import time
from contextlib import redirect_stderr

import torch

from cudamem_testing.cycles.draft import Question
from cudamem_testing.cycles.explain import explain
from cudamem_testing.model.stacks import Locator


class Node:
    """One of a chain of nodes that refer to each other."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.before: Node | None = None
        self.after: list[Node] = []


def garbage(count: int, tensors: int = 200) -> list[object]:
    """Objects (nodes, their dictionaries and lists) in a large cycle, with tensors hanging off some nodes."""
    nodes = [Node(number) for number in range(count // 3)]
    for one, other in itertools.pairwise(nodes):
        one.after.append(other)
        other.before = one
    found: list[object] = []
    for place, node in enumerate(nodes):
        found += [node, node.__dict__, node.after]
        if place % (len(nodes) // tensors) == 0:
            node.state = torch.zeros(16)  # type: ignore[attr-defined]
            found.append(node.state)  # type: ignore[attr-defined]
    return found


def ours(objects: list[object]) -> float:
    """Seconds to explain, with text and page."""
    start = time.process_time()
    draft = explain(objects, Question(Locator("")))
    for cycle in draft.settled(freed=False):
        cycle.html()
        str(cycle)
    return time.process_time() - start


def theirs(objects: list[object]) -> float:
    """Seconds that torch takes for its graph and page."""
    from torch.utils.viz import _cycles

    start = time.process_time()
    with redirect_stderr(io.StringIO()):
        nodes = _cycles.create_graph(
            objects, context=lambda obj: None, filter=lambda obj: isinstance(obj, torch.Tensor)
        )
        _cycles.to_html(nodes)
    return time.process_time() - start


def main() -> int:
    """Measure and compare."""
    torch.set_num_threads(1)
    gc.disable()
    small = garbage(30_000)
    pairs = [(ours(small), theirs(small)) for _ in range(5)]
    mine, torchs = min(one for one, _ in pairs), min(other for _, other in pairs)
    print(f"30,000 objects: {mine:.3f} s; torch's graph and page {torchs:.3f} s ({torchs / mine:.1f} times as long)")
    del small
    gc.collect()
    large = min(ours(garbage(1_000_000)) for _ in range(2))
    print(f"1,000,000 objects: {large:.2f} s ({large / mine:.0f} times 30,000)")
    problems = [mine > 0.3, torchs < 3 * mine, large > 45 * mine]
    return int(any(problems))


if __name__ == "__main__":
    sys.exit(main())
