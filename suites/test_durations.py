"""The limit of ``make test``: the check itself, the times that it reads, and the last recorded run held to it."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from suites import durations
from suites.durations import CACHED, LIMIT_S, REFERENCE_S, over_limit, reference_s


@pytest.mark.slow
def test_make_test_takes_no_longer_than_its_limit(pytestconfig: pytest.Config) -> None:
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)
    recorded = None if cache is None else cache.get(CACHED, None)
    if recorded is None:
        pytest.skip("no durations are recorded: make test records them")
    said = over_limit(recorded["tests"], recorded["reference"])
    if said is not None:
        pytest.fail(said, pytrace=False)


def test_over_the_limit_names_the_slowest() -> None:
    tests = {f"test_it.py::test_{number}": 10.0 + number for number in range(12)}
    said = over_limit(tests, [0.19, 0.18, 5.0], 139.0)
    assert said is not None
    title, *slowest = said.splitlines()
    assert title == (
        "the tests of make test took 186 s of processor time, more than their limit of 139 s and a third: make the "
        "slowest cheaper, or mark them slow"
    )
    assert slowest == [f"    {10 + number}.0 s  test_it.py::test_{number}" for number in range(11, 1, -1)]


def test_at_the_limit_and_a_third_passes() -> None:
    assert over_limit({"test_a": 60.0, "test_b": 40.0}, [REFERENCE_S], 75.0) is None
    assert over_limit({"test_a": 60.1, "test_b": 40.0}, [REFERENCE_S], 75.0) is not None
    assert over_limit({}, [REFERENCE_S]) is None
    assert over_limit({"test_a": LIMIT_S}, [REFERENCE_S]) is None


def test_a_slower_machine_has_a_longer_limit() -> None:
    """By as much as the median of the reference is longer."""
    tests = {"test_a": 100.0, "test_b": 200.0, "test_c": 150.0}
    assert over_limit(tests, [REFERENCE_S] * 9, 300.0) is not None
    assert over_limit(tests, [1.5 * REFERENCE_S] * 5 + [0.1] * 2 + [0.9] * 2, 300.0) is None
    said = over_limit({**tests, "test_d": 151.0}, [1.5 * REFERENCE_S] * 9, 300.0)
    assert said is not None
    assert said.startswith(
        "the tests of make test took 601 s of processor time, more than their limit of 450 s and a third on this "
        "machine, which is 1.50 times as slow as where it was set: make the slowest cheaper"
    )


def test_a_faster_machine_has_the_same_limit() -> None:
    """Its processor need not make all tests as much faster as the reference."""
    assert over_limit({"test_a": 400.0}, [REFERENCE_S / 2] * 9, 300.0) is None
    assert over_limit({"test_a": 401.0}, [REFERENCE_S / 2] * 9, 300.0) is not None


def test_without_the_reference_nothing_is_compared() -> None:
    assert over_limit({"test_a": 60.0}, []) == (
        "the tests of make test took 60 s of processor time, but the reference was not timed beside them, so they "
        "cannot be compared with their limit: run make test again"
    )


def test_the_reference_leaves_the_collector_unchanged() -> None:
    collections = gc.get_stats()[2]["collections"]
    assert reference_s() > 0.0
    assert gc.isenabled()
    gc.disable()
    try:
        reference_s()
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert gc.get_stats()[2]["collections"] == collections


def test_the_reference_is_timed_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first test and then every ten seconds; a report carries it, and no test pays for it."""
    now = 3.0
    monkeypatch.setattr(durations, "processor_time", lambda: now)
    monkeypatch.setattr(durations, "reference_s", lambda: 0.25)
    timing = durations.Timing()

    def report_of_test(seconds: float) -> SimpleNamespace:
        nonlocal now
        protocol = timing.pytest_runtest_protocol()
        next(protocol)
        now += seconds
        report = timing.pytest_runtest_makereport()
        next(report)
        with pytest.raises(StopIteration) as done:
            report.send(SimpleNamespace())
        return cast("SimpleNamespace", done.value.value)

    found = [report_of_test(seconds) for seconds in (6.0, 5.0, 1.0, 1.0)]
    assert [report.processor_s for report in found] == [6.0, 5.0, 1.0, 1.0]
    assert [report.reference_s for report in found] == [[0.25], [], [0.25], []]


TIMED = """
    import subprocess, sys, time
    import pytest

    BUSY = "import time\\nwhile time.process_time() < 0.3: pass"

    @pytest.fixture
    def slow_fixture():
        exec(BUSY.replace("0.3", str(time.process_time() + 0.2)))
        yield
        exec(BUSY.replace("0.3", str(time.process_time() + 0.2)))

    def test_idle():
        time.sleep(0.3)

    def test_fixture(slow_fixture): pass

    def test_child():
        subprocess.run([sys.executable, "-S", "-c", BUSY], check=True)

    @pytest.mark.slow
    def test_slow(): pass
"""


@pytest.mark.subprocess
@pytest.mark.parametrize(
    "workers",
    [pytest.param((), id="alone"), pytest.param(("-p", "xdist.plugin", "-n1"), id="worker", marks=pytest.mark.slow)],
)
def test_times_of_setup_call_teardown_and_children(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    """Processor time alone; those of workers arrive as well, and so does the reference, timed before the first test."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makepyfile(TIMED)
    pytester.makeini("[pytest]\nmarkers = slow")
    arguments = ("-p", "suites.durations", "--record-durations", "-m", "not slow", *workers)
    pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=3)
    found = json.loads((pytester.path / ".pytest_cache" / "v" / CACHED).read_text())
    assert [seconds > 0.01 for seconds in found["reference"]] == [True]
    rounded = {name.partition("::")[2]: round(seconds, 1) for name, seconds in found["tests"].items()}
    assert set(rounded) == {"test_idle", "test_fixture", "test_child"}
    assert rounded["test_idle"] == 0.0
    assert 0.4 <= rounded["test_fixture"] <= 0.6
    assert 0.3 <= rounded["test_child"] <= 0.6
