"""Rounding of requests, against values worked out by hand from the allocator's documentation."""

import pytest

from cudamem_testing.snapshots.record import Settings
from cudamem_testing.snapshots.rounding import always_exact, round_size, round_sizes, splits

MIB = 2**20
PLAIN, EXPANDABLE = Settings(), Settings(expandable=True)


@pytest.mark.parametrize(
    ("requested", "size"), [(0, 512), (1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)]
)
def test_requests_round_up_to_512(requested, size):
    assert round_size(requested, PLAIN) == size


@pytest.mark.parametrize(
    ("requested", "size"),
    [
        (1200 * 1024, 1280 * 1024),  # documented example: 1200 with 4 divisions between 1024 and 2048
        (MIB, MIB),
        (MIB + 1, MIB + MIB // 4),
        (1000, 1024),
        (2049, 2560),  # just above 4 * 512: divisions of 512
    ],
)
def test_divisions_between_powers_of_two(requested, size):
    assert round_size(requested, Settings(roundup=(4,) * 16)) == size


def test_divisions_by_power_of_two_and_the_last_for_all_above():
    settings = Settings(roundup=(0, 2, 1))
    assert round_size(MIB + 1, settings) == MIB + 512
    assert round_size(2 * MIB + 1, settings) == 3 * MIB
    assert round_size(4 * MIB + 1, settings) == 4 * MIB + 512  # one division is plain rounding
    assert round_size(64 * MIB + 1, settings) == 64 * MIB + 512


def test_many_are_rounded_as_one():
    from array import array

    sizes = array("q", [0, 1, 511, 512, 513, 10**6, 10**7 + 1])
    for settings in (PLAIN, Settings(roundup=(8,) * 16)):
        assert [*round_sizes(sizes, settings)] == [round_size(size, settings) for size in sizes]


@pytest.mark.parametrize(
    ("free", "size", "settings", "answer"),
    [
        (1024, 512, PLAIN, True),
        (1023, 512, PLAIN, False),
        (2 * MIB, MIB, PLAIN, True),  # small pool up to 1 MiB
        (3 * MIB, 2 * MIB, PLAIN, False),  # a rest of 1 MiB stays
        (3 * MIB + 1, 2 * MIB, PLAIN, True),
        (3 * MIB, 2 * MIB, EXPANDABLE, True),
        (90 * MIB, 50 * MIB, Settings(max_split_size=50 * MIB), False),
        (90 * MIB, 49 * MIB, Settings(max_split_size=50 * MIB), True),
    ],
)
def test_remainders_are_split_off_if_large_enough(free, size, settings, answer):
    assert splits(free, size, settings) is answer


def test_only_large_blocks_of_fixed_segments_keep_remainders():
    assert always_exact(MIB, PLAIN)
    assert not always_exact(MIB + 512, PLAIN)
    assert always_exact(MIB + 512, EXPANDABLE)
