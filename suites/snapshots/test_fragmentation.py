"""How segments are used."""

import random

from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.devices import Device
from cudamem_testing.snapshots.fragmentation import fragmentation
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.read_cpu import read_cpu
from cudamem_testing.snapshots.record import LiveBlock, Recording, Segment
from suites.snapshots.allocator import MIB, Allocator, run


def test_gaps_are_free_and_private_pools_are_apart():
    allocator = Allocator()
    blocks = [allocator.malloc(4 * MIB) for _ in range(4)]  # in one segment of 20 MiB
    allocator.free(blocks[0])
    allocator.free(blocks[2], deferred=True)
    allocator.malloc(30 * MIB + 1, pool=(0, 1))
    small = allocator.malloc(700, stream=3)
    allocator.free(allocator.malloc(3 * MIB, pool=(0, 2)))
    allocator.free(small)
    use = fragmentation(read(allocator.snapshot()))
    assert str(use) == (
        "main pool: 22.0 MiB reserved in 2 segments, 8.0 MiB allocated, 10.0 MiB unused "
        "(largest range 4.0 MiB, 8.0 MiB beside blocks in use), 4.0 MiB waiting for a stream\n"
        "private pool (0, 1): 32.0 MiB reserved in 1 segment, 30.0 MiB allocated, 2.0 MiB unused "
        "(largest range 2.0 MiB, 2.0 MiB beside blocks in use)\n"
        "private pool (0, 2): 20.0 MiB reserved in 1 segment, 0 B allocated, 20.0 MiB unused "
        "(largest range 20.0 MiB, 0 B beside blocks in use)"
    )
    assert use.reserved == 74 * MIB
    assert (use.largest_free(), use.largest_free(stream=3), use.largest_free(stream=8)) == (4 * MIB, 2 * MIB, 0)
    assert use.main.fragmented == 0.6
    assert use.private[0].padding == 511


def test_a_request_against_the_ranges_of_its_stream_and_size():
    allocator = Allocator()
    blocks = [allocator.malloc(4 * MIB) for _ in range(4)]  # in one segment of 20 MiB
    allocator.free(blocks[0])
    allocator.free(blocks[2])
    allocator.free(allocator.malloc(30 * MIB, stream=7))
    allocator.malloc(700)
    recording = read(allocator.snapshot())
    use = fragmentation(recording)
    fits = [use.serves(recording, size) for size in (4 * MIB, 8 * MIB, 2**20, 700)]
    assert [(one.fits, one.largest, one.unused) for one in fits] == [
        (True, 4 * MIB, 12 * MIB),
        (False, 4 * MIB, 12 * MIB),
        (True, 2 * MIB - 1024, 2 * MIB - 1024),
        (True, 2 * MIB - 1024, 2 * MIB - 1024),
    ]
    assert use.serves(recording, 8 * MIB).returnable == 30 * MIB
    assert use.serves(recording, 30 * MIB, stream=7).fits
    assert [(one.stream, one.free, one.fragmented) for one in use.streams] == [
        (0, 14 * MIB - 1024, 1 - 4 * MIB / (14 * MIB - 1024)),
        (7, 30 * MIB, 0.0),
    ]
    assert str(use.streams[1]).startswith("main pool, stream 7: 30.0 MiB reserved in 1 segment")


def test_nothing_reserved_is_nothing_fragmented():
    assert str(fragmentation(read({"segments": []}))) == (
        "main pool: 0 B reserved in 0 segments, 0 B allocated, 0 B unused"
    )
    assert fragmentation(read_cpu([(1, 2, 3, 0, 0, 0)])).main.fragmented == 0.0


def test_overlapping_blocks_free_nothing_twice():
    blocks = (LiveBlock(0, 80, 80), LiveBlock(10, 20, 20))
    use = fragmentation(Recording(Device("cuda", 0), blocks, segments=(Segment(0, 100),)))
    assert [(part.address, part.size) for part in use.ranges] == [(80, 20)]


@given(st.integers(0, 10**9))
def test_every_byte_is_in_use_or_free(seed):
    allocator = Allocator()
    run(allocator, 60, random.Random(seed), streams=(0, 4), pools=((0, 0), (0, 1)), deferred=True)
    use = fragmentation(read(allocator.snapshot()))
    pools = [use.main, *use.private]
    assert sum(pool.allocated for pool in pools) == allocator.allocated
    assert sum(pool.allocated + pool.waiting for pool in pools) == allocator.active
    for pool in pools:
        assert pool.reserved == pool.allocated + pool.waiting + pool.free
    free = {(p.address, p.size) for s in allocator.segments for p in s.pieces if p.state == "inactive"}
    assert {(part.address, part.size) for part in use.ranges} == free
    split = {p.address for s in allocator.segments if len(s.pieces) > 1 for p in s.pieces if p.state == "inactive"}
    assert {part.address for part in use.ranges if part.split} == split
