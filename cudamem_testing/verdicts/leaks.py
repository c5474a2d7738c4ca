"""Makes findings of leaks: groups blocks by cause, with what they are, where they were allocated and what holds them.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from cudamem_testing.model.blocks import Block
from cudamem_testing.model.devices import Device
from cudamem_testing.model.edges import Kind as PathKind
from cudamem_testing.model.facts import (
    FLAT_PARAMETER,
    GRAPH_STATE,
    REDUCER,
    Allocation,
    FreedBy,
    Retained,
    RetainedBlock,
)
from cudamem_testing.model.findings import LEAKED, Finding, Kind, Severity, Verdict
from cudamem_testing.model.references import Doubt, Path, Reach, RootKind, Step, Unsure
from cudamem_testing.model.stacks import NO_STACK
from cudamem_testing.objects.search import HolderResult
from cudamem_testing.snapshots.backward import ENGINE
from cudamem_testing.verdicts.verdict import verdict_of

ExampleOf = Callable[[Block], str | None]
NOT_SEARCHED = HolderResult(Reach.UNKNOWN, None, complete=False, doubt=Doubt(Unsure.NOT_REACHED))
SHOWN = 3
#: Where ``DistributedDataParallel`` makes its C++ reducer, with the buckets that hold gradients.
DISTRIBUTED = "torch/nn/parallel/distributed.py"
#: Where flat parameters are made.
SHARDED = "torch/distributed/fsdp/"
#: Where a holder is named.
_NAMED = (Reach.REACHABLE, Reach.HARNESS)
#: Kinds of references inside one whole: a module with its parameters, a tensor with its gradient and its graph.
_INSIDE = frozenset(
    {PathKind.SUBMODULE, PathKind.GRAD, PathKind.GRAD_FN, PathKind.NEXT, PathKind.SAVED, PathKind.STORAGE}
)
#: Attributes inside an optimizer.
_OPTIMIZER = {".state": "defaultdict", ".param_groups": "list"}


def leak_findings(
    blocks: Sequence[Block],
    holders: Mapping[int, HolderResult],
    severity: Severity = Severity.FAIL,
    *,
    of_fixture: bool = False,
    example_of: ExampleOf | None = None,
) -> list[Finding]:
    """One finding for each holder among the retained blocks of one device, the largest first.

    Blocks belong together if one object holds them (a module all its parameters, a list all its items), or if C++ holds
    them, where holders cannot be distinguished except for the state of graphs. Those ``of_fixture`` were left by a
    wider fixture. ``example_of`` tells which generated example of the test allocated a block.
    """
    groups: dict[tuple[Verdict, str], list[Held]] = {}
    every = []
    for block in blocks:
        holder = NOT_SEARCHED if block.address is None else holders.get(block.address, NOT_SEARCHED)
        every.append(Held(block, holder, verdict_of(block, holder)))
    is_sharded = any(held.by_flat_parameter for held in every)
    for held in every:
        if is_sharded and held.verdict is Verdict.HELD_BY_CPP and held.from_backward:
            held = held._replace(beside_flat_parameter=True)
        groups.setdefault((held.verdict, held.by), []).append(held)
    ordered = (sorted(group, key=_first_shown) for group in groups.values())
    found = [_finding(group, severity, of_fixture=of_fixture, example_of=example_of) for group in ordered]
    return sorted(found, key=lambda finding: -(finding.bytes or 0))


def small_leaks(
    blocks: Sequence[Block], holders: Mapping[int, HolderResult], least: int, severity: Severity = Severity.FAIL
) -> list[Finding]:
    """One finding for each holder of blocks of several tests that together are as large as is judged.

    Each test left less than ``least`` bytes. What C++ holds belongs together by the function that allocated it. What
    one function stores under many names of one object, class or module belongs together as well.
    """
    groups: dict[tuple[Verdict, str], list[Held]] = {}
    for block in blocks:
        holder = NOT_SEARCHED if block.address is None else holders.get(block.address, NOT_SEARCHED)
        held = Held(block, holder, verdict_of(block, holder))
        groups.setdefault((held.verdict, held.by or block.stack.place), []).append(held)
    by_namespace: dict[tuple[Verdict, str], list[Held]] = {}
    for group in groups.values():
        namespace = _namespace_of(group[0].holder)
        if namespace and not _is_enough(group, least):
            by_namespace.setdefault((group[0].verdict, f"{group[0].block.stack.place} {namespace}"), []).extend(group)
    found = []
    for group in (*groups.values(), *by_namespace.values()):
        if _is_enough(group, least) and group[0].verdict in LEAKED:
            ordered = sorted(group, key=lambda held: -held.block.size)
            tests = len({held.block.owner for held in group})
            found.append(_finding(ordered, severity, of_fixture=False, tests=tests, each=least))
    return sorted(found, key=lambda finding: -(finding.bytes or 0))


def _is_enough(group: Sequence[Held], least: int) -> bool:
    return sum(held.block.size for held in group) >= least


class Held(NamedTuple):
    """A retained block with its holder."""

    block: Block
    holder: HolderResult
    verdict: Verdict
    beside_flat_parameter: bool = False
    """Whether C++ holds it, a backward pass made it, and a flat parameter is held beside it: then it is a gradient."""

    @property
    def by_graph(self) -> bool:
        """Whether it is the state of the random generator that captured graphs share: torch allocates it when the first
        of them begins its capture, and frees it with the last.
        """
        innermost = self.block.stack.frames[0] if self.block.stack.frames else None
        return (
            self.verdict is Verdict.HELD_BY_CPP
            and innermost is not None
            and innermost.file == "torch/cuda/graphs.py"
            and innermost.function.rpartition(".")[2] == "capture_begin"
        )

    @property
    def by_reducer(self) -> bool:
        """Whether it is a bucket of the reducer that ``DistributedDataParallel`` makes, in which gradients lie."""
        innermost = self.block.stack.frames[0] if self.block.stack.frames else None
        return self.verdict is Verdict.HELD_BY_CPP and innermost is not None and innermost.file == DISTRIBUTED

    @property
    def by_flat_parameter(self) -> bool:
        """Whether it is a flat parameter of ``FullyShardedDataParallel``, or the gradient of one."""
        if self.verdict is not Verdict.HELD_BY_CPP:
            return False
        innermost = self.block.stack.frames[0] if self.block.stack.frames else None
        return self.beside_flat_parameter or (innermost is not None and innermost.file.startswith(SHARDED))

    @property
    def from_backward(self) -> bool:
        """Whether a backward pass allocated it: on a card in a thread without a Python stack."""
        frames = self.block.stack.frames
        return not frames or (frames[0].file, frames[0].function) == ENGINE

    @property
    def in_cpp(self) -> str | None:
        """Its holder in C++, if the line that allocated shows it."""
        flags = (
            (self.by_graph, GRAPH_STATE),
            (self.by_reducer, REDUCER),
            (self.by_flat_parameter, FLAT_PARAMETER),
        )
        return next((name for is_it, name in flags if is_it), None)

    @property
    def by(self) -> str:
        """The holder that the blocks of one finding have in common."""
        return self.in_cpp or holder_of(self.holder)

    @property
    def path(self) -> Path | None:
        """The chain of references to it, if that names a holder."""
        return None if self.in_cpp or _is_running_harness(self.holder) else self.holder.path

    @property
    def fact(self) -> RetainedBlock:
        """The block for a finding."""
        block, names = self.block, self.holder.objects
        where = Allocation.of(block.stack, block.after)
        name, view = names[0] if names else None, None if self.in_cpp else self.holder.view
        return RetainedBlock(block.size, name, where, self.holder.reach, self.path, view, block.requested)


def holder_of(holder: HolderResult) -> str:
    """The chain up to the object that holds, as it is in every run.

    What is inside a module, an optimizer or the graph of a tensor is one holder: it is freed with them.
    """
    if holder.path is None or holder.reach not in _NAMED or _is_running_harness(holder):
        return ""
    steps = tuple(takewhile(lambda step: not _inside(step), holder.path.steps))
    return replace(holder.path, steps=steps).stable


def _namespace_of(holder: HolderResult) -> str:
    """The object, class or module that holds it under a name; empty for other holders."""
    if holder.path is None or holder.reach not in _NAMED:
        return ""
    steps = tuple(takewhile(lambda step: not _inside(step), holder.path.steps))
    if not steps or steps[-1].reference.kind not in (PathKind.GLOBAL, PathKind.ATTRIBUTE):
        return ""
    return replace(holder.path, steps=steps[:-1]).stable


def _is_running_harness(holder: HolderResult) -> bool:
    """Whether it is a running frame of pytest that is reporting a failure, and no holder."""
    path = holder.path
    return holder.reach is Reach.HARNESS and path is not None and path.root_kind is RootKind.FRAME


def _inside(step: Step) -> bool:
    return step.reference.kind in _INSIDE or _OPTIMIZER.get(step.reference.text) == step.type_name


def freed_finding(
    verdict: Verdict | None, device: Device, size: int, blocks: int, step: str, fresh: Sequence[Block]
) -> Finding:
    """A remark on memory that a step of settling freed, with the lines that allocated it where they are known.

    Without a verdict no object kept it: the device had not finished with it.
    """
    verdict = verdict or Verdict.UNATTRIBUTED
    by_line: dict[Allocation, int] = {}
    for block in fresh:
        where = Allocation.of(block.stack, block.after)
        by_line[where] = by_line.get(where, 0) + block.size
    lines = sorted(by_line.items(), key=lambda pair: -pair[1])[:SHOWN]
    kind = Kind.CYCLE if verdict is Verdict.CYCLE else Kind.LEAK
    return Finding(
        kind,
        verdict,
        Severity.NOTE,
        FreedBy(step, blocks, tuple((total, where) for where, total in lines)),
        bytes=size,
        device=device,
        allocated=fresh[0].stack.line if fresh else None,
        cause=f"{kind.value} | {verdict.value} | {fresh[0].stack.place if fresh else NO_STACK}",
    )


def workspace_findings(blocks: Sequence[Block]) -> list[Finding]:
    """A remark on the workspaces of a library."""
    if not blocks:
        return []
    size = sum(block.size for block in blocks)
    step = "a library that gives it back when asked"
    return [freed_finding(Verdict.WORKSPACE, blocks[0].device, size, len(blocks), step, blocks)]


def _finding(
    group: Sequence[Held],
    severity: Severity,
    *,
    of_fixture: bool,
    tests: int = 1,
    each: int | None = None,
    example_of: ExampleOf | None = None,
) -> Finding:
    first = group[0]
    blocks = [] if example_of is None else sorted((held.block for held in group), key=lambda one: one.order or 0)
    examples = [*dict.fromkeys(filter(None, map(example_of, blocks)))] if example_of is not None else []
    block, path = first.block, first.path
    shown: dict[tuple[Allocation, str], Held] = {}
    for held in group:
        where = Allocation.of(held.block.stack, held.block.after)
        key = (where, "" if held.holder.path is None else held.holder.path.stable)
        if len(shown) < SHOWN:
            shown.setdefault(key, held)
    fact = Retained(
        tuple(held.fact for held in shown.values()),
        len(group),
        keeps_graph=_keeps_graph(group),
        graph_state=first.by_graph,
        reducer=first.by_reducer,
        flat_parameter=first.by_flat_parameter,
        in_fixture=of_fixture,
        tests=tests,
        each=each,
        example=examples[0] if examples else "",
        examples=len(examples),
        doubts=tuple(dict.fromkeys(held.holder.doubt for held in group if held.holder.doubt is not None)),
    )
    return Finding(
        Kind.LEAK,
        first.verdict,
        severity if first.verdict in LEAKED else Severity.NOTE,
        fact,
        bytes=sum(held.block.size for held in group),
        device=block.device,
        allocated=block.stack.line,
        holder=first.in_cpp or (None if path is None else path.text),
        cause=" | ".join(part for part in ("leak", first.verdict.value, block.stack.place, first.by) if part),
    )


def _first_shown(held: Held) -> tuple[int, bool, str]:
    """The largest first, a parameter before its gradient, so that the hint is about the parameter.

    Other equals are ordered by text, because their order of allocation may differ in the next run.
    """
    steps = () if held.holder.path is None else held.holder.path.steps
    is_gradient = any(step.reference.kind is PathKind.GRAD for step in steps)
    return -held.block.size, is_gradient, held.block.stack.place


def _keeps_graph(group: Sequence[Held]) -> bool:
    """Whether a tensor with its autograd graph is kept, and with the graph some of the blocks."""
    paths = (held.holder.path for held in group if held.verdict is Verdict.REACHABLE)
    return any(step.reference.kind is PathKind.GRAD_FN for path in paths if path is not None for step in path.steps)
