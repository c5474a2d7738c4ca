"""Baselines of tests that vary: their spread, repeated runs, and what earlier tests left and goes meanwhile."""

from __future__ import annotations

import pytest

from suites.plugin.inner import KIB, MIB
from suites.plugin.recorded import FILE, UPDATE, entries, run

pytestmark = pytest.mark.usefixtures("one_thread")

VARYING = """
    import os
    import pytest, torch

    @pytest.mark.memory_baseline(metrics=("requested", "retained"))
    def test_it():
        test_it.kept = torch.empty(int(os.environ["KEEPS"]) * 256)
        torch.empty((int(os.environ["MORE"]) - int(os.environ["KEEPS"])) * 256)
"""


def test_one_run_within_a_spread_does_not_replace_it(run_inner, pytester, monkeypatch):
    def recorded(more, keeps, *arguments):
        monkeypatch.setenv("KEEPS", str(keeps))
        assert run(run_inner, monkeypatch, more, UPDATE, *arguments, files={"test_it.py": VARYING}).status == 0
        entry = entries(pytester)["test_it"]
        return entry["requested"], entry["retained"]

    assert recorded(1024, 1) == (MIB, KIB)
    path = pytester.path / FILE
    text = path.read_text(encoding="utf-8").replace(f'"requested": {MIB}', f'"requested": [{MIB}, {2 * MIB}]')
    text = text.replace('"peak": "1.0 MiB"', '"peak": "1.0 MiB to 2.0 MiB"')
    path.write_text(text, encoding="utf-8")
    spread = [MIB, 2 * MIB]
    for more in (1024, 1500, 1000, 2048, 2100):  # up to 64 KiB below and above
        assert recorded(more, 1) == (spread, KIB)
    assert path.read_text(encoding="utf-8") == text
    assert recorded(1500, 100) == (1500 * KIB, 100 * KIB)  # it keeps more
    path.write_text(text, encoding="utf-8")
    assert recorded(2060, 1, "--cudamem-repeat=2") == (2060 * KIB, KIB)
    path.write_text(text, encoding="utf-8")
    assert recorded(2200, 1) == (2200 * KIB, KIB)


REPEATED = """
    import itertools
    import pytest, torch

    numbers = itertools.count(1)
    pytestmark = pytest.mark.memory_baseline

    @pytest.fixture
    def given():
        yield next(numbers)

    def test_varies(given):
        torch.empty((3 - given % 3) * 256 * 256)

    class TestState:
        def test_has_an_instance_of_its_own(self, given):
            assert not hasattr(self, "seen")
            self.seen = given

    def test_fails_in_its_second_run(given):
        assert given % 5

    def test_skips(given):
        pytest.skip("always")
"""


def test_repeats_learn_the_spread(run_inner, pytester):
    inner = run_inner(REPEATED, UPDATE, "--cudamem-repeat=4", "--cudamem-json=report.json")
    assert inner.last == "1 failed, 2 passed, 1 skipped"
    assert entries(pytester) == {
        "TestState::test_has_an_instance_of_its_own": {"requested": 0, "top": []},
        "test_varies": {"requested": [256 * KIB, 768 * KIB], "top": [["test_it.py::test_varies", 768 * KIB]]},
    }
    records = {test.nodeid.rpartition("::")[2]: test for test in inner.run.tests}
    assert len(inner.run.tests) == 4
    assert (records["test_varies"].attempt, records["test_varies"].notes) == (1, ("run 4 times",))
    assert records["test_fails_in_its_second_run"].measured == ()
    assert "E       assert (10 % 5)" in inner.out
    for _ in range(3):  # whichever number comes first
        assert run_inner({}, "-k", "varies").last == "1 passed, 3 deselected"


def test_a_repeated_test_is_compared_each_time(run_inner):
    run_inner(REPEATED, UPDATE, "-k", "varies")
    inner = run_inner({}, "--cudamem-repeat=4", "-k", "varies")
    assert inner.last == "1 failed, 3 deselected"  # 512 KiB were recorded; the runs take 256 (an improvement) and 768
    assert [record.attempt for record in inner.run.tests] == [1]
    assert inner.section("test_varies")[1:] == [
        "grew: +256.0 KiB by test_it.py:12 in test_varies (empty), 512.0 KiB -> 768.0 KiB",
        "   | torch.empty((3 - given % 3) * 256 * 256)",
    ]


GARBAGE = """
    import gc
    import pytest
    import torch

    @pytest.fixture(autouse=True, scope="module")
    def collector():
        gc.collect()
        gc.disable()
        yield
        gc.enable()

    def test_leaves():
        ring = [torch.empty(256 * 1024)]
        ring.append(ring)

    @pytest.mark.memory_baseline(metrics=("requested", "peak", "retained", "allocations"))
    def test_collects():
        first = torch.empty(1024)
        gc.collect()
        kept = torch.empty(384 * 1024)
        del kept
"""


@pytest.mark.parametrize("on", [[], ["--cudamem", "--cudamem-leaks=off", "--cudamem-cycles=off"]], ids=["marker", "on"])
def test_garbage_of_earlier_tests_does_not_count(run_inner, pytester, on):
    places = [["test_it.py::test_collects", 1536 * KIB], ["test_it.py::test_collects", 4 * KIB]]
    alone = {"requested": 1540 * KIB, "peak": 1540 * KIB, "retained": 0, "allocations": 2}
    run_inner(GARBAGE, UPDATE, "-k", "collects", *on)
    assert entries(pytester)["test_collects"] == {**alone, "top": places}
    inner = run_inner({}, *on)
    (measured,) = inner.test("test_collects").measured
    assert {metric: spread.low for metric, spread in measured.values.items()} == {**alone, "retries": 0}
    assert inner.test("test_collects").findings == ()
    assert inner.window("test_collects").retained == -1024 * KIB  # what the counters say stays as it is
    run_inner({}, UPDATE, *on)
    assert entries(pytester)["test_collects"] == {**alone, "top": places}


def test_garbage_of_earlier_tests_is_excluded_without_events(run_inner):
    off = [f"--cudamem-{what}=off" for what in ("leaks", "cycles", "stacks")]
    inner = run_inner(GARBAGE, "--cudamem", *off)
    (measured,) = inner.test("test_collects").measured
    assert {metric: spread.low for metric, spread in measured.values.items()} == {
        "requested": 1540 * KIB,
        "peak": 1540 * KIB,
        "retained": 0,
        "allocations": 2,
        "retries": 0,
    }
