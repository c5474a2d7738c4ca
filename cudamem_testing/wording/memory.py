"""Text about a whole device: out of memory, pools of graphs. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from cudamem_testing.model.facts import GRAPH_STATE, Blame, CompilerPool, EmptyPool, Left, OutOfMemory, Refused
from cudamem_testing.model.findings import Finding
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.show.tables import Column, Table

_OWNERS = 3
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_COLUMNS = (Column("what"), Column("size", "right"), Column("detail"))
POOL_HINT = "reset or delete the graph after a failed capture; graph_capture does this, and says what failed"


def out_of_memory(finding: Finding, fact: OutOfMemory) -> list[str]:
    """Header, figures, hint, and what was live by line."""
    return oom_lines(fact)


def oom_lines(fact: OutOfMemory, width: int | None = None) -> list[str]:
    """The lines of a failed allocation."""
    header = f"out of memory on {fact.device}: {format_size(fact.requested)} requested"
    header += f" by {fact.where}" if fact.where is not None else ""
    figures = Table(_COLUMNS, tuple(_figures(fact))).lines(header=False, indent=3)
    live = fact.live.text(width=width).splitlines()
    unknown = fact.main is not None and fact.others is None
    note = ["note: memory of other processes is unknown: pip install nvidia-ml-py"] if unknown else []
    return [header, *figures, f"hint: {oom_hint(fact)}", *live, *note]


def oom_hint(fact: OutOfMemory) -> str:
    """What to do about a failed allocation."""
    if fact.blame is Blame.FRAGMENTATION and fact.main is not None:
        free, largest = format_size(fact.main.free), format_size(fact.main.largest_free)
        return (
            f"fragmentation: {free} are reserved and unused, but no range is larger than {largest}. "
            f"Try {_EXPANDABLE}, or free the small blocks between large ones."
        )
    if fact.blame is Blame.EARLIER_TESTS and fact.left:
        first = fact.left[0]
        where = f", allocated by {first.line}" if first.line is not None else ""
        left = f"{first.owner} left {format_size(first.bytes)}{where}"
        return f"earlier tests left enough to make room: {left}. Fix that leak first."
    if fact.blame is Blame.PRIVATE_POOLS:
        return (
            f"CUDA graphs or memory pools hold {format_size(fact.private_unused)} that they do not use and nothing "
            "else can. Drop graphs that are no longer replayed, or let them share a pool."
        )
    if fact.blame is Blame.OTHER_PROCESSES:
        return f"other processes hold {format_size(fact.others or 0)} on {fact.device}. End them, or use another card."
    return _need(fact)


def refused(finding: Finding, fact: Refused) -> list[str]:
    """An out-of-memory error without evidence."""
    if fact.error is not None:
        return [f"out of memory on {finding.device}; no evidence: {fact.error}"]
    return ["out of memory; it is unknown what was live, because nothing was recorded (--cudamem-stacks=off)"]


def empty_pool(finding: Finding, fact: EmptyPool) -> list[str]:
    """A reserved pool without live blocks."""
    size = format_size(finding.bytes or 0)
    return [
        f"private pool {fact.pool} of a CUDA graph keeps {size} without a live block ({finding.device})",
        f"   a capture of {fact.test} failed, or its graph's tensors were freed; nothing else can use this memory",
        *(f"   also {format_size(size)} held by {GRAPH_STATE}" for size in fact.beside),
        f"   hint: {POOL_HINT}",
    ]


def compiler_pool(finding: Finding, fact: CompilerPool) -> list[str]:
    """What torch.compile keeps reserved for its graphs."""
    size = format_size(finding.bytes or 0)
    title = f"the pool of torch.compile's CUDA graphs keeps {size} without a live block ({finding.device})"
    return [title, "   torch.compiler.reset() frees it"]


def _need(fact: OutOfMemory) -> str:
    asked = format_size(fact.requested)
    largest = f" The largest line is {fact.largest}." if fact.largest is not None else ""
    if fact.base is None or fact.allowed is None:
        live = format_size(fact.live.total)
        return f"the test needs more memory than the device has: {live} are live, {asked} more were requested.{largest}"
    room, used = fact.allowed - fact.base, max(0, fact.held - fact.base)
    if fact.requested > room:
        return f"a single request of {asked} exceeds the {format_size(room)} limit.{largest}"
    taken = f"{format_size(used)} are in use, {asked} more were requested"
    return f"the code exceeds its limit of {format_size(room)}: {taken}.{largest}"


def _figures(fact: OutOfMemory) -> list[tuple[str, str, str]]:
    limit = ""
    if fact.base is not None and fact.allowed is not None:
        room, base = format_size(fact.allowed - fact.base), format_size(fact.base)
        limit = f"{room} above the {base} at the start of the limit"
    rows = [("allowed", _known(fact.allowed), limit), ("allocated", format_size(fact.live.total), "")]
    if fact.main is not None:
        detail = f"largest range {format_size(fact.main.largest_free)}" if fact.main.free else ""
        rows.append(("reserved, not allocated", format_size(fact.main.free), detail))
        if fact.private:
            held = sum(pool.reserved for pool in fact.private)
            detail = f"{count(len(fact.private), 'pool')}, {format_size(fact.private_unused)} of it unused"
            rows.append(("private pools", format_size(held), detail))
        rows.append(("free on the device", _known(fact.free), ""))
        rows.append(("other processes", _known(fact.others), ""))
    rows += [_left(one) for one in fact.left[:_OWNERS]]
    rest = sum(one.bytes for one in fact.left[_OWNERS:])
    if rest:
        rows.append((f"left by {len(fact.left) - _OWNERS} others", format_size(rest), ""))
    if fact.before:
        detail = "or allocated by it: its first events were dropped" if fact.dropped else ""
        rows.append(("live before the test", format_size(fact.before), detail))
    return rows


def _left(one: Left) -> tuple[str, str, str]:
    detail = f"allocated by {one.line}" if one.line is not None else ""
    return f"left by {one.owner}", format_size(one.bytes), detail


def _known(size: int | None) -> str:
    return "unknown" if size is None else format_size(size)
