"""Why a request did not fit, and what would have changed that, in words. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterator

from cudamem_testing.model.pools import MAIN_POOL
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.show.times import format_time
from cudamem_testing.snapshots.whatif.answers import WELL, Answer, WhatIf
from cudamem_testing.snapshots.whatif.why import Obstacle, Request, Why

_FIGURES = (Column("what"), Column("size", "right"), Column("detail"))
_OBSTACLES = (Column("size", "right"), Column("blocks", "right"), Column("line", elastic=True), Column("age"))
_ANSWERS = (Column("with"), Column("peak reserved"), Column("the request"))


def why_lines(why: Why, top: int = 10, width: int | None = None) -> Iterator[str]:
    """What was requested, what was free, the verdict, and the blocks in the way."""
    yield headline(why)
    yield from Table(_FIGURES, tuple(figures(why))).lines(header=False, indent=3)
    yield verdict(why)
    if why.obstacles:
        yield in_the_way(why)
        rows = tuple(obstacle_row(one) for one in why.obstacles[:top])
        yield from Table(_OBSTACLES, rows).lines(width, header=False, indent=3)
        if len(why.obstacles) > top:
            rest = sum(one.size for one in why.obstacles[top:])
            yield f"   ... {count(len(why.obstacles) - top, 'more line')}: {format_size(rest)}"


def headline(why: Request) -> str:
    """``out of memory on cuda:0: 200.0 MiB requested by a.py:26 in f``."""
    text = f"out of memory on {why.device}: {format_size(why.requested)} requested"
    text += f" by {why.where}" if why.where is not None else ""
    if why.pool != MAIN_POOL:
        text += f", in private pool {why.pool}"
    return f"{text}, on stream {why.stream}" if why.stream else text


def figures(why: Why) -> Iterator[tuple[str, str, str]]:
    """Name, size and detail of each number."""
    rounded = f"a block of {format_size(why.needed)}, " if why.needed != why.requested else ""
    yield "requested", format_size(why.requested), f"{rounded}a new segment for it {format_size(why.segment)}"
    yield "largest free range", format_size(why.largest_free), "that could serve it without a new segment"
    yield "live", format_size(why.live), ""
    if why.waiting:
        yield "waiting", format_size(why.waiting), "freed, but another stream may still use it"
    yield "unused", format_size(why.unused), f"{format_size(why.split)} of it beside live blocks" if why.unused else ""
    if why.private_unused:
        yield "unused in private pools", format_size(why.private_unused), "nothing else can use it"
    yield "reserved", format_size(why.reserved), ""
    yield "free on the card", format_size(why.device_free), ""
    if why.capacity is not None:
        name = "can be reserved" if why.capacity.exact else "can be reserved at least"
        limit = "a limit of torch was met (set_per_process_memory_fraction)" if why.capacity.limited else ""
        yield name, format_size(why.capacity.least), limit


def verdict(why: Why) -> str:
    """Whether the bytes were missing, or only in the wrong places."""
    if why.fragmented:
        share = f"{100 * why.fragmentation:.0f} %"
        enough = "which would be enough"
        if why.unused < why.needed:
            enough = f"enough with the {format_size(why.room)} that can still be reserved"
        text = f"fragmentation: {format_size(why.unused)} are unused, {enough}, but no free range "
        if why.withheld:
            text += f"that it may use is larger than {format_size(why.largest_free)}: max_split_size_mb leaves "
            return f"{text}{format_size(why.withheld)} to larger requests"
        return f"{text}is larger than {format_size(why.largest_free)} (fragmentation {share})"
    room = ""
    if why.capacity is not None:
        least = "" if why.capacity.exact else "at least "
        room = f", and {least}{format_size(why.capacity.least)} can be reserved"
    return (
        f"too little memory: {format_size(why.live)} are live and {format_size(why.requested)} more were "
        f"requested{room}; {format_size(why.unused)} are unused"
    )


def in_the_way(why: Why) -> str:
    """What freeing the obstacles would gain."""
    moved = f"in the way: {format_size(why.moved)} of live blocks; without them"
    if why.by_segments:
        return f"{moved} segments of {format_size(why.gained)} could be returned to the card"
    return f"{moved} {format_size(why.gained)} would be free in a row"


def obstacle_row(one: Obstacle) -> tuple[str, str, str, str]:
    """Size, blocks, line and age of the blocks of one line."""
    return format_size(one.size), count(one.blocks, "block"), one.line, age(one)


def age(one: Obstacle) -> str:
    """``allocated 2.6 ms to 3.1 ms before``."""
    if one.oldest is None or one.newest is None:
        return "live before the first recorded event" if one.before else ""
    newest, oldest = format_time(one.newest), format_time(one.oldest)
    text = f"allocated {newest} before" if newest == oldest else f"allocated {newest} to {oldest} before"
    return f"{text}, some before the first recorded event" if one.before else text


def what_if_lines(asked: WhatIf, width: int | None = None) -> Iterator[str]:
    """A line for each change, the best one in a sentence, and how far the model agrees with the record."""
    if asked.best is not None:
        yield sentence(asked, asked.best)
    elif asked.requested is not None and asked.answers and asked.reliable:
        unknown = any(one.fits is None and one.earlier is None for one in asked.answers)
        yield f"none of these changes {'surely ' if unknown else ''}makes room for the request"
    if asked.answers:
        yield "peak reserved with each change"
        rows = tuple((one.what, instead(asked, one), outcome(asked, one)) for one in asked.answers)
        yield from Table(_ANSWERS, rows).lines(header=False, indent=3)
    else:
        yield "no other settings were tried: segments are expandable already; name some with --with"
    yield trust(asked)


def sentence(asked: WhatIf, one: Answer) -> str:
    """``with expandable_segments:True: peak reserved 61.2 GiB instead of 78.9 GiB, the request fits``."""
    end = outcome(asked, one)
    return f"with {one.what}: peak reserved {instead(asked, one)}" + (f", {end}" if end else "")


def instead(asked: WhatIf, one: Answer) -> str:
    """The peak, and that of the record: ``61.2 GiB instead of 78.9 GiB``."""
    mine, most, recorded = map(_precise, (one.peak_reserved, one.at_most, asked.recorded))
    if mine != most:
        return f"{mine} to {most} instead of {recorded}"
    return f"{mine}, as recorded" if mine == recorded else f"{mine} instead of {recorded}"


def _precise(size: int) -> str:
    """Two decimals from 1 GiB on, where one hides a segment."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else format_size(size)


