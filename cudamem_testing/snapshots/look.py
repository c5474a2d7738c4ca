"""Shows a recording: what was live at its peak and at its end, and how its memory is used. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterator

from cudamem_testing.model.live_tables import live_section
from cudamem_testing.snapshots.fragmentation import fragmentation
from cudamem_testing.snapshots.record import Recording
from cudamem_testing.snapshots.replay import replay


def look(recording: Recording, width: int | None = None) -> str:
    """The sections as text: the peak if there are events, the end, and pools if there are segments."""
    return "\n".join(_lines(recording, width))


def _lines(recording: Recording, width: int | None) -> Iterator[str]:
    yield str(recording)
    replayed = replay(recording)
    notes: tuple[str, ...] = ()
    if len(recording.events):
        peak = replayed.peak(since=0).live
        yield live_section(peak, width=width)
        notes = peak.notes
    live = replayed.live_at()
    yield live_section(live, title="live at the end", width=width)
    if recording.segments:
        yield str(fragmentation(recording))
    said = recording.notes  # by its own text
    yield from (f"note: {note}" for note in dict.fromkeys((*notes, *live.notes)) if note not in said)
