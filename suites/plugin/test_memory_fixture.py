"""The fixture ``cuda_memory`` and its twin without pytest, ``Memory.on``."""

from __future__ import annotations

import pytest

from cudamem_testing.model.sizes import format_size

BUDGETS = """
    import pytest, torch
    from cudamem_testing import LimitError, OverBudget

    def test_computed(cuda_memory):
        model = torch.nn.Linear(16, 16, bias=False)
        size = sum(one.numel() * one.element_size() for one in model.parameters())
        with cuda_memory.budget(peak=3 * size, allocations=1) as used:
            torch.empty(2 * 256)
        assert used.peak_growth == 2048

    def test_over(cuda_memory):
        kept = torch.empty(256)
        with cuda_memory.budget(peak="1KiB", name="decode"):
            torch.empty(3 * 256)

    def test_retained_in_a_region(cuda_memory):
        with cuda_memory.budget(retained=0):
            kept = torch.empty(256)

    def test_handled(cuda_memory):
        with pytest.raises(OverBudget, match="peak 3.0 KiB above start is over its budget of 1.0 KiB") as caught:
            with cuda_memory.budget(peak="1KiB"):
                torch.empty(3 * 256)
        assert [finding.bytes for finding in caught.value.findings] == [2048]

    def test_own_error_wins(cuda_memory):
        with cuda_memory.budget(peak="1KiB"):
            torch.empty(3 * 256)
            raise ZeroDivisionError("mine")

    def test_wrong_arguments(cuda_memory):
        with pytest.raises(LimitError, match="^peak: size 'lots' is not understood"):
            cuda_memory.budget(peak="lots")
        with pytest.raises(LimitError, match="^sets no limit"):
            cuda_memory.budget()
        with pytest.raises(TypeError):
            cuda_memory.budget("1KiB")
        with pytest.raises(KeyError, match="cuda:3 is not measured .measured: cpu."):
            with cuda_memory.window("here") as window:
                window["cuda:3"]

    @pytest.mark.memory_budget(peak="2KiB")
    def test_both(cuda_memory):
        with cuda_memory.budget(peak="1KiB"):
            torch.empty(3 * 256)

    def test_statistics(cuda_memory):
        before = cuda_memory.statistics()
        kept = torch.empty(256)
        after = cuda_memory.statistics("cpu")
        assert after.allocated - before.allocated == 1024
        assert after.allocations - before.allocations == 1
        assert after.reserved is None
        with pytest.raises(ValueError, match="cuda is not measured .measured: cpu."):
            cuda_memory.statistics("cuda")

    def test_statistics_take_no_peak(cuda_memory):
        with cuda_memory.window("outer") as outer:
            torch.empty(9 * 256)
            cuda_memory.statistics()
        assert outer.peak_growth == 9 * 1024
"""


@pytest.mark.parametrize("options", [("--cudamem",), (), ("--no-cudamem",)], ids=["on", "off", "enforcing nothing"])
def test_budgets_in_a_test(run_inner, options):
    inner = run_inner(BUDGETS, *options)
    assert inner.last == "4 failed, 5 passed"
    over = inner.section("test_over")
    assert over[:9] == [
        "",
        "cuda_memory = " + next(line for line in over if line.startswith("cuda_memory = ")).partition(" = ")[2],
        "",
        "    def test_over(cuda_memory):",
        "        kept = torch.empty(256)",
        '>       with cuda_memory.budget(peak="1KiB", name="decode"):',
        *over[6:9],
    ]
    errors = [line[2:].strip() for line in over if line.startswith("E ")]
    window = inner.window("test_over", "decode")
    assert errors[:2] == [
        (
            "cudamem_testing.windows.regions.OverBudget: "
            "cudamem: peak 3.0 KiB above start is over its budget of 1.0 KiB by 2.0 KiB (decode, cpu)"
        ),
        f"start {format_size(window.start)}, peak {format_size(window.peak)}, end {format_size(window.end)}",
    ]
    places = [line for line in over if line.endswith(": OverBudget")]
    assert places == ["test_it.py:13: OverBudget"]
    assert "memory.py" not in "".join(over)
    retained = [line[2:].strip() for line in inner.section("test_retained_in_a_region") if line.startswith("E ")]
    assert retained[0].endswith(": cudamem: retained 1.0 KiB is over its budget of 0 B by 1.0 KiB (budget, cpu)")
    own = inner.section("test_own_error_wins")
    assert "E           ZeroDivisionError: mine" in own
    assert "cudamem: peak 3.0 KiB above start is over its budget of 1.0 KiB by 2.0 KiB (budget, cpu)" in own
    both = inner.section("test_both")
    marker = "cudamem: peak 3.0 KiB above start is over its budget of 2.0 KiB by 1.0 KiB (cpu)"
    assert (marker in both) == (options != ("--no-cudamem",))
    assert [finding.severity.value for finding in inner.test("test_handled").findings] == ["note"]
    assert [line for line in inner.summary if line.startswith("budget: ")] == [
        f"budget: {5 if marker in both else 4} findings (over budget) in 4 tests"
    ]


