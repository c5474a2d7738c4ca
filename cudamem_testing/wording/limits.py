"""Text of broken limits. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Outgrew, OverLimit
from cudamem_testing.model.findings import Finding
from cudamem_testing.model.limits import Breach
from cudamem_testing.model.scaling import Scaling, Series
from cudamem_testing.model.sizes import format_size
from cudamem_testing.wording import evidence


def over_limit(finding: Finding, fact: OverLimit) -> list[str]:
    """The number and its limit, the levels of the window, and what the memory consisted of."""
    breach, window = fact.breach, fact.breach.window
    levels = {
        "peak": (("start", window.start), ("peak", window.peak), ("end", window.end)),
        "reserved": (("start", window.reserved_start), ("peak", window.reserved_peak)),
        "fragmentation": (
            ("reserved at the start", window.reserved_start),
            ("at its peak", window.reserved_peak),
            ("allocated at its peak", window.peak),
        ),
        "retained": (("start", window.start), ("end", window.end)),
    }.get(breach.limit.metric)
    lines = [broken(breach)]
    if levels is not None:
        lines.append(", ".join(f"{name} {format_size(size)}" for name, size in levels if size is not None))
    return lines + [f"note: {note}" for note in window.notes] + evidence.lines(fact.evidence)


def outgrew(finding: Finding, fact: Outgrew) -> list[str]:
    """How the peak grows, and the sizes, the fit and the lines that grow fastest."""
    series = Series(fact.over, fact.sizes, fact.bytes, lines=dict(fact.lines))
    return Scaling(finding.device or Device("cpu"), (series,)).failure(series, fact.promise)


def broken(breach: Breach) -> str:
    """``peak 612.4 MiB above start is over its budget of 512.0 MiB by 100.4 MiB (cuda:0)``."""
    limit, shown = breach.limit, breach.limit.text
    above = " above start" if limit.metric in ("peak", "reserved") and not limit.absolute else ""
    verdict = "over its budget" if limit.side == "at most" else "under its lower bound"
    window = breach.window
    place = f"{window.device}" if window.name == "call" else f"{window.name}, {window.device}"
    return (
        f"{limit.metric} {shown(breach.measured)}{above} is {verdict} of {shown(breach.bound)} "
        f"by {shown(breach.excess)} ({place})"
    )
