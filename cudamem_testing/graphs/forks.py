"""Finds side streams of a capture with work that the capturing stream never waited for.

A stream knows how much work of each stream comes before its next one; an event keeps what its stream knew when it was
recorded, and a stream that waits for it learns that (vector clocks: C. Fidge, 1988). PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from cudamem_testing.graphs.report import SourceLine

Stream = Hashable
Clock = dict[Stream, int]


class Forks:
    """Follows the streams of one run; ``current`` returns the one in use."""

    def __init__(self, current: Callable[[], Stream]) -> None:
        self._current = current
        self._clocks: dict[Stream, Clock] = {}
        # Strong references: torch frees a CUDA event without clearing its weak references (2.11, and
        # other versions whose torch.Event has room for them), which then point into other objects' memory.
        self._events: dict[object, Clock] = {}
        self._last: dict[Stream, tuple[str, SourceLine]] = {}

    def worked(self, stream: Stream, operator: str, place: SourceLine) -> None:
        """An operator queued work on a stream at a place."""
        clock = self._clocks.setdefault(stream, {})
        clock[stream] = clock.get(stream, 0) + 1
        self._last[stream] = operator, place

    def recorded(self, event: object, stream: Stream) -> None:
        """An event was recorded on a stream."""
        self._events[event] = {**self._clocks.get(stream, {})}

    def waited(self, event: object, stream: Stream) -> None:
        """A stream waits for an event."""
        clock = self._clocks.setdefault(stream, {})
        for other, count in self._events.get(event, {}).items():
            clock[other] = max(count, clock.get(other, 0))

    def unjoined(self, origin: Stream) -> tuple[str, SourceLine] | None:
        """The last operator, and its place, of a stream whose work does not come before what ``origin`` does next."""
        known = self._clocks.get(origin, {})
        behind = [stream for stream in self._last if self._clocks[stream][stream] > known.get(stream, 0)]
        return next((self._last[stream] for stream in reversed(behind) if stream != origin), None)

    def changes(self) -> list[tuple[object, str, object]]:
        """Replacements for the methods of ``torch.cuda.Event`` that make streams wait for each other."""
        record, wait = torch.cuda.Event.record, torch.cuda.Event.wait

        def noted_record(event: Any, stream: Any = None) -> None:
            record(event, stream)
            self.recorded(event, self._of(stream))

        def noted_wait(event: Any, stream: Any = None) -> None:
            wait(event, stream)
            self.waited(event, self._of(stream))

        return [(torch.cuda.Event, "record", noted_record), (torch.cuda.Event, "wait", noted_wait)]

    def _of(self, stream: Any) -> Stream:
        return self._current() if stream is None else int(stream.cuda_stream)
