"""The memory of a recording over time by category, as the curves of a report. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from cudamem_testing.model.curves import MOST_POINTS, Band, Curve, Stretch, chosen, steps_of
from cudamem_testing.model.devices import Device
from cudamem_testing.show.printable import one_line
from cudamem_testing.trace.series import NamedSpan, Series
from cudamem_testing.trace.timeline import Timeline

MOST_STRETCHES, DEEPEST = 30, 1


def curves_of(timeline: Timeline) -> Iterator[Curve]:
    """One for each device on which something happened."""
    for device in timeline.devices:
        series = timeline.series(device)
        if series.totals:
            yield _curve(series, timeline.notes)


def _curve(series: Series, notes: tuple[str, ...]) -> Curve:
    spans = [span for span in series.spans if span.depth <= DEEPEST][:MOST_STRETCHES]
    ends = [(_at(series, span.start), _at(series, span.end)) for span in spans]
    fixed = {series.peak, *(end for both in ends for end in both)}
    kept = chosen(series.totals.__getitem__, len(series.totals), MOST_POINTS, fixed)
    place = {old: new for new, old in enumerate(kept)}
    bands = (
        Band(name, "category", steps_of([column[old] for old in kept]))
        for name, column in series.sizes.items()
        if any(column)
    )
    return Curve(
        Device.parse(series.device),
        "category",
        tuple(kept),
        tuple(series.times[old] // 1000 for old in kept),
        tuple(bands),
        tuple(_stretch(span, place[first], place[last]) for span, (first, last) in zip(spans, ends, strict=True)),
        place[series.peak],
        (),
        len(series.totals),
        tuple(map(one_line, notes)),
    )


def _at(series: Series, time: int) -> int:
    """The index of the last sample up to a time, in nanoseconds."""
    return max(bisect_right(series.times, max(time, 0)) - 1, 0)


def _stretch(span: NamedSpan, first: int, last: int) -> Stretch:
    return Stretch(one_line(span.name), first, last)
