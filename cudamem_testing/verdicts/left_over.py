"""The finding of blocks that the tests of a file left although the counts of each test balanced.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import LeftOver
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.live_tables import live_table


def left_over(place: str, device: Device, live: LiveSet | None, blocks: Sequence[Block]) -> Finding:
    """The finding of some ``blocks`` of a file; ``live`` are all that are live now."""
    live = LiveSet(device) if live is None else live
    table = live_table(replace(live, blocks=tuple(blocks), rounding=0, notes=()), "still live").cut()
    return Finding(
        Kind.LEAK,
        Verdict.UNATTRIBUTED,
        Severity.WARN,
        LeftOver(place, table),
        bytes=sum(block.size for block in blocks),
        device=device,
        allocated=blocks[0].stack.line if blocks else None,
        cause=f"leak | {Verdict.UNATTRIBUTED.value} | {place}",
    )
