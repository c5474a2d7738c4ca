"""A run on an accelerator other than CUDA: windows, budgets, retained bytes and baselines; the rest is said."""

from __future__ import annotations

from cudamem_testing.wording.findings import title
from suites.plugin.inner import MIB
from suites.recorders.stand_in import in_place

TESTS = """
    import pytest
    from suites.recorders.stand_in import IN_PLACE, MIB

    def use(size):
        IN_PLACE[0].take(size)
        IN_PLACE[0].take(-size)

    @pytest.mark.memory_budget(peak={"xpu": "2MiB"}, retained=0)
    def test_within(): use(2 * MIB)

    @pytest.mark.memory_budget(peak={"xpu": "2MiB"})
    def test_over(): use(3 * MIB)

    @pytest.mark.memory_budget(retained=0)
    def test_keeps(): IN_PLACE[0].take(MIB)

    @pytest.mark.memory_baseline
    def test_baseline(): use(SIZE)

    def test_region(cuda_memory):
        with cuda_memory.window("decode") as w:
            use(4 * MIB)
        assert w.peak_growth == 4 * MIB
        with pytest.raises(RuntimeError, match="memory of xpu:0 cannot be limited"), cuda_memory.limit("1GiB"):
            pass
"""


def test_limits_hold_and_what_needs_blocks_is_said(run_inner) -> None:
    with in_place():
        inner = run_inner(TESTS.replace("SIZE", "5 * MIB"), "--cudamem", "--cudamem-update=baselines")
        later = run_inner(TESTS.replace("SIZE", "8 * MIB"), "-k", "baseline")
    outcomes = {test.nodeid.partition("::")[2]: test.outcome for test in inner.run.tests}
    assert outcomes == {
        "test_within": "passed",
        "test_over": "failed",
        "test_keeps": "error",
        "test_baseline": "passed",
        "test_region": "passed",
    }
    call = next(one for one in inner.run.tests[0].windows if one.name == "call" and one.device.index == 0)
    assert (str(call.device), call.peak_growth, call.retained, call.allocations) == ("xpu:0", 2 * MIB, 0, 1)
    unchecked = "NOT CHECKED: 5 tests: leaks and cycles: xpu:0 records no single blocks"
    assert unchecked in " ".join(line.strip() for line in inner.summary)
    (regression,) = later.run.tests[0].findings
    grew = "requested 8.0 MiB above start is 3.0 MiB (+60.0%) above its baseline of 5.0 MiB, 64.0 KiB allowed (xpu:0)"
    assert title(regression) == f"cudamem: {grew}"


def test_a_card_that_is_named_must_be_there(run_inner) -> None:
    inner = run_inner("def test_it(): pass", "--cudamem", "--cudamem-device=xpu")
    assert inner.status == 4
    wanted = "xpu is not on this machine (torch finds no CUDA device); auto measures the available devices"
    assert f"ERROR: cudamem: --cudamem-device=xpu: {wanted}" in inner.err
