"""What changed: the lines that were live at the peak against those that a baseline keeps.

Lines are the same where function and text are. One whose text was edited is found by its function and a similar text
(:class:`difflib.SequenceMatcher`), and one of a renamed function by file and text. The first line of the result is
where to look first: an edited or new line that accounts for a good part of the growth comes before lines that are
unchanged and hold more, for these mostly follow from it. Where blocks are twice as large and as many as before (another
dtype), the line that allocates first is where it begins. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from cudamem_testing.model.baselines import TOP, PeakLine
from cudamem_testing.model.changes import ChangedPlace
from cudamem_testing.model.nodeids import file_of
from cudamem_testing.verdicts.lines import DIGITS, Line, fingerprint

MOST, GONE = 8, 3
"""Most lines that are named, of those that grew, and of those that are gone or shrank."""
_ALIKE = 0.6
_SHARE = 8  # an edited line with more than this part of the growth is the first to look at
_SMALL = 100  # less than this part of the growth is not worth a line

Pair = tuple[PeakLine | None, Line | None]


def changed_places(
    before: Sequence[PeakLine], lines: Sequence[Line], known: str = ""
) -> tuple[list[ChangedPlace], int]:
    """Lines that grew or are new, then lines that are gone or shrank; and how many more there are.

    ``known`` are the fingerprints of the lines that allocated when the baseline was recorded.
    """
    by_line = not before or any(place.text for place in before)
    pairs = _pairs(before, lines if by_line else _by_function(lines))
    hidden = before[-1].bytes if len(before) >= TOP else 0
    numbers = _numbers(lines) if not by_line else {}
    orders: dict[int, int] = {}
    found = []
    there = {known[start : start + DIGITS] for start in range(0, len(known), DIGITS)}
    for place, line in pairs:
        one = _changed(place, line, hidden, numbers, before)
        if line is not None and place is None and not hidden and there:
            is_old = fingerprint(line.name, line.text, line.nth) in there
            one = replace(one, before=0) if is_old else one  # not at the peak then
        if line is not None:
            one = _with_result(one, line, lines)
        orders[id(one)] = 0 if line is None else line.order
        found.append(one)
    total = sum(one.growth for one in found if one.growth > 0)
    grew = [one for one in found if one.growth > 0 and one.growth * _SMALL >= total]
    less = [one for one in found if one.growth < 0 and -one.growth * _SMALL >= total]
    first = _where_larger_blocks_begin(grew, orders, total)
    grew.sort(key=lambda one: (one is not first, not _edited(one, total), -one.growth, orders[id(one)]))
    less.sort(key=lambda one: one.growth)
    return [*grew[:MOST], *less[:GONE]], max(0, len(grew) - MOST) + max(0, len(less) - GONE)


def _with_result(one: ChangedPlace, line: Line, lines: Sequence[Line]) -> ChangedPlace:
    """The place with the last later line that has as many live blocks: results that may keep it.

    Only of an unchanged line with three live blocks or more, and more than before, made in grad mode and freed by no
    backward pass: something keeps the results, and their graphs what was made for them. A line that is kept alone has
    no such result. At the peak the last result may not be there yet.
    """
    more = one.before is not None and line.blocks > max(2, one.blocks_before)
    if not (more and line.is_recorded) or one.was or one.is_for_backward:
        return one
    later = (other for other in lines if other.order > line.order and other.is_recorded and other.frame is not None)
    fitting = (other for other in later if other.blocks >= line.blocks - 1)
    result = max(fitting, key=lambda other: other.order, default=None)
    return one if result is None else replace(one, result=result.frame)


def _where_larger_blocks_begin(
    grew: Sequence[ChangedPlace], orders: Mapping[int, int], total: int
) -> ChangedPlace | None:
    """If larger blocks make most of the growth: the first to allocate among such lines and edited ones."""
    larger = [one for one in grew if one.factor is not None]
    if not larger or 2 * sum(one.growth for one in larger) < total:
        return None
    return min((one for one in grew if one.factor or _is_other(one)), key=lambda one: orders[id(one)])


def _is_other(one: ChangedPlace) -> bool:
    """Whether its text is new; a line that autograd keeps now may have existed before."""
    return bool(one.was) or (one.before is None and bool(one.text) and not one.hidden and not one.recorded)


def _edited(one: ChangedPlace, total: int) -> bool:
    """Whether its text is new, and it accounts for a good part of the growth."""
    return _is_other(one) and one.growth * _SHARE >= total


def _pairs(before: Sequence[PeakLine], lines: Sequence[Line]) -> Iterator[Pair]:
    """Each recorded place with its line, and those that have no partner."""
    old = {(place.name, place.text, place.nth): place for place in before}
    new = {(line.name, line.text, line.nth): line for line in lines}
    for key in [key for key in old if key in new]:
        yield old.pop(key), new.pop(key)
    left, fresh = [*old.values()], [*new.values()]
    for partners in (_alike, _moved):
        for place, line in partners(left, fresh):
            left.remove(place)
            fresh.remove(line)
            yield place, line
    yield from ((place, None) for place in left)
    yield from ((None, line) for line in fresh)


def _alike(places: Iterable[PeakLine], lines: Sequence[Line]) -> list[tuple[PeakLine, Line]]:
    """Lines of one function whose texts are alike, the most alike first."""
    ratios = [
        (SequenceMatcher(None, place.text, line.text, autojunk=False).ratio(), place, line)
        for place in places
        for line in lines
        if place.name == line.name and place.text and line.text
    ]
    ratios.sort(key=lambda one: (-one[0], one[1].text, one[2].text))
    return _greedy((place, line) for ratio, place, line in ratios if ratio >= _ALIKE)


def _moved(places: Iterable[PeakLine], lines: Sequence[Line]) -> list[tuple[PeakLine, Line]]:
    """Lines of one file with the same text in functions of other names."""
    return _greedy(
        (place, line)
        for place in places
        for line in lines
        if place.text and (file_of(place.name), place.text, place.nth) == (file_of(line.name), line.text, line.nth)
    )


def _greedy(pairs: Iterable[tuple[PeakLine, Line]]) -> list[tuple[PeakLine, Line]]:
    """The first pair of each place and line."""
    found: list[tuple[PeakLine, Line]] = []
    for place, line in pairs:
        if all(place is not one and line is not other for one, other in found):
            found.append((place, line))
    return found


def _by_function(lines: Sequence[Line]) -> list[Line]:
    """Lines put together by function, for baselines that were recorded so."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.name, []).append(line)
    return [_together(some) for some in found.values()]