LIMITS = """
    import pytest, torch

    def test_refuses_at_the_line(cuda_memory):
        kept = torch.empty(256)
        with cuda_memory.limit("4KiB"):
            torch.empty(4 * 256)
            torch.empty(5 * 256)

    def test_is_lifted_after_a_failure(cuda_memory):
        torch.empty(1 << 20)

    def test_restores_the_outer_limit(cuda_memory):
        with cuda_memory.limit("8KiB"):
            with cuda_memory.limit(1024):
                with pytest.raises(torch.OutOfMemoryError):
                    torch.empty(2 * 256)
            torch.empty(2 * 256)
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(9 * 256)
        torch.empty(1 << 20)

    def test_in_other_threads(cuda_memory):
        from concurrent.futures import ThreadPoolExecutor
        with cuda_memory.limit("4KiB"), ThreadPoolExecutor(1) as pool:
            with pytest.raises(torch.OutOfMemoryError):
                pool.submit(torch.empty, 5 * 256).result()

    def test_wrong_arguments(cuda_memory):
        with pytest.raises(ValueError, match="size 'lots' is not understood"):
            cuda_memory.limit("lots")
        with pytest.raises(ValueError, match="cuda is not measured .measured: cpu."):
            cuda_memory.limit("1KiB", device="cuda")

    def test_left_open(cuda_memory):
        cuda_memory.limit("4KiB").__enter__()

    def test_is_lifted_when_left_open():
        torch.empty(1 << 20)
"""


@pytest.mark.parametrize("options", [("--cudamem",), ()], ids=["on", "off"])
def test_hard_limits(run_inner, options):
    inner = run_inner(LIMITS, *options)
    assert inner.last == "1 failed, 6 passed, 1 error"
    section = inner.section("test_refuses_at_the_line")
    assert ">           torch.empty(5 * 256)" in section
    assert any(line.startswith("E ") and "OutOfMemoryError" in line for line in section)
    assert [line for line in section if line.startswith("test_it.py:")] == ["test_it.py:7: OutOfMemoryError"]


WITHOUT = """
    import hypothesis, pytest, torch
    from hypothesis import strategies
    from cudamem_testing import Memory, OverBudget

    @hypothesis.settings(max_examples=20, database=None, deadline=None)
    @hypothesis.given(strategies.integers(1, 64))
    def test_examples(kib):
        with Memory.on("cpu") as memory, memory.window("example") as window:
            torch.empty(kib * 256)
        assert window.peak_growth == kib * 1024

    @hypothesis.settings(max_examples=20, database=None, deadline=None)
    @hypothesis.given(strategies.integers(1, 64))
    @pytest.mark.memory_budget(peak="64KiB")
    def test_all_examples_in_one_budget(kib):
        torch.empty(kib * 256)

    def test_beside_the_fixture(cuda_memory):
        with cuda_memory.window("outer") as outer:
            torch.empty(5 * 256)
            with Memory.on("auto") as memory:
                with pytest.raises(OverBudget):
                    with memory.budget(peak=0):
                        torch.empty(3 * 256)
                with memory.limit("1KiB"), pytest.raises(torch.OutOfMemoryError):
                    torch.empty(2 * 256)
            torch.empty(4 * 256)
        assert (outer.peak_growth, outer.allocations) == (5 * 1024, 3)

    def test_unknown_device():
        with pytest.raises(ValueError, match="device 'tpu' is not known"):
            with Memory.on("tpu"):
                pass

    def test_asked_for_at_run_time(request):
        memory = request.getfixturevalue("cuda_memory")
        with memory.window("late") as late:
            torch.empty(256)
        assert late.peak_growth == 1024
"""


@pytest.mark.parametrize("options", [("--cudamem",), ()], ids=["on", "off"])
def test_memory_without_the_fixture(run_inner, options):
    inner = run_inner(WITHOUT, *options)
    assert inner.last == "5 passed"
    assert inner.window("test_all_examples_in_one_budget").complete


def test_the_fixture_without_any_session(run_inner):
    inner = run_inner(WITHOUT, "-k", "run_time or unknown")
    assert (inner.last, inner.record) == ("2 passed, 3 deselected", None)


SCALING = """
import torch

def attend(n):
    x = torch.empty(n, 64)
    return torch.empty(n, n).add_(1).sum() + x.shape[0]

def test_linear(cuda_memory):
    cuda_memory.scaling(attend, [256, 512, 1024]).assert_peak("O(n)")

def test_quadratic(cuda_memory):
    cuda_memory.scaling(attend, [256, 512, 1024]).assert_peak("O(n^2)")
"""


def test_scaling_names_the_lines(run_inner):
    inner = run_inner(SCALING, "--cudamem-device=cpu")
    assert inner.outcomes == {"test_linear": "failed", "test_quadratic": "passed"}
    assert "cudamem: peak grows like n^1.94, promised O(n) (cpu)" in inner.out
    assert "test_it.py:5 in attend  1.0 MiB at n=512, 4.0 MiB at n=1024" in inner.out
    assert "cudamem_testing/model/scaling.py" not in inner.out
