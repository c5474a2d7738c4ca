"""``warmup=N``: the body runs N times before the run that is measured."""

from __future__ import annotations

import pytest

from suites.plugin.inner import KIB

WARM = """
    import os
    import pytest, torch

    CALLS = []
    cold = {}

    @pytest.fixture
    def given():
        CALLS.append("setup")
        yield torch.empty(256)
        CALLS.append("teardown")

    @pytest.mark.memory_budget(peak="1KiB", warmup=2)
    def test_warm(given, monkeypatch):
        CALLS.append("call")
        monkeypatch.setenv("WARM", "yes")
        if not cold:
            cold["workspace"] = torch.empty(4 * 256)
        torch.empty(256)

    def test_after():
        assert CALLS == ["setup", "call", "call", "call", "teardown"]
        assert "WARM" not in os.environ

    @pytest.mark.memory_budget(peak="1KiB", warmup=1)
    @pytest.mark.parametrize("number", [1, 2])
    def test_parametrized(number):
        torch.empty(256)

    class TestMethod:
        @pytest.mark.memory_budget(peak="1KiB", warmup=1)
        def test_state(self):
            self.runs = getattr(self, "runs", 0) + 1
            CALLS.append(self.runs)
            torch.empty(256)

        def test_after(self):
            assert CALLS[-2:] == [1, 2]

    @pytest.mark.memory_budget(peak="1KiB", warmup=1)
    def test_regions(cuda_memory):
        first = "region" not in cold
        cold["region"] = True
        with cuda_memory.window("decode"):
            torch.empty(256 if not first else 512)
        with cuda_memory.budget(peak="1KiB", name="held"):
            torch.empty(256 if not first else 512)

    @pytest.mark.memory_budget(warmup=1)
    def test_only_warm():
        torch.empty(256)
"""


def test_warmup(run_inner):
    inner = run_inner(WARM, "--cudamem")
    assert inner.last == "8 passed"
    names = [window.name for window in inner.test("test_warm").windows]
    assert names == ["setup", "warm-up", "call", "teardown"]
    assert inner.window("test_warm", "warm-up").peak_growth == 5 * KIB
    assert inner.window("test_warm").peak_growth == KIB
    assert inner.window("test_warm").allocations == 1
    assert inner.test("test_warm").whole[0].retained == 4 * KIB
    regions = [(window.name, window.peak_growth // KIB) for window in inner.test("test_regions").windows[2:-2]]
    assert regions == [("decode", 1), ("held", 1)]  # those of the measured run only
    assert inner.test("test_regions").findings == ()


OUTPUT = """
    import logging
    import pytest

    warm = pytest.mark.memory_budget(peak="1KiB", warmup=2)

    @warm
    def test_capsys(capsys):
        print("told")
        assert capsys.readouterr() == ("told\\n", "")

    @warm
    def test_capfd(capfd):
        print("told")
        assert capfd.readouterr() == ("told\\n", "")

    @warm
    def test_caplog(caplog):
        caplog.clear()
        logging.getLogger("it").warning("told")
        assert caplog.messages == ["told"]

    @warm
    def test_fails():
        print("told")
        assert not hasattr(pytest, "runs_of_this")
        pytest.runs_of_this = 1
"""


def test_what_a_warm_up_prints_is_the_tests(run_inner, monkeypatch):
    inner = run_inner(OUTPUT, "--cudamem", "--tb=short")
    monkeypatch.delattr(pytest, "runs_of_this")
    assert inner.last == "1 failed, 3 passed"
    assert [line for line in inner.lines if "told" in line] == ["told", "told"]  # of both runs of the test that fails
    section = inner.section("test_fails")
    captured = next(place for place, line in enumerate(section) if "Captured stdout call" in line)
    assert section[captured + 1 : captured + 3] == ["told", "told"]


OWN_RUN = """
    import pytest, torch

    class Own(pytest.Function):
        def runtest(self):
            self.obj()

    def pytest_pycollect_makeitem(collector, name, obj):
        if name.startswith("test_"):
            return Own.from_parent(collector, name=name)
"""


def test_a_body_that_another_plugin_calls_has_its_budget(run_inner):
    test = """
        import pytest, torch

        @pytest.mark.memory_budget(peak="1KiB", warmup=1)
        def test_over(): torch.empty(512)
    """
    inner = run_inner({"test_it.py": test, "conftest.py": OWN_RUN})
    assert inner.section("test_over")[0] == (
        "cudamem: peak 2.0 KiB above start is over its budget of 1.0 KiB by 1.0 KiB (warm-up, cpu)"
    )


def test_nothing_is_warmed_up_where_nothing_is_enforced(run_inner):
    inner = run_inner(WARM, "--no-cudamem", "-k", "test_warm or test_only_warm")
    assert inner.last == "2 passed, 6 deselected"
    assert "cudamem: off (--no-cudamem): 2 tests have a memory marker that was not enforced" in inner.lines


FAILS = """
    import pytest, torch

    warm = pytest.mark.memory_budget(peak="1KiB", warmup=2)
    RUNS = {}

    def run(name):
        RUNS[name] = RUNS.get(name, 0) + 1
        return RUNS[name]

    @warm
    def test_second_warmup():
        assert run("second") < 2

    @warm
    def test_measured():
        assert run("measured") < 3

    @warm
    def test_fails_explicitly():
        if run("explicit") == 2:
            pytest.fail("by itself")

    @warm
    def test_skips():
        pytest.skip("in a warm-up")

    @warm
    def test_expects_to_fail():
        pytest.xfail("in a warm-up")

    @warm
    def test_leaves():
        if run("leaves") == 2:
            raise SystemExit(3)

    @pytest.mark.xfail(strict=True)
    @warm
    def test_expected():
        assert run("expected") < 2

    @warm
    def test_over():
        torch.empty(512)
"""


def test_failures(run_inner):
    inner = run_inner(FAILS, "--cudamem")
    assert inner.outcomes == {
        "test_second_warmup": "failed",
        "test_measured": "failed",
        "test_fails_explicitly": "failed",
        "test_skips": "skipped",
        "test_expects_to_fail": "xfailed",
        "test_leaves": "failed",
        "test_expected": "xfailed",
        "test_over": "failed",
    }
    texts = {
        "test_second_warmup": ("assert 2 < 2", "cudamem: warm-up run 2 of 2 failed: body is not repeatable"),
        "test_measured": (
            "assert 3 < 3",
            "cudamem: the measured run, after 2 that passed, failed: body is not repeatable",
        ),
        "test_fails_explicitly": (
            "Failed: by itself",
            "cudamem: warm-up run 2 of 2 failed: body is not repeatable",
        ),
        "test_leaves": ("SystemExit: 3", "cudamem: warm-up run 2 of 2 failed: body is not repeatable"),
    }
    for name, (own, mark) in texts.items():
        section = inner.section(name)
        assert any(line.startswith("E ") and own in line for line in section), name
        assert section[-1] == mark
        assert not any("warmup.py" in line or "session.py" in line for line in section)  # the traceback is the test's
        (finding,) = inner.test(name).findings
        assert (finding.verdict.value, finding.severity.value) == ("body is not repeatable", "note")
    assert inner.section("test_over")[0] == (
        "cudamem: peak 2.0 KiB above start is over its budget of 1.0 KiB by 1.0 KiB (cpu)"
    )
    for name in ("test_skips", "test_expects_to_fail"):
        assert [window.name for window in inner.test(name).windows] == ["setup", "warm-up", "teardown"]
        assert inner.test(name).findings == ()