def _together(lines: Sequence[Line]) -> Line:
    most = max(lines, key=lambda line: (line.bytes, 0 if line.frame is None else line.frame.line))
    size, blocks = sum(line.bytes for line in lines), sum(line.blocks for line in lines)
    saved = sum(line.saved for line in lines)
    first = min(line.order for line in lines)
    return Line(most.name, "", 0, most.frame, size, blocks, saved, None, first, most.call, most.caller)


def _numbers(lines: Sequence[Line]) -> Mapping[str, tuple[int, ...]]:
    numbers: dict[str, set[int]] = {}
    for line in lines:
        if line.frame is not None:
            numbers.setdefault(line.name, set()).add(line.frame.line)
    return {name: tuple(sorted(some)) for name, some in numbers.items()}


def _changed(
    place: PeakLine | None,
    line: Line | None,
    hidden: int,
    numbers: Mapping[str, tuple[int, ...]],
    before: Sequence[PeakLine],
) -> ChangedPlace:
    if line is None:
        if place is None:
            raise ValueError("neither a place nor a line is given")
        return ChangedPlace(
            place.name, None, (), place.bytes, 0, saved_before=place.saved, blocks_before=place.blocks, text=place.text
        )
    return ChangedPlace(
        line.name,
        line.frame,
        numbers.get(line.name, ()),
        None if place is None else place.bytes,
        line.bytes,
        hidden if place is None else 0,
        line.saved,
        0 if place is None else place.saved,
        line.blocks,
        0 if place is None else place.blocks,
        line.text,
        place.text if place is not None and place.text != line.text else "",
        line.call,
        line.caller,
        recorded=line.is_recorded is True and _was_without_grad(place, line, before),
    )


def _was_without_grad(place: PeakLine | None, line: Line, before: Sequence[PeakLine]) -> bool:
    """Whether grad mode was off at a line when the baseline was recorded.

    A line without a place is judged by those of its function, and if there are none, by all.
    """
    function = [one for one in before if one.name == line.name]
    telling = [place] if place is not None else function or before
    return bool(telling) and all(one.recorded is False for one in telling)
