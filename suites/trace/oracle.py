"""torch's own data flow of a profile, and what differs from ours. For tests only."""

from __future__ import annotations

from typing import Any

from torch.profiler import _memory_profiler as oracle

from cudamem_testing.trace.categories import Categories
from cudamem_testing.trace.graph import DataFlow


def graph_of(prof: Any) -> Any:
    """What torch makes of a finished profile.

    Raises:
        AssertionError: when torch's validation gives the trace up.
    """
    return oracle.DataFlowGraph(oracle.OpTree(prof.profiler.kineto_results))


def differences(flow: DataFlow, graph: Any) -> list[str]:
    """Every node whose name, versions or frees differ; empty when both say the same."""
    found = []
    if len(flow.nodes) != len(graph.flow_nodes):
        found.append(f"{len(flow.nodes)} nodes, torch has {len(graph.flow_nodes)}")
    for ours, theirs in zip(flow.nodes, graph.flow_nodes, strict=False):
        left = {(use.storage.number, use.storage.allocation): (use.before, use.after) for use in ours.uses}
        right = {(key.id, key.storage.allocation_id): _use(edge) for key, edge in theirs._edges.items()}
        if (ours.name, left) != (theirs._event.name, right):
            found.append(f"node {ours.index}: {ours.name} {left}, torch has {theirs._event.name} {right}")
    return found


def _use(edge: Any) -> tuple[int | None, int | None]:
    """An edge as versions before and after: ``input_version`` is ``None`` for creations, ``mutated`` for frees."""
    before = edge.input_version
    if edge.mutated is None:
        return before, None
    if before is None:
        return None, 0
    return before, before + 1 if edge.mutated else before


def rows(graph: Any) -> str:
    """The graph of torch in the notation of its own tests."""
    lines = []
    for node in graph.flow_nodes:
        freed = {key for key, edge in node._edges.items() if edge.mutated is None}
        inputs = [f"T{key.id}(v{version}{'*' * (key in freed)})" for key, (_, version) in node.inputs.items()]
        outputs = [f"T{key.id}(v{version})" for key, version in node.outputs.items()]
        if inputs or outputs:
            name = node._event.name.replace("torch::autograd::", "")
            lines.append(f"{name:<25} {', '.join(inputs):<15}  ->  {', '.join(outputs)}".rstrip())
    return "\n".join(lines)


def categories_of(found: Categories) -> dict[tuple[int, int, int], str | None]:
    """Our categories by torch's keys."""
    return {
        (storage.number, storage.allocation, version): None if category is None else category.name
        for (storage, version), category in found.snapshot().items()
    }


def categories_of_torch(profile: Any) -> dict[tuple[int, int, int], str | None]:
    """The same from torch's ``MemoryProfile``."""
    return {
        (key.id, key.storage.allocation_id, version): None if category is None else category.name
        for (key, version), category in profile._category_snapshot().items()
    }
