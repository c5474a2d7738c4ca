"""The books: who left what on each device, kept while tests run.

Where blocks carry owners (the CPU) the recorder keeps them. Elsewhere blocks are entered by address when they are
found: what a wider fixture made, what a test retains, and at the end of each module what came out even in every test's
counts and yet is new. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from dataclasses import replace

from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.records import LedgerEntry
from cudamem_testing.recorders.base import Owned, Recorder
from cudamem_testing.run.evidence import Evidence
from cudamem_testing.windows.owners import Owners
from cudamem_testing.windows.tracker import Tracker


class Books:
    """Who left what is live."""

    def __init__(self, tracker: Tracker, owners: Owners, evidence: Evidence) -> None:
        self._tracker = tracker
        self._owners = owners
        self._evidence = evidence
        self._known: dict[Device, set[int]] = {}

    def known(self, device: Device) -> set[int]:
        """Addresses of blocks that are no news: from before, or with an owner."""
        return self._known.get(device, set()) | self._evidence.ledger.entered(device)

    def begin(self) -> None:
        """What is live when the first test has just begun is nobody's."""
        for recorder in self._tracker.recorders:
            if recorder.device not in self._known:
                self._known[recorder.device] = self._unentered(recorder)

    def border(self, place: str) -> list[Finding]:
        """At the end of a module: blocks that nobody was blamed for, because every test's counts came out even."""
        found = []
        for recorder in self._tracker.recorders:
            now = self._unentered(recorder)
            new = now - self._known.get(recorder.device, set())
            self._known[recorder.device] = now
            if new:
                found.append(self._hidden(recorder.device, place, new))
        return found

    def ledger(self) -> list[LedgerEntry]:
        """Who left what is live now, largest first."""
        totals: dict[Device, dict[str, Owned]] = self._owners.ledger()
        totals.update(self._evidence.ledger.totals())
        entries = [
            LedgerEntry(str(device), owner, owned.bytes, owned.blocks)
            for device, by_owner in totals.items()
            for owner, owned in by_owner.items()
        ]
        return sorted(entries, key=lambda entry: -entry.bytes)

    def _unentered(self, recorder: Recorder) -> set[int]:
        if recorder.tells_owners or not recorder.tells_blocks:
            return set()
        known = self._tracker.known(recorder)  # at the start or the end of a test
        if known is not None and known.blocks == 0:  # a record of nothing costs all the same
            return set()
        replayed = self._evidence.replay(recorder.device)
        return set() if replayed is None else self._evidence.ledger.unknown(replayed.recording)

    def _hidden(self, device: Device, place: str, addresses: set[int]) -> Finding:
        from cudamem_testing.model.blocks import LiveSet
        from cudamem_testing.model.facts import LeftOver
        from cudamem_testing.model.live_tables import live_table

        replayed = self._evidence.replay(device)
        live = replayed.live_at() if replayed is not None else LiveSet(device)
        blocks = tuple(replace(block, preexisting=False) for block in live if block.address in addresses)
        self._evidence.ledger.enter(device, f"{place} (which test is not known)", blocks)
        table = live_table(replace(live, blocks=blocks, rounding=0, notes=()), "still live").cut()
        size = sum(block.size for block in blocks)
        return Finding(
            Kind.LEAK,
            Verdict.UNATTRIBUTED,
            Severity.WARN,
            LeftOver(place, table),
            bytes=size,
            device=device,
            allocated=blocks[0].stack.line if blocks else None,
            cause=f"leak | {Verdict.UNATTRIBUTED.value} | {place}",
        )
