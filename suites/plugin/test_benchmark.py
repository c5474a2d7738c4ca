"""pytest-benchmark: memory of one untimed call beside its times, and both tools' baselines in one run."""

from __future__ import annotations

import json
import subprocess

import pytest

from suites import forked
from suites.plugin.inner import Inner
from suites.plugin.inner import run_inner as run_in_process

pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")
# Before 5.3 it leaves the file of --benchmark-json open.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in.*json:pytest.PytestUnraisableExceptionWarning")

FILE = """
    import pytest, torch
    KEPT, CALLS, LOOPS = [], [], []

    def work(n):
        CALLS.append(n)
        x = torch.empty(n)
        return x + x

    @pytest.mark.memory_baseline
    def test_work(benchmark):
        assert benchmark(work, 256).shape == (256,)
        assert len(CALLS) > 2

    def test_pedantic(benchmark):
        def setup():
            return (torch.ones(512),), {}
        result = benchmark.pedantic(torch.neg, setup=setup, rounds=3)
        assert result.shape == (512,)

    @pytest.mark.cudamem(leaks="off", reason="the number is asked for")
    def test_keeps(benchmark):
        benchmark.pedantic(lambda: KEPT.append(torch.empty(256)), rounds=2)
        assert len(KEPT) == 3

    def test_own_values_are_kept(benchmark):
        benchmark.extra_info["peak"] = "mine"
        benchmark.pedantic(work, (256,), rounds=1)

    def test_a_call_that_cannot_be_repeated(benchmark):
        once = iter([1])
        assert benchmark.pedantic(lambda: next(once), rounds=1) == 1

    def test_stacks_are_recorded_again(benchmark, cuda_memory):
        benchmark.pedantic(work, (256,), rounds=1)
        with pytest.raises(AssertionError, match="in work"):
            with cuda_memory.budget(peak="1KiB"):
                work(1024)
"""
FAST = ("--benchmark-min-rounds=2", "--benchmark-max-time=0.001", "--benchmark-min-time=0.00001")


def run(pytester: pytest.Pytester, *args: str) -> Inner:
    return run_in_process(pytester, FILE, *FAST, *args, plugins=["pytest_benchmark.plugin"])


def infos(path) -> dict[str, dict[str, object]]:
    data = json.loads(path.read_text(encoding="utf-8"))
    return {one["name"]: one["extra_info"] for one in data["benchmarks"]}


def test_memory_is_in_json_and_in_the_table(pytester: pytest.Pytester) -> None:
    inner = run(pytester, "--cudamem", "--benchmark-json=one.json", "--cudamem-update=baselines")
    assert inner.last == "6 passed"
    found = infos(inner.folder / "one.json")
    assert found["test_work"] == {"peak": 2048, "retained": 0, "allocations": 2}
    assert found["test_pedantic"] == {"peak": 2048, "retained": 0, "allocations": 1}
    assert found["test_keeps"] == {"peak": 1024, "retained": 1024, "allocations": 1}
    assert found["test_own_values_are_kept"]["peak"] == "mine"
    assert found["test_a_call_that_cannot_be_repeated"] == {}
    note = "memory of the benchmark is unknown: one more call raised StopIteration"
    assert inner.test("test_a_call_that_cannot_be_repeated").notes == (note,)
    assert inner.window("test_work", "benchmark").peak_growth == 2048
    row = "test_work [peak 2.0 KiB, retained 0 B, 2 allocations]"
    assert sum(line.startswith(row) for line in inner.lines) == 1

    again = run(pytester, "--cudamem", "--benchmark-json=two.json", "--cudamem-baseline=require", "-k", "test_work")
    assert again.last == "1 passed, 5 deselected"
    assert again.test("test_work").measured

    (inner.folder / "conftest.py").write_text(
        "from cudamem_testing.plugin.benchmarks import pytest_benchmark_group_stats\n", encoding="utf-8"
    )
    command = [forked.python(), "-m", "pytest_benchmark", "compare", "one.json", "two.json", "--columns=min"]
    done = subprocess.run(command, cwd=inner.folder, capture_output=True, text=True, check=False)
    rows = [line for line in done.stdout.splitlines() if line.startswith("test_work")]
    assert len(rows) == 2, done.stdout + done.stderr
    assert all("[peak 2.0 KiB, retained 0 B, 2 allocations]" in one for one in rows)


def test_unmeasured_and_disabled_benchmarks_run_as_always(pytester: pytest.Pytester) -> None:
    """Without the flag nothing is called once more, and without timing neither."""
    inner = run(pytester, "--benchmark-json=one.json", "-k", "pedantic or own")
    assert infos(inner.folder / "one.json") == {"test_pedantic": {}, "test_own_values_are_kept": {"peak": "mine"}}
    disabled = run(pytester, "--cudamem", "--benchmark-disable", "-k", "repeated")
    assert disabled.last == "1 passed, 5 deselected"
    assert disabled.test("test_a_call_that_cannot_be_repeated").notes == ()
