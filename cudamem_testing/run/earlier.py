"""The blocks of a card that collections of a test met, from the allocator's record at the end of the test.

Reading the record takes tens of milliseconds, which a collection must not. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from cudamem_testing.cycles.later import Place
from cudamem_testing.cycles.native import device_name
from cudamem_testing.snapshots.evidence import moment_before

if TYPE_CHECKING:
    from cudamem_testing.run.attribution import Attributions
    from cudamem_testing.run.by_address import ByAddress
    from cudamem_testing.run.evidence import Evidence
    from cudamem_testing.run.running import LeakSubject
    from cudamem_testing.snapshots.replay import Replay
    from cudamem_testing.unfinalized import Moment


class Earlier:
    """What was live at some moments of a test; see :class:`cudamem_testing.cycles.later.Record`.

    ``lost`` is called for each moment that the record has lost.
    """

    def __init__(
        self,
        attributions: Attributions,
        evidence: Evidence,
        subject: LeakSubject,
        moments: Sequence[Moment],
        lost: Callable[[], None],
    ) -> None:
        self._evidence, self._subject, self._lost = evidence, subject, lost
        self._moments = {(device_name(one.device), one.collection): one for one in moments}
        self._ways = attributions.recorded(subject)
        self._replays: dict[str, Replay | None] = {}
        self._found: dict[tuple[str, int], Mapping[int, Place]] = {}

    def at(self, collection: int, device: str) -> Mapping[int, Place] | None:
        """The blocks of a device that were live in a collection, by address; ``None`` if it has no such record."""
        way = self._ways.get(device)
        if way is None:
            return None
        key = device, collection
        if key not in self._found:
            self._found[key] = self._read(way, *key)
        return self._found[key]

    def _read(self, way: ByAddress, device: str, collection: int) -> Mapping[int, Place]:
        if device not in self._replays:
            self._replays[device] = self._evidence.replay(way.recorder.device)
        replayed = self._replays[device]
        then, now = (self._moments.get((device, one)) for one in (collection, 0))
        moment = None
        if replayed is not None and then is not None and now is not None:
            allocations = now.allocations - then.allocations
            moment = moment_before(replayed.recording, allocations, allocations - (now.blocks - then.blocks))
        found = None if replayed is None or moment is None else way.at(self._subject, replayed, moment)
        if found is None:
            self._lost()
            return {}
        live, own = found
        return {address: Place(block.stack, address in own) for block in live if (address := block.address) is not None}