def range_and_outcome(asked: WhatIf, one: Answer) -> str:
    """The least that would be reserved, if that is not known exactly, and whether the request fits."""
    least = f"or less, from {_precise(one.peak_reserved)}" if one.peak_reserved != one.at_most else ""
    return "; ".join(filter(None, (least, outcome(asked, one))))


def outcome(asked: WhatIf, one: Answer) -> str:
    """Whether the request fits; empty where none failed."""
    if one.earlier is not None:
        return f"memory runs out earlier, at event {one.earlier}"
    if asked.requested is None:
        return ""
    if one.fits is None:
        if one.kind == "setting" and asked.before and asked.capacity is not None and asked.capacity.exact:
            return "whether the request fits depends on where the live blocks of before lie"
        return "it is unknown whether the request fits: pass --capacity"
    if one.fits:
        return "the request fits"
    return f"the request does not fit: the largest free range is {format_size(one.largest_free)}"


def trust(asked: WhatIf) -> str:
    """How far the model agrees with the record."""
    events = f"{asked.events:,} {'event' if asked.events == 1 else 'events'}"
    text = f"{events} replayed on a model of the allocator; with the recorded settings it reserves "
    text += f"{_precise(asked.model)}, {_precise(asked.recorded)} were recorded"
    if abs(asked.off) > WELL:
        text += f". It is off by {100 * asked.off:+.0f} %: do not rely on these answers"
    if asked.contradicted:
        text += ". The request that failed fits on it with these settings: do not rely on what it says of the request"
    if asked.before:
        text += f". {format_size(asked.before)} were live before the first event: where they would lie is unknown, so "
        text += "settings are tried with them in a row, and as they lay"
    return text
