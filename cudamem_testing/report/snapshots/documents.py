"""Views of a snapshot as JSON: sizes in bytes, times in microseconds, unknown values ``null``.

Stacks are lists of ``[file, line, function]``, innermost first. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cudamem_testing.model.blocks import LiveSet
from cudamem_testing.model.live_tables import LiveRow, LiveTable
from cudamem_testing.model.pools import PoolUse
from cudamem_testing.model.stacks import Frame
from cudamem_testing.report.snapshots.looked import Looked
from cudamem_testing.snapshots.diff import Difference, Grown
from cudamem_testing.snapshots.segments import SegmentUse, segment_uses
from cudamem_testing.snapshots.whatif.answers import WhatIf
from cudamem_testing.snapshots.whatif.job import Capacity
from cudamem_testing.snapshots.whatif.why import Why

Json = dict[str, Any]


def document(looked: Looked, verb: str, top: int) -> Json:
    """What a verb shows of one file."""
    data: Json = {"file": looked.name, **_recording(looked), "notes": [*looked.notes]}
    if verb in ("show", "peak"):
        data["peak"] = None if looked.peak is None else {"event": looked.peak.moment, **_live(looked.peak_table, top)}
    if verb == "show":
        data["end"] = _live(looked.end_table, top)
    if verb in ("show", "fragmentation"):
        data["pools"] = [] if looked.use is None else [_pool(one) for one in (looked.use.main, *looked.use.private)]
    if verb == "fragmentation":
        data["streams"] = [] if looked.use is None else [_pool(one) for one in looked.use.streams]
        data["segments"] = [_segment(one) for one in segment_uses(looked.recording)[:top]]
    if verb == "churn":
        data["churn"] = [asdict(one) for one in looked.churn.rows[:top]]
    if verb == "flamegraph":
        data |= _flame(looked)
    if verb == "why":
        data["why"], data["what_if"] = _why(looked.why), _what_if(looked.what_if)
        data["notes"] = [*looked.notes_of_why]
    if verb == "timeline":
        data["timeline"] = _timeline(looked)
    return data


def json_text(verb: str, found: Sequence[Json]) -> str:
    """What a command prints."""
    return json.dumps({"schema": 1, "kind": "snapshot", "command": verb, "snapshots": found}, indent=1)


def difference(before: Looked, after: Looked, found: Difference) -> Json:
    """What is new, gone and grown."""
    return {
        "before": before.name,
        "after": after.name,
        "device": str(after.recording.device),
        "growth": found.growth,
        "new": _blocks(found.new),
        "gone": _blocks(found.gone),
        "grown": [_grown(one) for one in found.grown],
        "notes": [*found.notes],
    }


def _recording(looked: Looked) -> Json:
    one = looked.recording
    return {
        "device": str(one.device),
        "allocated": one.allocated,
        "reserved": one.reserved,
        "blocks": len(one.blocks),
        "events": len(one.events),
        "dropped": one.truncated,
        "settings": None if one.settings.raw is None else one.settings.raw.get("PYTORCH_CUDA_ALLOC_CONF"),
    }


def _live(table: LiveTable | None, top: int) -> Json:
    if table is None:
        return {}
    rows = [_row(row) for row in table.rows(top)]
    return {"bytes": table.total, "blocks": table.blocks, "lines": rows}


def _row(row: LiveRow) -> Json:
    place = frame(row.frame) if row.frame is not None else None
    return {
        "bytes": row.size,
        "blocks": row.blocks,
        "kind": row.origin,
        "line": row.line,
        "at": place,
        "by": row.detail,
    }


def frame(one: Frame) -> list[object]:
    """A frame as ``[file, line, function]``."""
    return [one.file, one.line, one.function]


def _pool(one: PoolUse) -> Json:
    return {
        "pool": [*one.pool],
        "stream": one.stream,
        "segments": one.segments,
        "reserved": one.reserved,
        "allocated": one.allocated,
        "waiting": one.waiting,
        "unused": one.free,
        "beside_blocks_in_use": one.split,
        "largest_unused": one.largest_free,
        "padding": one.padding,
        "fragmentation": round(one.fragmented, 6),
    }


def _segment(one: SegmentUse) -> Json:
    return {
        "address": one.segment.address,
        "bytes": one.segment.size,
        "used": one.used,
        "blocks": one.blocks,
        "beside_blocks_in_use": one.split,
        "largest_unused": one.largest_free,
        "pool": [*one.segment.pool],
        "stream": one.segment.stream,
        "line": one.line,
    }


def _timeline(looked: Looked) -> Json | None:
    drawn = looked.curve
    if drawn is None:
        return None
    points = len(drawn.moments)
    return {
        "events": [*drawn.moments],
        "times": None if drawn.times is None else [*drawn.times],
        "allocated": drawn.totals,
        "peak": drawn.peak,
        "lines": [{"line": band.label, "bytes": band.sizes(points)} for band in drawn.bands],
    }


def _blocks(live: LiveSet) -> Json:
    groups = live.group_by(lambda block: block.stack.line)
    lines = [{"line": group.key, "bytes": group.size, "blocks": len(group.blocks)} for group in groups]
    return {"bytes": live.total, "blocks": len(live), "lines": lines}


def _grown(one: Grown) -> Json:
    return {
        "line": one.line,
        "by": one.library,
        "before": one.before,
        "after": one.after,
        "blocks_before": one.blocks_before,
        "blocks_after": one.blocks_after,
    }


def _flame(looked: Looked) -> Json:
    parts = looked.flame(looked.of).parts
    stacks = [
        {
            "bytes": part.bytes,
            "blocks": part.blocks,
            "stack": None if part.stack is None else [frame(one) for one in part.stack.frames],
            "reason": part.label or None,
        }
        for part in parts
    ]
    return {"of": looked.of, "stacks": stacks}


def _why(one: Why | None) -> Json | None:
    if one is None:
        return None
    names = ["event", "requested", "stream", "needed", "segment", "live", "waiting", "reserved", "device_free"]
    names += (
        "unused",
        "split",
        "largest_free",
        "withheld",
        "private_unused",
        "fragmented",
        "moved",
        "gained",
        "by_segments",
    )
    return {
        **{name: getattr(one, name) for name in names},
        "at": None if one.where is None else frame(one.where),
        "pool": [*one.pool],
        "capacity": None if one.capacity is None else _capacity(one.capacity),
        "fragmentation": round(one.fragmentation, 6),
        "in_the_way": [
            {
                "line": each.line,
                "at": None if each.frame is None else frame(each.frame),
                "bytes": each.size,
                "blocks": each.blocks,
                "oldest": each.oldest,
                "newest": each.newest,
                "before_the_record": each.before,
            }
            for each in one.obstacles
        ],
    }


def _capacity(one: Capacity) -> Json:
    return {"least": one.least, "below": one.below, "limit_of_torch": one.limited}


def _what_if(asked: WhatIf | str) -> Json:
    if isinstance(asked, str):
        return {"unknown": asked}
    return {
        "recorded": asked.recorded,
        "model": asked.model,
        "live_before": asked.before,
        "replayed": asked.events,
        "best": None if asked.best is None else asked.best.what,
        "contradicted": asked.contradicted,
        "reliable": asked.reliable,
        "answers": [
            {
                "kind": one.kind,
                "with": one.what,
                "peak_reserved": one.peak_reserved,
                "peak_reserved_at_most": one.at_most,
                "reserved": one.reserved,
                "fits": one.fits,
                "fails_earlier_at": one.earlier,
                "largest_free": one.largest_free,
                "unused": one.unused,
            }
            for one in asked.answers
        ],
    }
