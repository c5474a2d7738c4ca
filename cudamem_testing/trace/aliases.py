"""Families of operators that differ by device, folded into one row with one name.

| family | members | row |
| --- | --- | --- |
| dropout | ``aten::dropout`` and the like; backward functions of what ran inside | ``dropout``, ``dropout backward`` |
| attention | ``scaled_dot_product_attention`` and its kernels; their backward | ``attention``, ``attention backward`` |
| optimizers | all of one ``Optimizer.step`` or ``zero_grad``: per tensor, foreach or fused | ``Adam.step`` |
| foreach | ``aten::_foreach_mul_``, or a run of independent ``aten::mul_`` | ``aten::mul_`` |

A backward function belongs to the family whose forward operator made it; the profiler ties both by a sequence number.
Neighbouring nodes of one family become one node. What only the family ever uses (dropout's mask, the log-sum-exp of a
fused kernel, an optimizer's temporaries) is hidden, unless it has a name. Versions are then renumbered, so that two
in-place steps of one kernel and one step of another both count as one new version.

Frees between the members of a row move after it, allocations before it. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from cudamem_testing.torch_api.operators import operator_schemas
from cudamem_testing.trace.flow import CREATED, FREED, MEMORY, Node, NodeDraft, Touches, Use, replay
from cudamem_testing.trace.graph import DataFlow
from cudamem_testing.trace.records import Operator, PythonCall, Region, Storage, Trace
from cudamem_testing.trace.schemas import READ, WRITTEN

_FORWARD = {
    "aten::dropout": "dropout",
    "aten::dropout_": "dropout",
    "aten::native_dropout": "dropout",
    "aten::_fused_dropout": "dropout",
    "aten::feature_dropout": "dropout",
    "aten::alpha_dropout": "dropout",
    "aten::scaled_dot_product_attention": "attention",
    "aten::_scaled_dot_product_attention_math": "attention",
    "aten::_scaled_dot_product_flash_attention": "attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
    "aten::_scaled_dot_product_efficient_attention": "attention",
    "aten::_scaled_dot_product_cudnn_attention": "attention",
}
_SINGLE = {"aten::_foreach_norm": "aten::linalg_vector_norm"}
"""Single-tensor operators whose name does not follow from that of the foreach operator."""


class Family(NamedTuple):
    """What a node is folded with."""

    name: str
    group: Hashable
    """Nodes of one group share their private storages."""
    keeps_unfreed: bool
    """Whether a private storage that outlives the trace is shown."""


@dataclass(slots=True)
class _Run:
    """Neighbouring nodes of one family, and the ``[memory]`` nodes among them and behind them."""

    family: Family
    members: list[Node]
    between: list[Node] = field(default_factory=list)
    behind: list[Node] = field(default_factory=list)


def fold_device_families(flow: DataFlow) -> DataFlow:
    """The data flow with each run of one family as one node."""
    families = _families(flow)
    private = _private_storages(flow, families)
    steps: list[NodeDraft] = []
    for part in _runs(flow.nodes, families):
        if isinstance(part, Node):
            steps.append(_step(part))
            continue
        steps += [_step(node) for node in part.between if not _only_frees(node)]
        steps.append(_merged(part, flow))
        steps += [_step(node) for node in part.between if _only_frees(node)]
        steps += [_step(node) for node in part.behind]
    visible = []
    for step in steps:
        touches = {storage: flags for storage, flags in step.touches.items() if storage not in private}
        if touches or not step.touches:
            visible.append(step._replace(touches=touches))
    nodes, diagnostics = replay(visible)
    return DataFlow(flow.trace, tuple(nodes), tuple(diagnostics), flow.names, flow.notes)


def _families(flow: DataFlow) -> list[Family | None]:
    """The family of every node, ``None`` for nodes of none and for ``[memory]``."""
    authors = _authors_by_sequence(flow)
    families: list[Family | None] = []
    for node in flow.nodes:
        step = _optimizer_region(node, flow.trace)
        forward = node
        if node.scope.backward and node.name != MEMORY:
            event = flow.trace.events[node.event]
            author = authors.get(event.sequence) if isinstance(event, Operator) else None
            forward = node if author is None else flow.nodes[author]
        kind = _FORWARD.get(forward.name)
        if step is not None:
            families.append(Family(step.name.partition("#")[2] or step.name, step.event, True))
        elif kind is not None and node.name != MEMORY:
            families.append(Family(kind if forward is node else f"{kind} backward", forward.event, False))
        else:
            families.append(None)
    _add_foreach_runs(flow.nodes, families)
    return families


def _authors_by_sequence(flow: DataFlow) -> dict[int, int]:
    """The node whose inside made the backward function with a sequence number.

    The counter is read when an operator starts and incremented when one makes a backward function: of all operators
    with one number, the last made the function. Each thread has its own counter, so several threads of forward passes
    may be confused.
    """
    trace, authors = flow.trace, {}
    for node in flow.nodes:
        if node.name == MEMORY or node.scope.backward:
            continue
        for event in trace.subtree(node.event):
            if isinstance(event, Operator) and event.sequence >= 0:
                authors[event.sequence] = node.index
    return authors


def _optimizer_region(node: Node, trace: Trace) -> Region | None:
    return next(
        (
            region
            for region in trace.regions_at(node.start, node.thread)
            if region.name.startswith(("Optimizer.step#", "Optimizer.zero_grad#"))
        ),
        None,
    )


def _add_foreach_runs(nodes: Sequence[Node], families: list[Family | None]) -> None:
    """Find foreach operators and the runs of independent single-tensor operators that could be one."""
    run: list[int] = []
    touched: set[Storage] = set()

    def close() -> None:
        if len(run) > 1 or (run and "::_foreach_" in nodes[run[0]].name):
            family = Family(_single_name(nodes[run[0]].name), nodes[run[0]].event, True)
            for place in run:
                families[place] = family
        run.clear()
        touched.clear()

    for node in nodes:
        if node.name == MEMORY:
            continue
        name = _single_name(node.name)
        continues = bool(run) and name == _single_name(nodes[run[0]].name)
        if not continues or any(use.storage in touched for use in node.inputs):
            close()
        if families[node.index] is None and (name != node.name or _has_foreach(name)):
            run.append(node.index)
            touched.update(use.storage for use in node.outputs)
        else:
            close()
    close()


def _single_name(name: str) -> str:
    return _SINGLE.get(name, name.replace("::_foreach_", "::"))


def _has_foreach(name: str) -> bool:
    if name in _SINGLE.values():
        return True
    namespace, _, base = name.partition("::")
    return namespace == "aten" and bool(operator_schemas(f"aten::_foreach_{base}"))


def _private_storages(flow: DataFlow, families: Sequence[Family | None]) -> set[Storage]:
    """Storages made in the trace that one family alone uses."""
    groups: dict[Storage, set[Hashable]] = {}
    made: set[Storage] = set()
    freed: set[Storage] = set()
    keeps: set[Storage] = set()
    for node, family in zip(flow.nodes, families, strict=True):
        for use in node.uses:
            if use.before is None:
                made.add(use.storage)
            if use.after is None:
                freed.add(use.storage)
            if family is not None:
                groups.setdefault(use.storage, set()).add(family.group)
                if family.keeps_unfreed:
                    keeps.add(use.storage)
            elif node.name != MEMORY:
                groups.setdefault(use.storage, set()).add(None)
    named = {name.storage for name in flow.names}
    return {
        storage
        for storage, users in groups.items()
        if storage in made
        and storage not in named
        and len(users) == 1
        and None not in users
        and (storage in freed or storage not in keeps)
    }


def _runs(nodes: Iterable[Node], families: Sequence[Family | None]) -> Iterator[Node | _Run]:
    """The nodes in order, neighbours of one family as one run; ``[memory]`` nodes do not separate neighbours."""
    run: _Run | None = None
    for node in nodes:
        family = families[node.index]
        if run is not None and family == run.family:
            run.members.append(node)
            run.between += run.behind
            run.behind = []
        elif run is not None and family is None and node.name == MEMORY:
            run.behind.append(node)
        else:
            if run is not None:
                yield run
            run = None if family is None else _Run(family, [node])
            if family is None:
                yield node
    if run is not None:
        yield run


def _only_frees(node: Node) -> bool:
    return all(use.after is None for use in node.uses)


def _step(node: Node) -> NodeDraft:
    return NodeDraft(
        node.event, node.name, node.start, node.thread, node.scope, {use.storage: _flags(use) for use in node.uses}
    )


def _flags(use: Use) -> int:
    """The touch from which the replay makes the same use."""
    created = CREATED if use.before is None else 0
    freed = FREED if use.after is None else 0
    return READ | created | freed | (WRITTEN if use.is_written else 0)


def _merged(run: _Run, flow: DataFlow) -> NodeDraft:
    """One step that does what all members do, its storages in an order that does not depend on theirs.

    That is the optimizer's own where there is one; else all first operands, then all second ones, as in a list.
    """
    touches: Touches = {}
    for uses in zip_longest(*(node.uses for node in run.members)):
        for use in uses:
            if use is not None:
                touches[use.storage] = touches.get(use.storage, 0) | _flags(use)
    first = run.members[0]
    order = _owner_order(flow.trace, _optimizer_region(first, flow.trace))
    ordered = sorted(touches, key=lambda storage: order.get(storage, len(order)))
    return NodeDraft(
        first.event,
        run.family.name,
        first.start,
        first.thread,
        first.scope,
        {storage: touches[storage] for storage in ordered},
    )


def _owner_order(trace: Trace, region: Region | None) -> dict[Storage, int]:
    """An optimizer's tensors, parameter by parameter: foreach and single-tensor steps walk them differently."""
    order: dict[Storage, int] = {}
    if region is None:
        return order
    for event in trace.events[region.event :]:
        if event.start >= region.end:
            break
        if isinstance(event, PythonCall) and event.owner is not None and event.owner.is_optimizer:
            for parameter in event.owner.parameters:
                state = (storage for _, storage in parameter.state)
                for storage in (parameter.storage, parameter.gradient, *state):
                    if storage is not None:
                        order.setdefault(storage, len(order))
    return order
