"""The section "live at the peak", exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.devices import Device
from cudamem_testing.model.live_tables import live_section, live_table
from cudamem_testing.model.stacks import Locator

GPU = Device("cuda", 0)
MIB = 2**20
PLACES = Locator("/home/me/project")
SOFTMAX = ("/v/lib/python3.12/site-packages/torch/nn/functional.py", 2140, "softmax")
EINSUM = ("/v/lib/python3.12/site-packages/torch/functional.py", 422, "einsum")
RUNNER = ("/v/lib/python3.12/site-packages/torch/utils/runner.py", 7, "run")


def line(number, *library):
    return PLACES.stack([*library, ("/home/me/project/attention.py", number, "forward")])


def blocks(size, number, stack, **more):
    return tuple(Block(size, size, GPU, stack=stack, **more) for _ in range(number))


def test_the_section_reads_as_designed():
    live = LiveSet(
        GPU,
        blocks(64 * MIB, 4, line(88, SOFTMAX))
        + blocks(64 * MIB, 2, line(91, EINSUM))
        + blocks(16 * MIB, 1, line(95))
        + blocks(MIB, 1, line(95, SOFTMAX))
        + blocks(MIB // 2, 3, PLACES.stack([RUNNER]))
        + blocks(12 * MIB, 1, line(1), preexisting=True)
        + blocks(3 * MIB, 1, line(2), preexisting=True, owner="test_first")
        + blocks(2 * MIB, 1, PLACES.stack([])),
        rounding=512,
        stackless="no Python stack: allocated by one of torch's threads",
    )
    assert live_section(live, start=15 * MIB) == (
        "live at the peak: 419.5 MiB in 14 blocks, start 15.0 MiB\n"
        "   256.0 MiB   4 blocks  attention.py:88 in forward     torch/nn/functional.py softmax\n"
        "   128.0 MiB   2 blocks  attention.py:91 in forward     torch/functional.py einsum\n"
        "    17.0 MiB   2 blocks  attention.py:95 in forward\n"
        "     1.5 MiB   3 blocks  torch/utils/runner.py:7 in run\n"
        "     3.0 MiB   1 block   (left by test_first)\n"
        "    12.0 MiB   1 block   (live before the test)\n"
        "     2.0 MiB   1 block   (no Python stack: allocated by one of torch's threads)\n"
        "       512 B             (counted by the allocator beyond its blocks' sizes)"
    )


def test_an_empty_section_is_one_line():
    assert live_section(LiveSet(GPU)) == "live at the peak: 0 B in 0 blocks"
    assert live_section(LiveSet(GPU), "retained", 0) == "retained: 0 B in 0 blocks, start 0 B"


def test_other_lines_are_one_row_before_other_reasons():
    live = LiveSet(
        GPU,
        tuple(block for n in range(1, 6) for block in blocks(n * 1024, 1, line(n)))
        + blocks(9 * 1024, 1, line(9), preexisting=True),
    )
    assert live_section(live, most=3) == (
        "live at the peak: 24.0 KiB in 6 blocks\n"
        "   5.0 KiB   1 block  attention.py:5 in forward\n"
        "   4.0 KiB   1 block  attention.py:4 in forward\n"
        "   3.0 KiB   1 block  attention.py:3 in forward\n"
        "   ... 2 more lines: 3.0 KiB\n"
        "   9.0 KiB   1 block  (live before the test)"
    )
    assert "... 1 more line: 1.0 KiB" in live_section(live, most=4)
    assert "more line" not in live_section(live, most=5)


def test_one_line_with_several_library_calls_names_the_largest():
    live = LiveSet(GPU, blocks(MIB, 1, line(3, EINSUM)) + blocks(3 * MIB, 1, line(3, SOFTMAX)))
    (row,) = live_table(live).lines
    assert (row.size, row.detail) == (4 * MIB, "torch/nn/functional.py softmax and 1 more")


def test_a_helper_that_allocates_shows_who_called_it():
    helper = ("/home/me/project/tools.py", 4, "zeros")
    stack = PLACES.stack(
        [helper, RUNNER, ("/home/me/project/test_a.py", 9, "test_a"), ("/home/me/project/run.py", 1, "main")]
    )
    assert live_section(LiveSet(GPU, blocks(MIB, 2, stack))) == (
        "live at the peak: 2.0 MiB in 2 blocks\n   2.0 MiB   2 blocks  tools.py:4 in zeros     <- test_a.py:9"
    )


@pytest.mark.parametrize(("number", "last"), [(7, "4 others"), (5, "2 others"), (4, "test_1"), (3, "test_1")])
def test_many_owners_stay_bounded(number, last):
    live = LiveSet(
        GPU,
        tuple(b for n in range(1, number + 1) for b in blocks(n, 1, line(1), preexisting=True, owner=f"test_{n}")),
    )
    largest = [f"test_{n}" for n in range(number, max(number - 3, 1), -1)]
    assert [row.line for row in live_table(live).others] == [f"(left by {owner})" for owner in (*largest, last)]


def test_narrow_terminals_shorten_calls_first_then_lines():
    live = LiveSet(GPU, blocks(MIB, 1, line(88, SOFTMAX)))
    assert [live_section(live, width=width).splitlines()[1] for width in (90, 79, 60, 42)] == [
        "   1.0 MiB   1 block  attention.py:88 in forward     torch/nn/functional.py softmax",
        "   1.0 MiB   1 block  attention.py:88 in forward     .../functional.py softmax",
        "   1.0 MiB   1 block  attention.py:88 in forward",
        "   1.0 MiB   1 block  attent... in forward",
    ]


def test_the_first_line_of_the_project_is_shown_as_written():
    live = LiveSet(GPU, blocks(MIB, 1, line(88, SOFTMAX)))
    old = LiveSet(GPU, (Block(MIB, MIB, GPU, preexisting=True),))
    written = "scores = torch.softmax(query @ key.transpose(-1, -2), -1)"
    assert live_section(live, source=lambda frame: f"{frame.line}: {written}").splitlines()[1:] == [
        "   1.0 MiB   1 block  attention.py:88 in forward     torch/nn/functional.py softmax",
        f"                      | 88: {written}",
    ]
    narrow = live_section(live, width=50, source=lambda frame: written).splitlines()[2]
    assert narrow == "                      | scores = torch.softmax(..."
    assert len(live_section(live, source=lambda frame: "").splitlines()) == 2
    assert len(live_section(old, source=lambda frame: written).splitlines()) == 2


STACKS = st.sampled_from([line(1), line(2), line(2, SOFTMAX), PLACES.stack([RUNNER]), PLACES.stack([])])


@given(
    st.lists(st.tuples(st.integers(0, 10**9), STACKS, st.booleans(), st.sampled_from([None, "a", "b", "c", "d"]))),
    st.integers(-(10**6), 10**6),
    st.integers(0, 6),
)
def test_rows_always_add_up_to_the_header(parts, rounding, most):
    live = LiveSet(
        GPU,
        tuple(Block(size, size, GPU, stack=stack, preexisting=old, owner=owner) for size, stack, old, owner in parts),
        rounding,
    )
    table = live_table(live)
    rows = table.rows(most)
    assert sum(row.size for row in rows) == live.total == table.total
    assert sum(row.blocks for row in rows) == len(live) == table.blocks
    assert len(rows) <= most + 1 + 4 + 1 + 2
    assert len(table.text(most).splitlines()) == len(rows) + 1
    projects = [row.origin == "project" for row in table.lines]
    assert projects == sorted(projects, reverse=True)
