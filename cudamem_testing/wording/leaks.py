"""Text of leaks: what is retained, where it was allocated, what holds it, and what to do. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from cudamem_testing.model.edges import View
from cudamem_testing.model.facts import (
    Allocation,
    FixtureGrew,
    FreedBy,
    LeftOver,
    Retained,
    RetainedBlock,
)
from cudamem_testing.model.findings import LEAKED, Finding, Verdict
from cudamem_testing.model.references import Doubt, Reach, RootKind, Unsure, is_frame
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import NO_STACK
from cudamem_testing.wording import evidence
from cudamem_testing.wording.hints import GROWING_FIXTURE, Hint, hint_of
from cudamem_testing.wording.meanings import MEANINGS, more

WAITED = "freed after device synchronization; not a leak"
OF_ERROR = (
    "the error of the failed test refers to it, not only a frame: it lives as long as pytest or a plugin keeps the "
    "error (pytest-rerunfailures: until the run ends)"
)
_DOUBTS = {
    Unsure.NOT_REACHED: "the search did not reach it",
    Unsure.BUDGET: "the search stopped at its limit of {of}",
    Unsure.CROWDED: "the search met an object with more than {of} holders and did not examine the others",
    Unsure.UNCOLLECTED: "it may be garbage: garbage collection is paused during graph capture",
    Unsure.LIBRARY: "it may be a library workspace: workspaces are not released while a CUDA graph is live",
    Unsure.HIDDEN_GRAPH: "{of} does not show what autograd saved: an autograd graph may hold it",
}
_HELD = {Reach.REACHABLE: "held by", Reach.HARNESS: "kept by"}


def retained(finding: Finding, fact: Retained) -> list[str]:
    """How much, the largest blocks, why they are still allocated, and what to do."""
    leaked = finding.verdict in LEAKED
    word = "leaked" if leaked else "retained"
    if fact.each is not None:
        word += f" by {count(fact.tests, 'test')}, less than {format_size(fact.each)} each"
    lines = [f"{format_size(finding.bytes or 0)} {word} ({count(fact.count, 'block')}, {finding.device})"]
    lines += _blocks(finding, fact)
    if finding.verdict is Verdict.TRACEBACK and any(map(_is_of_error, fact.shown)):
        lines.append(f"   {finding.verdict.value}: {OF_ERROR}")
    elif finding.verdict is not Verdict.REACHABLE:
        lines.append(_meaning(finding.verdict))
    lines += _advice(hint_of(finding.verdict, fact), *([more(finding.verdict)] if leaked else []))
    return lines + [f"   note: {doubt_text(doubt)}" for doubt in fact.doubts]


def freed_by(finding: Finding, fact: FreedBy) -> list[str]:
    """What a step of settling freed, and where it was allocated."""
    cycle, waited = finding.verdict is Verdict.CYCLE, finding.verdict is Verdict.UNATTRIBUTED
    how = "kept by a reference cycle" if cycle else f"retained, then freed by: {fact.step}"
    lines = [f"{format_size(finding.bytes or 0)} {how} ({count(fact.count, 'block')}, {finding.device})"]
    lines += [f"   {format_size(size)}  allocated  {allocated(where)}" for size, where in fact.lines]
    return [*lines, f"   {WAITED}" if waited else _meaning(finding.verdict)]


def fixture_grew(finding: Finding, fact: FixtureGrew) -> list[str]:
    """How much each use left in a fixture, and what it holds."""
    uses, each = len(fact.uses), format_size(sum(fact.uses) // max(1, len(fact.uses)))
    total = f"{format_size(sum(fact.uses))} in {uses} uses in a row ({finding.device})"
    return [
        f"fixture {fact.fixture!r} grows by {each} per test: {total}",
        *_blocks(finding, fact.left),
        *(f"   note: {doubt_text(doubt)}" for doubt in fact.left.doubts),
        *_advice(GROWING_FIXTURE, more(Verdict.FIXTURE)),
    ]


def left_over(finding: Finding, fact: LeftOver) -> list[str]:
    """Live blocks of a file that are not visible in any test's counters."""
    size = format_size(finding.bytes or 0)
    title = f"{size} of {fact.place} is still live, not visible in any test's counters ({finding.device})"
    return [title, *evidence.live(fact.live)]


def allocated(where: Allocation) -> str:
    """``cache.py:41 in remember (torch/functional.py einsum) <- test_decoder.py:77 in test_step``."""
    if where.line is None:
        after = f"by one of torch's threads, as in backward {NO_STACK}, after {where.after}"
        return NO_STACK if where.after is None else after
    text = f"{where.line} ({where.library})" if where.library else str(where.line)
    return text if where.caller is None else f"{text} <- {where.caller}"


def doubt_text(doubt: Doubt) -> str:
    """What a search for holders could not know."""
    return _DOUBTS[doubt.why].format(of=doubt.of)


def view_line(view: View, size: int) -> str:
    """Why a small tensor keeps a large storage."""
    shape = ", ".join(map(str, view.whole))
    return f"{view.name} is a view of a {format_size(size)} storage of shape [{shape}]; clone() would release it"


def _blocks(finding: Finding, fact: Retained) -> list[str]:
    lines: list[str] = []
    for block in fact.shown:
        lines += _block(block, finding.verdict, fact.in_cpp)
    if fact.count > len(fact.shown):
        rest = (finding.bytes or 0) - sum(block.bytes for block in fact.shown)
        lines.append(f"   ... {count(fact.count - len(fact.shown), 'more block')}: {format_size(rest)}")
    if fact.example:
        more = f" (the first of {fact.examples} examples that left memory here)" if fact.examples > 1 else ""
        lines.append(f"   in example {fact.example}{more}")
    return lines


def _block(block: RetainedBlock, verdict: Verdict, in_cpp: str | None) -> list[str]:
    name = block.name or "memory without a Python tensor"
    if block.requested is not None and name in ("memory without a Python tensor", "UntypedStorage"):
        name += f" ({block.requested} bytes)"
    lines = [
        f"   {format_size(block.bytes)}  {name}  {verdict.value}",
        f"      allocated  {allocated(block.allocated)}",
    ]
    if in_cpp is not None:
        lines.append(f"      held by    {in_cpp}")
    elif block.path is not None:
        lines.append(f"      {_HELD.get(block.reach, 'from   ')}    {block.path.text}")
    return lines if block.view is None else [*lines, f"      {view_line(block.view, block.bytes)}"]


def _is_of_error(block: RetainedBlock) -> bool:
    """Whether the error itself refers to it, so that clearing frames does not free it."""
    path = block.path
    return path is not None and path.root_kind is not RootKind.FRAME and not any(map(is_frame, path.steps))


def _advice(hint: Hint | None, *more: str) -> list[str]:
    """What to do, if the holder is known, and where to read more."""
    lines = [] if hint is None else [f"   hint: {hint.text}"]
    pages = [] if hint is None else [f"docs/hints.md#{hint.holder.anchor}"]
    return [*lines, f"   more: {', '.join((*more, *pages))}"] if more or pages else lines


def _meaning(verdict: Verdict) -> str:
    return f"   {verdict.value}: {MEANINGS[verdict].text}"
