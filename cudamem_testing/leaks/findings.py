"""Findings of leaks: blocks of one cause together, with what they are, where they came from and who holds them.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from math import prod
from typing import NamedTuple

from cudamem_testing.leaks.verdicts import GRAPH_HINT, MEANINGS, more, verdict_of
from cudamem_testing.model.blocks import Block
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Frame
from cudamem_testing.objects import HolderResult, Reach, RootKind, Step
from cudamem_testing.objects import Kind as PathKind

NOT_SEARCHED = HolderResult(Reach.UNKNOWN, None, complete=False, note="the search did not reach it")
SHOWN = 3
WITHOUT_TENSOR = "memory without a Python tensor"
FIXTURE_HINT = "drop the reference when the fixture ends, after its yield or in a finalizer"
#: Who holds what ``capture_begin`` allocates: it lives as long as one graph that began a capture does.
A_GRAPH = "a CUDA graph that began a capture and lives, for its random numbers"
A_GRAPH_HINT = "reset the graph, or let it go"
#: Who holds what ``DistributedDataParallel.__init__`` allocates: C++, and through it hooks of autograd.
REDUCER = "torch/nn/parallel/distributed.py"
A_REDUCER = "the reducer of a DistributedDataParallel, in C++"
A_REDUCER_HINT = "drop the DistributedDataParallel, its module and all losses before destroy_process_group()"
NOBODY = "nobody kept it: it went when the device had done its work"
_WORDS = {Reach.REACHABLE: "held by", Reach.HARNESS: "kept by"}
_VIEW = re.compile(r".*?\[(?P<part>[\d, ]*)\] on .*, view of \[(?P<whole>[\d, ]*)\].*")
_KEY = re.compile(r"\['[^']*\d[^']*'\]")
#: Numbers in a chain that another run, another order of tests or an edited file would change.
_PASSING = (
    (re.compile(r"\[\d+\]"), "[*]"),
    (re.compile(r"\b__compiled_fn_\d+\w*"), "__compiled_fn"),
    (re.compile(r"(hook |(?:Thread|Task|Executor)-)[\d_]+"), r"\1*"),
    (re.compile(r"(\([^()\s]+):\d+\)"), r"\1)"),  # the line at which a frame stands
)
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
) -> list[Finding]:
    """One finding for each holder among the retained blocks of one device, the largest first.

    Blocks belong together when one object holds them (a module all its parameters, a list all its items), or when C++
    holds them: what hangs together there cannot be told apart, but for the state of graphs. Those ``of_fixture`` were
    left by a wider fixture, and the hint says what that can do.
    """
    groups: dict[tuple[Verdict, str], list[Held]] = {}
    for block in blocks:
        holder = NOT_SEARCHED if block.address is None else holders.get(block.address, NOT_SEARCHED)
        verdict = verdict_of(block, holder)
        held = Held(block, holder, verdict, of_fixture)
        groups.setdefault((verdict, held.by), []).append(held)
    found = [_finding(sorted(group, key=lambda held: -held.block.size), severity) for group in groups.values()]
    return sorted(found, key=lambda finding: -(finding.bytes or 0))


def small_leaks(
    blocks: Sequence[Block], holders: Mapping[int, HolderResult], least: int, severity: Severity = Severity.FAIL
) -> list[Finding]:
    """One finding for each holder of blocks of several tests that together are as large as is judged.

    Each test left less than ``least`` bytes. What C++ holds belongs together by the function that allocated it.
    """
    groups: dict[tuple[Verdict, str], list[Held]] = {}
    for block in blocks:
        holder = NOT_SEARCHED if block.address is None else holders.get(block.address, NOT_SEARCHED)
        held = Held(block, holder, verdict_of(block, holder))
        groups.setdefault((held.verdict, held.by or block.stack.place), []).append(held)
    found = []
    for group in groups.values():
        size, tests = sum(held.block.size for held in group), len({held.block.owner for held in group})
        if size < least or not MEANINGS[group[0].verdict].leak:
            continue
        device = group[0].block.device
        message = (
            f"cudamem: {format_size(size)} leaked by {count(tests, 'test')}, less than {format_size(least)} each"
            f" ({count(len(group), 'block')}, {device})"
        )
        found.append(replace(_finding(sorted(group, key=lambda held: -held.block.size), severity), message=message))
    return sorted(found, key=lambda finding: -(finding.bytes or 0))


class Held(NamedTuple):
    """A retained block with who holds it."""

    block: Block
    holder: HolderResult
    verdict: Verdict
    of_fixture: bool = False

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
        return self.verdict is Verdict.HELD_BY_CPP and innermost is not None and innermost.file == REDUCER

    @property
    def in_cpp(self) -> tuple[str, str] | None:
        """Who holds it in C++ and what to do, where the line that allocated tells."""
        if self.by_graph:
            return A_GRAPH, A_GRAPH_HINT
        return (A_REDUCER, A_REDUCER_HINT) if self.by_reducer else None

    @property
    def by(self) -> str:
        """Who holds it and others like it: what those of one finding have in common."""
        return holder_of(self.holder) if self.in_cpp is None else self.in_cpp[0]

    @property
    def chain(self) -> str | None:
        """Who holds it, as text."""
        if self.in_cpp is not None:
            return self.in_cpp[0]
        path = self.holder.path
        return None if path is None or _is_running_harness(self.holder) else path.text

    @property
    def hint(self) -> str:
        """What to do."""
        if self.in_cpp is not None:
            return self.in_cpp[1]
        in_fixture = self.of_fixture and self.verdict is Verdict.REACHABLE
        return FIXTURE_HINT if in_fixture else MEANINGS[self.verdict].hint


def holder_of(holder: HolderResult) -> str:
    """The chain up to the object that holds, without positions.

    What is inside a module, an optimizer or the graph of a tensor is not told apart: it goes when they go.
    """
    if holder.path is None or holder.reach not in _WORDS or _is_running_harness(holder):
        return ""
    steps = tuple(takewhile(lambda step: not _inside(step), holder.path.steps))
    return _stable(replace(holder.path, steps=steps).text)


def _is_running_harness(holder: HolderResult) -> bool:
    """Whether it is a frame of pytest that runs now, on its way to the report of a failure: that names nobody."""
    path = holder.path
    return holder.reach is Reach.HARNESS and path is not None and path.root_kind == RootKind.FRAME.value


def _stable(text: str) -> str:
    """Without positions (the number in ``['layer0']`` is one) and other numbers that pass."""
    text = _KEY.sub(lambda key: re.sub(r"\d+", "*", key.group()), text)
    for pattern, stable in _PASSING:
        text = pattern.sub(stable, text)
    return text


def _inside(step: Step) -> bool:
    return step.reference.kind in _INSIDE or _OPTIMIZER.get(step.reference.text) == step.type_name


def freed_finding(
    verdict: Verdict | None, device: Device, size: int, blocks: int, step: str, fresh: Sequence[Block]
) -> Finding:
    """A remark on memory that a step of settling freed, with the lines that allocated it where they are known.

    Without a verdict it was kept by nobody: the device had not yet done with it.
    """
    meaning = f"{verdict.value}: {MEANINGS[verdict].text}" if verdict is not None else NOBODY
    verdict = verdict or Verdict.UNATTRIBUTED
    lines = []
    by_line: dict[str, list[Block]] = {}
    for block in fresh:
        by_line.setdefault(_where(block), []).append(block)
    for line, some in sorted(by_line.items(), key=lambda pair: -sum(block.size for block in pair[1]))[:SHOWN]:
        lines.append(f"   {format_size(sum(block.size for block in some))}  allocated  {line}")
    kind = Kind.CYCLE if verdict is Verdict.CYCLE else Kind.LEAK
    words = "kept by a reference cycle" if verdict is Verdict.CYCLE else f"retained, then freed by: {step}"
    place = fresh[0].stack.place if fresh else "(no Python stack)"
    return Finding(
        kind,
        verdict,
        Severity.NOTE,
        f"cudamem: {format_size(size)} {words} ({count(blocks, 'block')}, {device})",
        bytes=size,
        device=device,
        allocated=fresh[0].stack.line if fresh else None,
        cause=f"{kind.value} | {verdict.value} | {place}",
        details=(*lines, f"   {meaning}"),
    )


def workspace_findings(blocks: Sequence[Block]) -> list[Finding]:
    """A remark on what a library keeps for its own work."""
    if not blocks:
        return []
    size = sum(block.size for block in blocks)
    step = "a library that gives it back when asked"
    return [freed_finding(Verdict.WORKSPACE, blocks[0].device, size, len(blocks), step, blocks)]


def _finding(group: Sequence[Held], severity: Severity) -> Finding:
    first = group[0]
    verdict, meaning = first.verdict, MEANINGS[first.verdict]
    size = sum(held.block.size for held in group)
    details: list[str] = []
    shown: dict[tuple[str, str], Held] = {}
    for held in group:
        key = (_where(held.block), "" if held.holder.path is None else _stable(held.holder.path.text))
        if len(shown) < SHOWN:
            shown.setdefault(key, held)
    for held in shown.values():
        details += _block_lines(held)
    if len(group) > len(shown):
        rest = size - sum(held.block.size for held in shown.values())
        details.append(f"   ... {count(len(group) - len(shown), 'more block')}: {format_size(rest)}")
    if verdict is not Verdict.REACHABLE:
        details.append(f"   {verdict.value}: {meaning.text}")
    if meaning.leak:
        details.append(f"   hint: {GRAPH_HINT if _keeps_graph(group) else first.hint}")
        details.append(more(verdict))
    details += [f"   note: {note}" for note in dict.fromkeys(held.holder.note for held in group) if note is not None]
    return Finding(
        Kind.LEAK,
        verdict,
        severity if meaning.leak else Severity.NOTE,
        f"cudamem: {format_size(size)} {'leaked' if meaning.leak else 'retained'} "
        f"({count(len(group), 'block')}, {first.block.device})",
        bytes=size,
        device=first.block.device,
        allocated=first.block.stack.line,
        holder=first.chain,
        cause=" | ".join(part for part in ("leak", verdict.value, first.block.stack.place, first.by) if part),
        details=tuple(details),
    )


def _keeps_graph(group: Sequence[Held]) -> bool:
    """Whether a tensor with its autograd graph is kept, and with the graph some of the blocks."""
    paths = (held.holder.path for held in group if held.verdict is Verdict.REACHABLE)
    return any(step.reference.kind is PathKind.GRAD_FN for path in paths if path is not None for step in path.steps)


def _block_lines(held: Held) -> list[str]:
    names = held.holder.objects or (WITHOUT_TENSOR,)
    if names[0] in (WITHOUT_TENSOR, "UntypedStorage"):
        names = (f"{names[0]} ({held.block.requested} bytes)", *names[1:])
    lines = [
        f"   {format_size(held.block.size)}  {names[0]}  {held.verdict.value}",
        f"      allocated  {_where(held.block)}",
    ]
    if held.chain is not None:
        word = "held by" if held.in_cpp is not None else _WORDS.get(held.holder.reach, "from   ")
        lines.append(f"      {word}    {held.chain}")
    return lines + [f"      {line}" for line in view_lines(names, held.block.size)]


def view_lines(names: Sequence[str], size: int) -> list[str]:
    """Why small tensors keep a large storage: when all that is held of it are views of a part."""
    views = [_VIEW.fullmatch(name) for name in names]
    if not views or not all(view is not None and _elements(view["part"]) < _elements(view["whole"]) for view in views):
        return []
    name, _, whole = names[0].partition(", view of ")
    return [f"{name} is a view of a {format_size(size)} storage of shape {whole}; clone() would release it"]


def _elements(shape: str) -> int:
    return prod(int(length) for length in shape.split(", ") if length)


def _where(block: Block) -> str:
    stack = block.stack
    if not stack.frames and block.after is not None:
        return f"by a thread of torch's own, as in backward (no Python stack), after {block.after}"
    text = stack.line if not stack.library else f"{stack.line} ({stack.library})"
    call: Frame | None = stack.caller
    return text if call is None or call == stack.project_frame else f"{text} <- {call}"
