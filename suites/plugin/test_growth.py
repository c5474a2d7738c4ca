"""The marker ``memory_scaling``: the sizes of a parametrized test are judged together."""

from __future__ import annotations

from collections.abc import Callable

from suites.plugin.inner import Inner

Run = Callable[..., Inner]
TESTS = """
    import pytest
    import torch

    def empty(size):
        return torch.empty(size, dtype=torch.uint8)

    @pytest.mark.memory_scaling("O(n)")
    @pytest.mark.parametrize("n", [256, 512, 1024])
    @pytest.mark.parametrize("kind", ["linear", "quadratic"])
    def test_grows(n, kind):
        empty(n * 1024 if kind == "linear" else n * n)

    @pytest.mark.memory_scaling("O(1)", over="steps")
    @pytest.mark.parametrize("steps, factor", [(1, 1), (2, 1), (4, 1)])
    def test_constant(steps, factor):
        empty(2**20)
"""


def test_the_last_size_fails(run_inner: Run) -> None:
    inner = run_inner(TESTS)
    assert "1 failed, 8 passed" in inner.out
    (found,) = [test for test in inner.run.tests if test.findings]
    assert found.nodeid == "test_it.py::test_grows[quadratic-1024]"
    place = inner.out.index("cudamem: peak grows like n^2.00, promised O(n) (cpu)")
    assert [line.strip() for line in inner.out[place:].splitlines()[1:8]] == [
        "n       peak  grew like",
        "256   64.0 KiB",
        "512  256.0 KiB",
        "1024    1.0 MiB     n^2.00",
        "fit: n^2.00 and a constant part; n^2.00 without one",
        "grows fastest:",
        "test_it.py:5 in empty  256.0 KiB at n=512, 1.0 MiB at n=1024",
    ]


def test_too_few_sizes_are_not_checked(run_inner: Run) -> None:
    inner = run_inner(TESTS, "-k", "quadratic and not 1024")
    assert "2 passed" in inner.out
    why = "test_it.py::test_grows: 2 of 2 sizes measured in this process, at least 3 are needed"
    assert f"NOT CHECKED: 1 growth promise: {why}" in " ".join(inner.out.split())


def test_wrong_markers_stop_the_run(run_inner: Run) -> None:
    inner = run_inner(
        """
        import pytest
        grows = pytest.mark.memory_scaling

        @grows("n")
        @pytest.mark.parametrize("n", [1])
        def test_promise(n): pass

        @grows("O(n)")
        def test_plain(): pass

        @grows("O(n)", over="kind")
        @pytest.mark.parametrize("kind", ["a"])
        def test_words(kind): pass

        @grows("O(1)")
        @pytest.mark.parametrize("n, m", [(1, 2)])
        def test_two(n, m): pass

        @grows("O(m)", over="n")
        @pytest.mark.parametrize("n", [1])
        def test_name(n): pass

        @grows(speed=1)
        @pytest.mark.parametrize("n", [1])
        def test_argument(n): pass
        """
    )
    assert inner.status == 4
    assert [line.partition("memory_scaling: ")[2] for line in inner.err.splitlines() if "memory_scaling: " in line] == [
        "'n' is not a promise of growth: write O(1), O(n), O(n log n), O(n^2), O(sqrt(n)), O(batch * sequence^2)",
        "the parameter is not clear (none): write over=",
        "over='kind' must be a parameter with whole numbers from 1",
        "the parameter is not clear (n, m): write over=",
        "O(m) names m, but the parameter is n",
        "missing a required argument: 'promise'",
    ]


def test_without_enforcement_nothing_fails(run_inner: Run) -> None:
    inner = run_inner(TESTS, "--no-cudamem")
    assert "9 passed" in inner.out
    assert "memory markers that were not enforced" in inner.out or "memory marker that was not enforced" in inner.out
