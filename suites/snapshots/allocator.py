"""A caching allocator small enough to be obviously right, as an oracle for the replay.

It follows the documented behaviour of CUDA's allocator: two pools by size, best fit among free blocks of a stream,
splitting, merging, deferred frees, private pools, expandable segments. It takes `_snapshot()`-like dicts and keeps the
counters after every event.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KIB, MIB = 2**10, 2**20
FRAMES = [
    [
        {"filename": "/usr/lib/python3.12/site-packages/torch/nn/functional.py", "line": 10 + n, "name": "linear"},
        {"filename": f"/home/me/project/layer{n}.py", "line": n, "name": "forward"},
    ]
    for n in range(1, 8)
]


@dataclass
class Piece:
    address: int
    size: int
    segment: Segment
    requested: int = 0
    state: str = "inactive"
    frames: list = field(default_factory=list)


@dataclass
class Segment:
    address: int
    size: int
    stream: int
    pool: tuple
    small: bool
    pieces: list = field(default_factory=list)


class Allocator:
    def __init__(self, expandable=False, max_split_size=-1, roundup=None):
        self.expandable, self.max_split, self.roundup = expandable, max_split_size, roundup
        self.segments, self.trace, self.next_address = [], [], 0x7F00_0000_0000
        self.every = []  # also those that are gone; no address is used twice
        self.allocated = self.active = self.requested = 0
        self.history = []  # counters before each event of the trace, and at the end
        self.clock = 1_700_000_000_000_000
        self.recording = True

    # counters as torch keeps them: (allocated, active, requested)
    @property
    def counters(self):
        return self.allocated, self.active, self.requested

    def event(self, action, address, size, stream, frames=()):
        if self.recording:
            self.history.append(self.counters)
            self.clock += 7
            self.trace.append(
                {"action": action, "addr": address, "size": size, "stream": stream, "time_us": self.clock}
                | {"frames": list(frames) if not isinstance(frames, list) else frames}
            )

    def restart(self):
        self.trace, self.history = [], []

    def round(self, size):
        if size < 512:
            return 512
        if self.roundup and self.roundup > 1 and size > 512 * self.roundup:
            power = 1
            while power * 2 <= size:
                power *= 2
            step = power // self.roundup
            return size if size == power else (size + step - 1) // step * step
        return (size + 511) // 512 * 512

    def malloc(self, requested, stream=0, pool=(0, 0), frames=None):
        frames = FRAMES[requested % len(FRAMES)] if frames is None else frames
        size = self.round(requested)
        small = size <= MIB
        fits = [
            piece
            for segment in self.segments
            if (segment.stream, segment.pool, segment.small) == (stream, pool, small)
            for piece in segment.pieces
            if piece.state == "inactive" and piece.size >= size
        ]
        unlimited = self.max_split < 0
        if not unlimited:
            if size < self.max_split:
                fits = [piece for piece in fits if piece.size < self.max_split]
            else:
                fits = [piece for piece in fits if piece.size < size + 20 * MIB]
        piece = min(fits, key=lambda piece: (piece.size, piece.address), default=None)
        if piece is None:
            piece = self.grow(size, stream, pool, small)
        rest = piece.size - size
        split = rest >= 512 if small or self.expandable else rest > MIB and (unlimited or size < self.max_split)
        pieces = piece.segment.pieces
        if split:
            pieces.insert(pieces.index(piece) + 1, Piece(piece.address + size, rest, piece.segment))
            piece.size = size
        self.event("alloc", piece.address, requested, stream, frames)
        piece.state, piece.requested, piece.frames = "active_allocated", requested, frames
        self.allocated += piece.size
        self.active += piece.size
        self.requested += requested
        return piece

    def grow(self, size, stream, pool, small):
        if self.expandable:
            total = -(-size // (2 * MIB if small else 20 * MIB)) * (2 * MIB if small else 20 * MIB)
            return self.expand(total, stream, pool, small)
        total = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        segment = Segment(self.next_address, total, stream, pool, small)
        self.next_address += total  # segments touch: merging across them would be wrong
        self.every.append(segment)
        segment.pieces.append(Piece(segment.address, total, segment))
        self.segments.append(segment)
        self.event("segment_alloc", segment.address, total, stream)
        return segment.pieces[0]

    def expand(self, total, stream, pool, small):
        kin = [s for s in self.segments if (s.stream, s.pool, s.small) == (stream, pool, small)]
        if not kin:
            segment = Segment(self.next_address, 0, stream, pool, small)
            self.next_address += 2**40
            self.segments.append(segment)
        else:
            segment = kin[0]
        address = segment.address + segment.size
        self.event("segment_map", address, total, stream)
        segment.size += total
        last = segment.pieces[-1] if segment.pieces else None
        if last is not None and last.state == "inactive":
            last.size += total
            return last
        segment.pieces.append(Piece(address, total, segment))
        return segment.pieces[-1]

    def free(self, piece, deferred=False):
        self.event("free_requested", piece.address, piece.requested, piece.segment.stream, piece.frames)
        self.allocated -= piece.size
        piece.state = "active_awaiting_free"
        if not deferred:
            self.complete(piece)

    def complete(self, piece):
        self.event("free_completed", piece.address, piece.requested, piece.segment.stream, piece.frames)
        self.active -= piece.size
        self.requested -= piece.requested
        piece.state, piece.requested, piece.frames = "inactive", 0, []
        pieces = piece.segment.pieces
        place = pieces.index(piece)
        for other in (place + 1, place - 1):
            if 0 <= other < len(pieces) and pieces[other].state == "inactive" and pieces[other] is not piece:
                first, second = sorted((pieces[other], piece), key=lambda one: one.address)
                first.size += second.size
                pieces.remove(second)
                piece = first
                place = pieces.index(piece)

    def empty_cache(self):
        if self.expandable:
            return
        for segment in [s for s in self.segments if len(s.pieces) == 1 and s.pieces[0].state == "inactive"]:
            self.event("segment_free", segment.address, segment.size, segment.stream)
            self.segments.remove(segment)

    def snapshot(self, device=0):
        self.history.append(self.counters)
        segments = [
            {
                "device": device,
                "address": segment.address,
                "total_size": segment.size,
                "allocated_size": sum(p.size for p in segment.pieces if p.state == "active_allocated"),
                "active_size": sum(p.size for p in segment.pieces if p.state != "inactive"),
                "requested_size": sum(p.requested for p in segment.pieces),
                "stream": segment.stream,
                "segment_type": "small" if segment.small else "large",
                "segment_pool_id": segment.pool,
                "is_expandable": self.expandable,
                "frames": [],
                "blocks": [
                    {
                        "address": piece.address,
                        "size": piece.size,
                        "requested_size": piece.requested,
                        "state": piece.state,
                        "frames": piece.frames,
                    }
                    for piece in segment.pieces
                ],
            }
            for segment in self.segments
        ]
        return {
            "segments": segments,
            "device_traces": [[] for _ in range(device)] + [list(self.trace)],
            "allocator_settings": {
                "max_split_size": self.max_split,
                "expandable_segments": self.expandable,
                "roundup_power2_divisions": {str(2**n): self.roundup or 0 for n in range(16)},
            },
            "external_annotations": [],
        }

    def live(self):
        """What is allocated now: {address: (size, requested)}."""
        return {
            piece.address: (piece.size, piece.requested)
            for segment in self.segments
            for piece in segment.pieces
            if piece.state == "active_allocated"
        }


def run(allocator, steps, generator, small=False, streams=(0,), pools=((0, 0),), deferred=False):
    """A random program; returns what was live (as `Allocator.live`) after each of its steps, by number of events."""
    held, waiting, lives = [], [], {}
    for _ in range(steps):
        choice = generator.random()
        if choice < 0.42 and held:
            piece = held.pop(generator.randrange(len(held)))
            later = deferred and generator.random() < 0.4
            allocator.free(piece, deferred=later)
            if later:
                waiting.append(piece)
        elif choice < 0.48 and waiting:
            allocator.complete(waiting.pop(generator.randrange(len(waiting))))
        elif choice < 0.5:
            allocator.empty_cache()
        else:
            large = (3, 900 * KIB, MIB + 1, 3 * MIB, 9 * MIB, 11 * MIB, 31 * MIB)
            size = generator.choice((1, 700, 60 * KIB, MIB - 3000) if small else large)
            size += generator.randrange(3000 if small else MIB // 2)
            held.append(allocator.malloc(size, generator.choice(streams), generator.choice(pools)))
        lives[len(allocator.trace)] = allocator.live()
    return lives
