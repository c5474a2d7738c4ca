"""Pools: from a recording of a card, from made-up ones, and what sharing saves."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudamem_testing.graphs.pools import CaptureStep, Growth, Sharing, judge_pool, pool_at, pools_of
from cudamem_testing.model.devices import Device
from cudamem_testing.model.pools import MAIN_POOL
from cudamem_testing.snapshots.record import LiveBlock, Recording, Segment
from cudamem_testing.snapshots.snapshot_files import read_file
from cudamem_testing.wording.limits import broken

FOLDER = Path(__file__).parents[2] / "fixtures" / "recordings"
MIB = 2**20
CARD = Device("cuda", 0)


def recording(*segments: tuple[int, int, int], live: tuple[tuple[int, int], ...] = ()) -> Recording:
    """Segments as (address, MiB, number of the pool), live blocks as (address, MiB)."""
    return Recording(
        CARD,
        blocks=tuple(LiveBlock(address, size * MIB, size * MIB) for address, size in live),
        segments=tuple(Segment(at, size * MIB, pool=(number, 0)) for at, size, number in segments),
    )


def test_a_captured_graph_of_a_card() -> None:
    """One linear layer, a ReLU and another, captured on an H100."""
    found = read_file(FOLDER / "captured_graph.pickle.gz")
    pools = pools_of(found)
    (private,) = pools.private
    assert private.pool != MAIN_POOL
    assert private.reserved == sum(segment.size for segment in found.segments if segment.pool == private.pool)
    assert pools.reserved == private.reserved
    assert private.reserved + pools.main.reserved == found.reserved
    assert pools.of(private.pool) == private
    assert str(pools) == str(private)
    address = next(segment.address for segment in found.segments if segment.pool == private.pool)
    assert pool_at(found, address) == private.pool
    assert pool_at(found, address - 1) in (None, MAIN_POOL)
    assert judge_pool(pools, private.pool, private.reserved) is None


def test_growth() -> None:
    before = pools_of(recording((0, 2, 0), (2**30, 2, 1), (2**31, 4, 2)))
    after = pools_of(recording((0, 20, 0), (2**30, 2, 1), (2**32, 20, 3), (2**33, 2, 3)))
    assert before.grown(after) == (Growth((3, 0), 0, 22 * MIB), Growth((2, 0), 4 * MIB, 0))
    assert [str(growth) for growth in before.grown(after)] == [
        "private pool (3, 0): +22.0 MiB to 22.0 MiB",
        "private pool (2, 0): -4.0 MiB to 0 B",
    ]
    assert after.grown(after) == ()


def test_orphans() -> None:
    pools = pools_of(recording((0, 2, 0), (2**30, 2, 1), (2**31, 4, 2), (2**32, 8, 3), live=((2**31, 1),)))
    assert [use.pool for use in pools.orphans([(1, 0)])] == [(3, 0)]
    assert [use.pool for use in pools.orphans([])] == [(3, 0), (1, 0)]
    assert pools.of((9, 9)).reserved == 0
    assert str(pools_of(recording((0, 2, 0)))) == "no private pools on cuda:0"


def test_a_limit() -> None:
    pools = pools_of(recording((2**30, 4, 1)))
    breach = judge_pool(pools, (1, 0), "2MiB")
    assert breach is not None
    assert broken(breach) == "reserved 4.0 MiB is over its budget of 2.0 MiB by 2.0 MiB (pool (1, 0), cuda:0)"
    assert judge_pool(pools, (1, 0), 4 * MIB) is None
    with pytest.raises(ValueError, match=r"^size 'much' is not understood"):
        judge_pool(pools, (1, 0), "much")


def test_sharing() -> None:
    good = Sharing((CaptureStep("batch 8", 8 * MIB, 8 * MIB), CaptureStep("batch 2", 2 * MIB, 0)))
    assert (good.separate, good.shared, good.saved, good.later_growth) == (10 * MIB, 8 * MIB, 2 * MIB, 0)
    assert good.descending
    assert str(good) == (
        "capture  own pool  shared pool\n"
        "batch 8   8.0 MiB      8.0 MiB\n"
        "batch 2   2.0 MiB          0 B\n"
        "all      10.0 MiB      8.0 MiB"
    )
    bad = Sharing((good.steps[1], CaptureStep("batch 8", 8 * MIB, 8 * MIB)))
    assert not bad.descending
    assert bad.later_growth == 8 * MIB
    assert str(bad).splitlines()[-1] == ("captures are not ordered from large to small: capture large sizes first")
