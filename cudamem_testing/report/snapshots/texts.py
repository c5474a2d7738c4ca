"""Views of a snapshot as text. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterator

from cudamem_testing.model.curves import Curve
from cudamem_testing.model.pools import MAIN_POOL, PoolUse
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.report.snapshots.looked import Looked
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.show.times import format_time
from cudamem_testing.snapshots.fragmentation import Fragmentation
from cudamem_testing.snapshots.segments import SegmentUse, segment_uses
from cudamem_testing.snapshots.whatif.text import headline, what_if_lines, why_lines
from cudamem_testing.snapshots.whatif.why import failed_request

#: Rows of a timeline, and the cells of its bars.
MOMENTS, BAR = 24, 24
_TIMELINE = (
    Column("event", "right"),
    Column("time", "right"),
    Column("allocated", "right"),
    Column(""),
    Column("largest line then", elastic=True),
)
_POOLS = (
    Column("pool"),
    Column("stream", "right"),
    Column("reserved", "right"),
    Column("unused", "right"),
    Column("largest free", "right"),
    Column("fragmentation", "right"),
)
_SEGMENTS = (
    Column("segment"),
    Column("size", "right"),
    Column("used", "right"),
    Column("largest free", "right"),
    Column("pool"),
    Column("stream", "right"),
    Column("largest line in it", elastic=True),
)
_PARTS = " ▏▎▍▌▋▊▉"


def show(looked: Looked, top: int, width: int | None) -> Iterator[str]:
    """What was live at the peak and at the end, and how the segments are used."""
    yield str(looked.recording)
    if looked.peak_table is not None:
        yield looked.peak_table.text(top, width)
    yield looked.end_table.text(top, width)
    if looked.use is not None:
        yield str(looked.use)
    failed = failed_request(looked.recording)
    if failed is not None:
        yield f"{headline(failed)}: see snapshot why {looked.name}"
    said = looked.recording.notes  # by its own text
    yield from (f"note: {note}" for note in looked.notes if note not in said)


def peak(looked: Looked, top: int, width: int | None) -> Iterator[str]:
    """What was live at the peak, by line."""
    if looked.peak is None or looked.peak_table is None:
        yield "the peak is unknown: no events were recorded"
    else:
        moment, events = looked.peak.moment, len(looked.recording.events)
        where = f"at event {moment} of {events}" if moment else f"before the first of {count(events, 'event')}"
        yield f"peak {where}{_since_start(looked)}"
        yield looked.peak_table.text(top, width)
    yield from (f"note: {note}" for note in looked.notes)


def _since_start(looked: Looked) -> str:
    times, peak = looked.recording.events.times, looked.peak
    if not times or peak is None or not peak.moment:
        return ""
    return f", {format_time(times[peak.moment - 1] - times[0])} after the first"


def fragmentation(looked: Looked, top: int, width: int | None) -> Iterator[str]:
    """How the segments of each pool are used, and which segments have most unused bytes beside live blocks."""
    if looked.use is None:
        yield f"{looked.recording.device} has no segments here: nothing can be fragmented"
        return
    yield str(looked.use)
    yield from Table(_POOLS, tuple(map(_pool, looked.use.streams or (looked.use.main, *looked.use.private)))).lines(
        width
    )
    if looked.request is not None:
        yield from _serves(looked, looked.use, looked.request)
    uses = [one for one in segment_uses(looked.recording) if one.split]
    if uses:
        yield f"segments in use with unused bytes: {len(uses)}"
        yield from Table(_SEGMENTS, tuple(map(_segment, uses[:top]))).lines(width, indent=3)
        if len(uses) > top:
            more = format_size(sum(one.split for one in uses[top:]))
            yield f"   ... {count(len(uses) - top, 'more segment')}: {more} unused"


def _pool(one: PoolUse) -> tuple[str, ...]:
    name = "main" if one.pool == MAIN_POOL else str(one.pool)
    sizes = map(format_size, (one.reserved, one.free, one.largest_free))
    share = f"{100 * one.fragmented:.0f} %" if one.free else ""
    return name, "all" if one.stream is None else str(one.stream), *sizes, share


def _serves(looked: Looked, use: Fragmentation, requested: int) -> Iterator[str]:
    """A request against the free ranges of each stream of the main pool."""
    streams = sorted({one.stream for one in looked.recording.segments if one.pool == MAIN_POOL}) or [0]
    for stream in streams:
        one = use.serves(looked.recording, requested, stream)
        fits = "fits" if one.fits else "does not fit"
        text = f"a request of {format_size(requested)} on stream {stream} {fits}: largest free range "
        text += f"{format_size(one.largest)} of {format_size(one.unused)} unused"
        yield text if one.fits else f"{text}; empty_cache() would return {format_size(one.returnable)}"


def _segment(one: SegmentUse) -> tuple[str, ...]:
    pool = "main" if one.segment.pool == MAIN_POOL else str(one.segment.pool)
    return (
        f"{one.segment.address:#x}",
        format_size(one.segment.size),
        format_size(one.used),
        format_size(one.largest_free),
        pool,
        str(one.segment.stream),
        one.line,
    )


def timeline(looked: Looked, top: int, width: int | None) -> Iterator[str]:
    """The allocated bytes over the events: the highs and lows of equal stretches, and the largest line at each."""
    drawn = looked.curve
    if drawn is None:
        yield "no events were recorded: there is no timeline"
        return
    totals = drawn.totals
    yield f"{format_size(totals[drawn.peak])} at the peak, event {drawn.moments[drawn.peak]} of {drawn.events}"
    yield from Table(_TIMELINE, tuple(_moments(drawn))).lines(width)
    yield from (f"note: {note}" for note in drawn.notes)


def _moments(drawn: Curve) -> Iterator[tuple[str, ...]]:
    thin = drawn.thinned(MOMENTS, 1)
    points = len(thin.moments)
    columns = [(band.label, band.sizes(points)) for band in thin.bands]
    totals = thin.totals
    most = max(totals) or 1
    for place, moment in enumerate(thin.moments):
        label, size = max(((name, sizes[place]) for name, sizes in columns), key=lambda one: one[1], default=("", 0))
        yield (
            str(moment),
            "" if thin.times is None else format_time(thin.times[place]),
            format_size(totals[place]),
            f"{_bar(totals[place], most)}{' peak' if place == thin.peak else ''}",
            f"{format_size(size)}  {label}" if size else "",
        )


def _bar(size: int, most: int) -> str:
    eighths = size * BAR * 8 // most
    return "█" * (eighths // 8) + _PARTS[eighths % 8].strip()


def flamegraph(looked: Looked, top: int, width: int | None) -> Iterator[str]:
    """Folded stacks of what ``--of`` names."""
    yield from looked.flame(looked.of).folded()


def churn(looked: Looked, top: int, width: int | None) -> Iterator[str]:
    """Lines that allocate and free again at once."""
    if len(looked.recording.events):
        yield looked.churn.text(top)
    else:
        yield "churn is unknown: no events were recorded"


def why(looked: Looked, top: int, width: int | None) -> Iterator[str]:
    """Why a request did not fit, and what would have changed that."""
    if looked.why is not None:
        yield from why_lines(looked.why, top, width)
    elif looked.recording.device.is_card:
        yield f"no request failed in {looked.name}"
    if isinstance(looked.what_if, str):
        yield f"what other settings would have changed is unknown: {looked.what_if}"
    else:
        yield from what_if_lines(looked.what_if, width)
    yield from (f"note: {note}" for note in looked.notes_of_why)
