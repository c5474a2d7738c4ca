"""Text of reference cycles: the chain of objects, what it keeps, and what closes it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from cudamem_testing.model.facts import CycleKept, KeptBy, NotExplained
from cudamem_testing.model.findings import Finding, Verdict
from cudamem_testing.model.remarks import Knot
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.wording.meanings import MEANINGS
from cudamem_testing.wording.remarks import remark

#: Widest line of a chain, in characters, and most lines that it may take.
WIDTH, CHAIN_LINES = 100, 4
ARROW = " -> "
WHOLE = "the fixture reference_cycles reads all of it"
STOPPED = "not read to the end, which may take 1 ms for known garbage and 10 ms for new"
_ADVICE = {
    Knot.CLASS: "a class always refers to itself: define {name} outside the function, and pass it what its methods use",
    Knot.FUNCTION: (
        "{name} refers to itself through its closure: define it outside the function, or pass it as an argument"
    ),
    Knot.ERROR: "an error refers to the frames it passed: del {name} at the end of {function}()",
}
SMALL = "earlier garbage was smaller than the ignored size and was not examined: it freed {size}"


def cycle_kept(finding: Finding, fact: CycleKept) -> list[str]:
    """What a cycle kept, and its chain."""
    size, tensors = finding.bytes or 0, count(fact.count, "tensor")
    inflated = f"; up to {format_size(fact.at_once)} at once, which may inflate the peak" if fact.times > 1 else ""
    meaning = MEANINGS[Verdict.CYCLE]
    return [
        f"{format_size(size)} kept by a reference cycle ({tensors}, {finding.device}){inflated}",
        *(f"   {line}" for line in cycle_lines(fact, size)),
        *(f"   {line}" for line in _whose(fact)),
        *([] if fact.remark is None else [remark(fact.remark)]),
        *([f"   {SMALL.format(size=format_size(fact.small))}"] if fact.small else []),
        f"   {Verdict.CYCLE.value}: {meaning.text}; {_advice(fact) or meaning.hint}",
    ]


def _advice(fact: CycleKept) -> str:
    """What to do about a cycle that no weak reference breaks; empty for others, and for those of others."""
    return "" if fact.tied is None or fact.remark is not None else _ADVICE[fact.tied.knot].format(**fact.tied._asdict())


def not_explained(finding: Finding, fact: NotExplained) -> list[str]:
    """Why garbage with tensors was not read."""
    reason = fact.error
    if reason is None and fact.unseen:
        reason = f"{count(fact.unseen, 'collection')} not examined: the test held a list of all objects, or froze them"
    elif reason is None and fact.large:
        large = f"{count(fact.large, 'collection')} of more than 25,000 objects not examined"
        reason = f"{large}, {format_size(fact.freed)} freed; {WHOLE}"
    elif reason is None and fact.stopped:
        freed = f", {format_size(fact.freed)} freed" if fact.freed else ""
        reason = f"{count(fact.stopped, 'collection')} {STOPPED}{freed}; {WHOLE}"
    elif reason is None and fact.left:
        reason = f"{count(fact.left, 'more kind')} in a collection of many new ones not examined; {WHOLE}"
    elif reason is None and fact.cut:
        reason = f"{count(fact.cut, 'collection')} with a long autograd history read in part; {WHOLE}"
    elif reason is None:
        looked = f"the test's collections took more than {fact.seconds or 0:g} s to examine"
        reason = f"{looked}; {count(fact.later, 'later one')} with tensors not examined"
    return [f"garbage with tensors was not explained: {reason}"]


def _whose(fact: CycleKept) -> list[str]:
    """Which library made the cycle, with the rule that ignores it."""
    if not fact.library:
        return []
    return [f"made by {fact.library}, not by the project", _rule(fact)]


def _rule(fact: CycleKept) -> str:
    return f"to ignore it, add to cudamem_ignore: holder: {fact.pattern}  # made by {fact.library}"


def to_ignore(finding: Finding) -> str:
    """The line that hides a cycle of a library; empty for other findings."""
    fact = finding.fact
    return _rule(fact) if isinstance(fact, CycleKept) and fact.library else ""


def cycle_lines(fact: CycleKept, size: int) -> list[str]:
    """At most ten lines: the chain, what it keeps, where that was allocated, what closes it."""
    lines = [*chain_lines(fact.chain), keeps(fact.tensors, fact.count, size)]
    lines += [f"allocated  {_place(place, len(fact.lines))}" for place in fact.lines]
    lines += [f"closed by  {fact.closed_by}"] if fact.closed_by else []
    if fact.hanging:
        lines.append(f"{count(fact.hanging, 'more cycle')} connected to it")
    about = "about " if fact.estimated else ""
    return [*lines, f"found {about}{fact.times} times"] if fact.times > 1 else lines


def keeps(tensors: tuple[str, ...], number: int, size: int) -> str:
    """``keeps 48.0 MiB in 12 tensors: layer.0.weight float32[1024, 1024], ...``."""
    if not number:
        return "keeps no tensor"
    kept = f"keeps {format_size(size)} in {count(number, 'tensor')}"
    if not tensors:
        return kept
    return f"{kept}: {', '.join(tensors)}{', ...' if number > len(tensors) else ''}"


def chain_lines(chain: tuple[str, ...]) -> list[str]:
    """The pieces of a chain joined by arrows, on as few lines as possible; of a long chain the first and last ones."""
    lines: list[str] = []
    for piece in chain:
        if lines and len(lines[-1]) + len(ARROW) + len(piece) <= WIDTH:
            lines[-1] += ARROW + piece
        else:
            lines.append(f"  -> {piece}" if lines else piece)
    if len(lines) > CHAIN_LINES:
        gone = len(lines) - CHAIN_LINES + 1
        left_out = next((f", {piece[4:]}" for piece in chain if piece.startswith("... ")), " ...")
        lines[CHAIN_LINES - 2 : CHAIN_LINES - 2 + gone] = [f"  ... {gone} more lines{left_out}"]
    return lines


def _place(place: KeptBy, places: int) -> str:
    return f"{place.line} ({', '.join(place.names)})" if place.names and places > 1 else place.line
