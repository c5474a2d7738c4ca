"""pytest-timeout ends a test that makes cycles without end, at whatever moment its time is over."""

from __future__ import annotations

import os
import random
import re

import pytest

from cudamem_testing.model.findings import Kind

MANY = 1000 if os.environ.get("HYPOTHESIS_PROFILE") == "full" else 100


@pytest.mark.parametrize("times", [12, pytest.param(MANY, marks=pytest.mark.slow)])
def test_a_timeout_at_any_moment_fails_the_test(run_outer, times):
    """The time ends while the test makes rings or while the collector reads them, which takes most of it."""
    pytest.importorskip("pytest_timeout")
    moments = random.Random(times)
    seconds = [round(moments.uniform(0.02, 0.06), 5) for _ in range(times)]
    inner = run_outer(
        f"""
    import gc, time
    import pytest, torch

    class Node:
        pass

    def ring():
        one = Node()
        one.me, one.big = one, torch.zeros(65536)

    def loop(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(5):
                ring()
            gc.collect(0)

    def pytest_generate_tests(metafunc):
        marks = [pytest.mark.timeout(one, method="signal", func_only=True) for one in {seconds}]
        metafunc.parametrize("number", [pytest.param(n, marks=mark) for n, mark in enumerate(marks)])

    @pytest.fixture(autouse=True)
    def garbage():  # the time of a busy machine may end before the first ring of the test
        ring()

    def test_loops(number):
        loop(20)
    """,
        "--cudamem",
        "--tb=short",
        plugins=("pytest_timeout",),
        timeout=600,
    )
    assert inner.outcomes == {f"test_loops[{number}]": "failed" for number in range(times)}, inner.out
    ended = re.findall(r"^E +Failed: Timeout \(>(.*)s\) from pytest-timeout\.$", inner.out, re.M)
    assert [*map(float, ended)] == seconds
    # One kind of ring or more: an exception that ends one in the middle may be part of a cycle itself.
    found = {frozenset(finding.kind for finding in test.findings) for test in inner.run.tests}
    assert found == {frozenset([Kind.CYCLE])}
