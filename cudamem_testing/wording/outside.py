"""Text about memory of a card outside torch's allocator. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from cudamem_testing.model.findings import Finding
from cudamem_testing.model.outside import OutsideGrew, OutsideUse
from cudamem_testing.model.sizes import count, format_size

OUTSIDE_HINT = "probably cuFFT plans, library handles, kernels, the context"


def outside_grew(finding: Finding, fact: OutsideGrew) -> list[str]:
    """More memory outside the allocator than before."""
    size = format_size(finding.bytes or 0)
    title = f"{size} more outside torch's allocator since {fact.place} ({finding.device})"
    return [title, f"   {outside(fact.now)}", f"   {OUTSIDE_HINT}"]


def outside(now: OutsideUse) -> str:
    """How much memory of a card a process uses outside torch's allocator."""
    plans = f"; cuFFT keeps {count(now.plans, 'plan')}" if now.plans else ""
    if now.bytes is None:
        return f"memory outside torch's allocator is unknown on {now.device}: neither NVML nor CUDA reports it{plans}"
    size, reserved = format_size(now.bytes), format_size(now.reserved)
    if now.process is not None:
        taken = f"the process uses {format_size(now.process)}, the allocator {reserved} of it"
        return f"{size} of {now.device} are outside torch's allocator: {taken}{plans}"
    taken = f"{format_size(now.in_use or 0)} are in use, maybe by other processes too, {reserved} by the allocator"
    return f"at most {size} of {now.device} are outside torch's allocator: {taken}{plans}"
