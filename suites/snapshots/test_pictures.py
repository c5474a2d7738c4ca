"""The picture of a window, in a test and outside of one; what windows and Memory are called."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cudamem_testing import Memory
from cudamem_testing.model.sizes import format_size
from cudamem_testing.snapshots.pictures import picture
from suites.report.pages import MIB, curve
from suites.snapshots.test_curves import made

pytest.importorskip("matplotlib", reason="needs matplotlib (extra plot)")


def test_bands_from_the_bottom_up() -> None:
    area = picture(curve(), "t")
    assert next(iter(area.sizes)) == "(live before the test)"
    assert area.across == "events"
    assert area.colours["(live before the test)"] == "#BBBBBB"
    assert [band.name for band in area.bands] == ["setup", "forward", "call"]
    found, _, _ = made(3, 40)
    drawn = picture(found, "t")
    assert [sum(column) for column in zip(*drawn.sizes.values(), strict=True)] == found.totals


def test_a_window_draws_itself(tmp_path: Path) -> None:
    with Memory.on("cpu") as memory:
        window = memory.window("decode")
        assert repr(window) == "<window 'decode', not entered>"
        with window:
            torch.empty(MIB // 4)
            assert repr(memory) == "<memory: measures cpu, inside 1 region>"
        before = window.start or 0  # of tensors that other tests of this process keep, if a recorder has seen them
        start, peak = format_size(before), format_size(before + MIB)
        assert repr(window) == f"<window, over: decode on cpu: start {start}, peak {peak}, end {start}>"
        path = window.plot(tmp_path / "a.svg")
        content = path.read_text()
        assert "Memory of decode on cpu over its events" in content
        assert f"peak {peak}" in content


def test_a_window_of_a_test_draws_itself(pytester: pytest.Pytester) -> None:
    from suites.plugin.inner import run_inner

    inner = run_inner(
        pytester,
        """
        import torch
        def test_it(cuda_memory, tmp_path):
            with cuda_memory.window("decode") as window:
                torch.empty(2**18)
            assert window.plot(tmp_path / "a.png").stat().st_size > 5000
        """,
        "--cudamem",
    )
    assert inner.outcomes == {"test_it": "passed"}


def test_without_events_there_is_no_picture(pytester: pytest.Pytester) -> None:
    from suites.plugin.inner import run_inner

    inner = run_inner(
        pytester,
        """
        import pytest, torch
        def test_it(cuda_memory):
            with cuda_memory.window("decode") as window:
                torch.empty(2**18)
            with pytest.raises(ValueError, match="no picture of decode: no events were recorded on cpu"):
                window.plot("a.png")
        """,
        "--cudamem",
        "--cudamem-stacks=off",
    )
    assert inner.outcomes == {"test_it": "passed"}
