"""Text of what did not recover after an allocation failed. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import re

from cudamem_testing.model.failing import Sweep
from cudamem_testing.model.findings import Finding, Severity
from cudamem_testing.model.recovery import HalfChanged, NotRecovered, NotTried, WrittenInPart
from cudamem_testing.model.references import Reach
from cudamem_testing.model.retained import RetainedBlock
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import NO_STACK
from cudamem_testing.show.printable import short_lines
from cudamem_testing.wording import leaks

#: The way from an error to one of its frames.
_TRACEBACK = re.compile(r"(?: \(traceback\))?(?:\.tb_next > traceback)*\.tb_frame > ")
#: Places in full, and with one line, in the text of one sweep.
FULL, SHORT = 3, 10


def not_recovered(finding: Finding, fact: NotRecovered) -> list[str]:
    """Which allocation failed, and below it each thing that was not as before."""
    line = NO_STACK if fact.where.line is None else str(fact.where.line)
    facts = [
        f"{fact.operator}" if fact.operator else fact.where.library,
        format_size(fact.size) if fact.size else "",
        f"allocation {fact.number} of {fact.of}" + (f" and {fact.times - 1} more here" if fact.times > 1 else ""),
        str(finding.device),
    ]
    lines = [f"{line} does not recover if its allocation fails ({', '.join(filter(None, facts))})"]
    if fact.raised is not None:
        lines.append(f"   raised instead of OutOfMemoryError: {fact.raised}")
    lines += _left(fact)
    if fact.cycles:
        where = f", allocated {', '.join(fact.cycle_lines)}" if fact.cycle_lines else ""
        lines.append(f"   kept by a reference cycle: {format_size(fact.cycles)}{where}")
    lines += [f"   {_half(one)}" for one in fact.half]
    if fact.written is not None:
        lines.append(f"   half changed: {_written(fact.written)}")
    lines += [f"   not restored: {one.what} is {one.after}, was {one.before}" for one in fact.settings]
    if fact.check is not None:
        lines.append(f"   check() failed: {fact.check}")
    if fact.again is not None:
        lines.append(f"   the next run failed: {fact.again}")
    return lines


def of_sweep(sweep: Sweep) -> str:
    """A head line; the first findings in full, and one line for each other."""
    faults = [
        [*map(short_lines, not_recovered(one, one.fact))]
        for one in sweep.findings
        if one.severity is Severity.FAIL and isinstance(one.fact, NotRecovered)
    ]
    many = "1 place does" if len(faults) == 1 else f"{len(faults)} places do"
    lines = [f"cudamem: {many} not recover from a failed allocation ({sweep.device}; {sweep.coverage})"]
    lines += [line for fault in faults[:FULL] for line in fault]
    lines += [f"also: {fault[0]}" for fault in faults[FULL : FULL + SHORT]]
    if len(faults) > FULL + SHORT:
        lines.append(f"... {count(len(faults) - FULL - SHORT, 'more place')}")
    return "\n".join((*lines, *(f"note: {note}" for note in sweep.notes)))


def not_tried(finding: Finding, fact: NotTried) -> list[str]:
    """How far a sweep came."""
    return [f"{fact.tried} of {fact.of} allocations tried ({finding.device}): {fact.reason}"]


def _left(fact: NotRecovered) -> list[str]:
    if not fact.left:
        return []
    lines = [f"   left behind: {format_size(fact.left_bytes)} in {count(fact.count, 'block')}"]
    for block in fact.left:
        lines.append(f"      {format_size(block.bytes)}  {block.name or 'memory without a Python tensor'}")
        lines.append(f"         allocated  {leaks.allocated(block.allocated)}")
        lines.append(f"         held by    {_holder(block)}")
    return lines


def _holder(block: RetainedBlock) -> str:
    if block.path is not None and block.reach in (Reach.REACHABLE, Reach.HARNESS):
        return _TRACEBACK.sub(" > ", block.path.text)
    return "unknown" if block.reach is Reach.UNKNOWN else "C++, or objects that no root reaches"


def _half(one: HalfChanged) -> str:
    total = one.number + one.others
    there, others = _names(one.changed, one.number), _names(one.unchanged, one.others)
    if one.missing:
        return f"half changed: {one.others} of {total} are gone ({others}), {one.number} are not ({there})"
    if not one.others:
        return f"changed only by the failure: {there}"
    return f"half changed: {one.number} of {total} ({there}), not {others}"


def _written(one: WrittenInPart) -> str:
    more = f", and {one.number - 1} more in part" if one.number > 1 else ""
    return f"{one.name} was written {one.done} of {count(one.of, 'time')}{more}"


def _names(names: tuple[str, ...], number: int) -> str:
    more = number - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
