"""The limit of ``make test``: the check itself, the times that it reads, and the last recorded run held to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from suites.durations import CACHED, LIMIT_S, over_limit


@pytest.mark.slow
def test_make_test_takes_no_longer_than_its_limit(pytestconfig: pytest.Config) -> None:
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)
    durations = None if cache is None else cache.get(CACHED, None)
    if durations is None:
        pytest.skip("no durations are recorded: make test records them")
    said = over_limit(durations)
    if said is not None:
        pytest.fail(said, pytrace=False)


def test_over_the_limit_names_the_slowest() -> None:
    durations = {f"test_it.py::test_{number}": 10.0 + number for number in range(12)}
    said = over_limit(durations, 139.4)
    assert said is not None
    title, *slowest = said.splitlines()
    assert title == (
        "the tests of make test took 186 s of processor time, more than their limit of 139 s and a third: "
        "make the slowest cheaper, or mark them slow"
    )
    assert slowest == [f"    {10 + number}.0 s  test_it.py::test_{number}" for number in range(11, 1, -1)]


def test_at_the_limit_and_a_third_passes() -> None:
    assert over_limit({"test_a": 60.0, "test_b": 40.0}, 75.0) is None
    assert over_limit({"test_a": 60.1, "test_b": 40.0}, 75.0) is not None
    assert over_limit({}) is None
    assert over_limit({"test_a": LIMIT_S}) is None


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
@pytest.mark.parametrize("workers", [(), ("-p", "xdist.plugin", "-n1")], ids=["alone", "worker"])
def test_times_of_setup_call_teardown_and_children(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    """Processor time alone; those of workers arrive as well."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makepyfile(TIMED)
    pytester.makeini("[pytest]\nmarkers = slow")
    arguments = ("-p", "suites.durations", "--record-durations", "-m", "not slow", *workers)
    pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=3)
    found = json.loads((pytester.path / ".pytest_cache" / "v" / CACHED).read_text())
    rounded = {name.partition("::")[2]: round(seconds, 1) for name, seconds in found.items()}
    assert set(rounded) == {"test_idle", "test_fixture", "test_child"}
    assert rounded["test_idle"] == 0.0
    assert 0.4 <= rounded["test_fixture"] <= 0.6
    assert 0.3 <= rounded["test_child"] <= 0.6
