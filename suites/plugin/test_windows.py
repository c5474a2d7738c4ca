"""Windows: what a test takes in setup, call and teardown, and what belongs to wider fixtures instead."""

from __future__ import annotations

import gc

import pytest

from suites.plugin.inner import KIB, MIB

PHASES = """
    import pytest, torch

    @pytest.fixture
    def given():
        kept = torch.ones(1024)
        torch.ones(2048)
        yield kept
        torch.ones(8192)

    def test_phases(given):
        torch.ones(4096)

    def test_nothing():
        pass

    def test_leaves(given):
        test_leaves.kept = torch.ones(1024)

    def test_frees():
        test_leaves.kept = None
"""


def numbers(window):
    """Start, peak and end in KiB, so that a test's numbers read as one line."""
    return tuple(size // KIB for size in (window.start, window.peak, window.end))


def test_phases(run_inner):
    inner = run_inner(PHASES, "--cudamem")
    assert inner.last == "4 passed"
    base = inner.window("test_phases", "setup").start // KIB
    expected = {"setup": (0, 12, 4), "call": (4, 20, 4), "teardown": (4, 36, 0)}
    for name, levels in expected.items():
        window = inner.window("test_phases", name)
        assert numbers(window) == tuple(base + level for level in levels), name
        assert (window.complete, window.notes) == (True, ()), name
    assert [window.name for window in inner.test("test_phases").windows] == ["setup", "call", "teardown"]
    (whole,) = inner.test("test_phases").whole
    assert (whole.name, whole.peak_growth, whole.retained, whole.allocations) == ("test", 36 * KIB, 0, 4)
    assert [inner.window("test_nothing", name).allocations for name in expected] == [0, 0, 0]
    assert inner.test("test_leaves").whole[0].retained == 4 * KIB
    assert inner.test("test_frees").whole[0].retained == -4 * KIB  # never clamped


WIDER = """
    import pytest, torch

    def block(kib):
        return torch.empty(kib * 256)

    @pytest.fixture(scope="session", autouse=True)
    def of_session():
        return block(1000)

    @pytest.fixture(scope="package")
    def of_package(of_session):
        block(5000)
        yield block(2000)

    @pytest.fixture(scope="module")
    def of_module(of_package):
        yield block(300)
        block(900)

    @pytest.fixture(scope="class")
    def of_class(of_module):
        return block(40)

    @pytest.fixture
    def own():
        return block(5)

    class TestGroup:
        def test_first(self, of_class, own):
            block(1)

        def test_second(self, of_class, own):
            block(1)

    def test_third(own):
        block(1)
"""


def test_wider_fixtures_are_charged_to_no_test(run_inner):
    inner = run_inner({"tests/__init__.py": "", "tests/test_it.py": WIDER}, "--cudamem")
    assert inner.last == "3 passed"
    for name in ("test_first", "test_second", "test_third"):
        (whole,) = inner.test(name).whole
        assert (whole.peak_growth, whole.retained, whole.allocations) == (6 * KIB, 0, 2), name
        assert inner.window(name, "setup").peak_growth == 5 * KIB
        assert inner.window(name).peak_growth == 1 * KIB
    expected = [
        ("of_session", "session", 1000, 1000),
        ("of_package", "package", 2000, 5000),
        ("of_module", "module", 300, 300),
        ("of_class", "class", 40, 40),
        ("of_class", "class", -40, 0),
        ("of_module", "module", -300, 900),
        ("of_package", "package", -2000, 0),
        ("of_session", "session", -1000, 0),
    ]
    found = [record for record in inner.run.fixtures if record.name.startswith("of_")]
    assert [
        (record.name, record.scope, record.windows[0].retained // KIB, record.windows[0].peak_growth // KIB)
        for record in found
    ] == expected
    assert [record.windows[0].name for record in inner.fixture("of_class")] == [
        "setup of fixture 'of_class'",
        "teardown of fixture 'of_class'",
    ]
    assert inner.fixture("of_class")[0].first_used_by == "tests/test_it.py::TestGroup::test_first"
    assert inner.window("test_first", "setup").notes == (
        "setup of fixture 'of_session' changed cpu by 1000.0 KiB, not counted here",
        "setup of fixture 'of_package' changed cpu by 2.0 MiB, not counted here",
        "setup of fixture 'of_module' changed cpu by 300.0 KiB, not counted here",
        "setup of fixture 'of_class' changed cpu by 40.0 KiB, not counted here",
    )


ODD = """
    import unittest
    import pytest, torch

    def block(kib):
        return torch.empty(kib * 256)

    def setup_module(module):
        module.kept = block(100)

    def teardown_module(module):
        del module.kept

    @pytest.fixture(scope="module", params=[10, 20])
    def parametrized(request):
        return block(request.param)

    @pytest.fixture(scope="module")
    def outer(request):
        before = block(7)
        yield before, request.getfixturevalue("inner")

    @pytest.fixture(scope="module")
    def inner():
        block(5000)
        return block(70)

    @pytest.fixture(scope="module")
    def failing():
        block(3000)
        raise RuntimeError("no luck")

    class TestA:
        def test_parameter(self, parametrized):
            block(1)

    def test_lazily(request):
        block(3)
        request.getfixturevalue("outer")
        block(2)

    def test_failing(failing):
        pass

    class TestCase(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.shared = block(4000)

        @classmethod
        def tearDownClass(cls):
            del cls.shared

        def setUp(self):
            self.own = block(3)

        def test_unit(self):
            block(2)

    def test_last():
        block(1)
"""


def test_wider_fixtures_in_odd_places(run_inner):
    inner = run_inner(ODD, "--cudamem")
    assert inner.last == "5 passed, 1 error"
    sizes = {test.nodeid.rpartition("::")[2]: test for test in inner.run.tests}
    assert {name: test.whole[0].peak_growth // KIB for name, test in sizes.items()} == {
        "test_parameter[10]": 1,
        "test_parameter[20]": 1,
        "test_lazily": 3,
        "test_failing": 0,
        "test_unit": 5,
        "test_last": 1,
    }
    assert {name: test.whole[0].retained for name, test in sizes.items()} == dict.fromkeys(sizes, 0)
    setups = {record.name: record.windows[0] for record in inner.run.fixtures if record.windows[0].name[0] == "s"}
    assert setups["outer"].retained == 7 * KIB  # without the inner one's
    assert setups["outer"].peak_growth == 7 * KIB
    assert (setups["inner"].retained, setups["inner"].peak_growth) == (70 * KIB, 5000 * KIB)
    assert setups["failing"].peak_growth == 3000 * KIB
    assert [record.windows[0].retained // KIB for record in inner.fixture("parametrized")] == [10, -10, 20, -20]
    assert inner.window("test_lazily").notes == (
        "setup of fixture 'inner' changed cpu by 70.0 KiB, not counted here",
        "setup of fixture 'outer' changed cpu by 7.0 KiB, not counted here",
    )


REGIONS = """
    import pytest, torch

    def block(kib):
        return torch.empty(kib * 256)

    def test_regions(cuda_memory):
        kept = block(10)
        with cuda_memory.window("outer") as outer:
            block(100)
            with cuda_memory.window("first"):
                block(50)
            with cuda_memory.window("second") as second:
                more = block(300)
                assert second.peak_growth == 300 * 1024 == second.retained
            block(5)
        assert (outer.peak_growth, outer.retained, outer.allocations) == (305 * 1024, 300 * 1024, 4)
        assert str(outer) == str(outer["cpu"])

    def test_regions_after_a_failure(cuda_memory):
        with pytest.raises(ZeroDivisionError):
            with cuda_memory.window("broken") as broken:
                block(40)
                1 / 0
        assert broken.peak_growth == 40 * 1024
"""


def test_regions(run_inner):
    inner = run_inner(REGIONS, "--cudamem")
    assert inner.last == "2 passed"
    record = inner.test("test_regions")
    assert [(window.name, window.peak_growth // KIB, window.retained // KIB) for window in record.windows] == [
        ("setup", 0, 0),
        ("first", 50, 0),
        ("second", 300, 300),
        ("outer", 305, 300),
        ("call", 315, 0),
        ("teardown", 0, 0),
    ]
    assert inner.window("test_regions_after_a_failure", "broken").peak_growth == 40 * KIB


THREADS = """
    import threading
    import torch
    from concurrent.futures import ThreadPoolExecutor

    def test_threads():
        held = []
        barrier = threading.Barrier(4)
        def work(number):
            held.append(torch.empty(1 << 18))
            barrier.wait()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        held.clear()
"""


def test_all_threads_count(run_inner):
    window = run_inner(THREADS, "--cudamem").window("test_threads")
    assert (window.peak_growth, window.allocations, window.retained) == (4 * MIB, 4, 0)


DISPLACED = """
    import torch
    from cudamem_testing.recorders.native import NativeRecorder

    def test_takes_the_place():
        NativeRecorder.load().uninstall()  # as a library does that registers an allocator
        torch.empty(1 << 18)

    def test_next():
        torch.empty(1 << 18)
"""


def test_a_displaced_recorder_is_back_for_the_next_test(run_inner):
    inner = run_inner(DISPLACED, "--cudamem")
    assert inner.last == "2 passed"
    windows = {test.nodeid.rpartition("::")[2]: [*test.windows, *test.whole] for test in inner.run.tests}
    names = ["setup", "call", "teardown", "test"]
    assert [(one.name, one.complete) for one in windows["test_takes_the_place"]] == [
        *zip(names, (True, False, False, False), strict=True)
    ]
    assert [(one.name, one.complete) for one in windows["test_next"]] == [(name, True) for name in names]
    assert inner.window("test_next").peak_growth == MIB
    assert "measured 2 tests on cpu; 1 measured in part" in inner.summary


AFTER_A_FAILURE = """
    import pytest, torch

    class Holds(Exception):
        pass

    def fails():
        held = torch.empty(1 << 18)
        try:
            raise ValueError(1)
        except ValueError as error:
            raise Holds from error

    def test_fails():
        more = torch.empty(1 << 18)
        fails()

    @pytest.mark.xfail(strict=True)
    def test_expected_to_fail():
        test_fails()

    def test_skips():
        more = torch.empty(1 << 18)
        pytest.skip("late")

    @pytest.mark.memory_budget(peak="1MiB", retained=0)
    def test_after():
        torch.empty(1 << 18)
        torch.empty(1 << 17), torch.empty(1 << 17)
"""


def test_a_failure_keeps_nothing_for_the_next_test(run_inner):
    inner = run_inner(AFTER_A_FAILURE, "--cudamem", "--cudamem-budget=retained=0")
    assert inner.last == "1 failed, 1 passed, 1 skipped, 1 xfailed"
    assert {test.nodeid.rpartition("::")[2]: test.whole[0].retained for test in inner.run.tests} == {
        "test_fails": 0,
        "test_expected_to_fail": 0,
        "test_skips": 0,
        "test_after": 0,
    }
    assert inner.window("test_after").peak_growth == MIB
    assert [test.failing for test in inner.run.tests] == [()] * 4


STATE = """
    import gc, os, random, signal, sys, threading, warnings
    import pytest, torch

    def theirs():  # the watch for reference cycles stands in this list too
        return [repr(one) for one in gc.callbacks if getattr(one, "__module__", None) != "cudamem_testing.guards"]

    def state():
        return {
            "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug(), theirs()),
            "warnings": [repr(one) for one in warnings.filters],
            "showwarning": repr(warnings.showwarning).partition(" at ")[0],
            "trace": (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()),
            "threads": [thread.name for thread in threading.enumerate()],
            "random": hash(random.getstate()),
            "torch": (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads(),
                      torch.initial_seed(), torch.get_rng_state().tolist()[:8]),
            "modes": torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack(),
            "profiler": torch.autograd._profiler_enabled(),
            "cuda": torch.cuda.is_initialized(),
            "environment": sorted(set(os.environ) - {"PYTEST_CURRENT_TEST"}),
            "folder": os.getcwd(),
            "signals": [repr(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)],
            "limit": sys.getrecursionlimit(),
            "stdout": type(sys.stdout).__name__,
        }

    STATES = []

    @pytest.fixture
    def given():
        STATES.append(state())
        yield
        STATES.append(state())

    @pytest.fixture(scope="module")
    def wide():
        STATES.append(state())
        yield
        STATES.append(state())
        for line in STATES:
            print("\\nSTATE", line)

    def test_state(wide, given):
        STATES.append(state())

    def test_warns():
        with pytest.warns(UserWarning, match="careful"):
            warnings.warn("careful")

    def test_garbage():
        class Cycle:
            pass
        gc.collect(0)
        gc.disable()
        try:
            for _ in range(10):
                one = Cycle()
                one.me = one
            del one
            STATES.append(gc.collect(0))
        finally:
            gc.enable()
"""


@pytest.mark.usefixtures("whole_heap")  # it observes what is frozen
def test_what_a_test_observes_is_unchanged(run_inner):
    callbacks = [*gc.callbacks]
    plain, measured = (run_inner(STATE, "-s", *options) for options in ((), ("--cudamem",)))
    assert gc.callbacks == callbacks
    assert plain.record is None
    assert measured.last == plain.last == "3 passed"
    states = [[line for line in inner.lines if line.startswith("STATE")] for inner in (plain, measured)]
    assert states[0] == states[1]
    assert len(states[0]) == 6


OUTPUT = """
    import os, subprocess, sys
    import pytest, torch

    @pytest.fixture(scope="module")
    def wide(capfd_of_module=None):
        return torch.ones(10)

    @pytest.mark.memory_budget(peak="1MiB")
    def test_descriptors(capfd, wide, cuda_memory):
        with cuda_memory.window("here"), cuda_memory.budget(peak="1MiB"), cuda_memory.limit("1MiB"):
            torch.ones(1024)
        print("only this")
        os.write(2, b"and this")
        assert tuple(capfd.readouterr()) == ("only this\\n", "and this")

    def test_lazily(capfd, request):
        request.getfixturevalue("cuda_memory")
        assert tuple(capfd.readouterr()) == ("", "")
"""


def test_tests_see_only_their_own_output(run_inner):
    inner = run_inner(OUTPUT, "--cudamem")
    assert inner.last == "2 passed"
    assert inner.err == ""


PROFILER = """
    import torch
    from torch.autograd.profiler import profile  # what torch.profiler runs, without its slow imports

    def test_own_profiler():
        kept = torch.empty(1 << 18)
        with profile(use_kineto=True, profile_memory=True, record_shapes=True, with_stack=True) as profiler:
            x = torch.ones(64, 64)
            y = x @ x
            for _ in range(3):
                y = torch.relu(y) + 1
        trace = [(event.name, event.cpu_memory_usage, event.input_shapes) for event in profiler.function_events]
        print("\\nTRACE", trace)
        torch.empty(1 << 19)

    def test_memory_only():
        with profile(profile_memory=True) as profiler:
            torch.empty(256)
        assert [one.cpu_memory_usage for one in profiler.function_events if one.name == "aten::empty"] == [1024]
"""


def test_a_test_with_its_own_profiler(run_inner):
    plain, measured = (run_inner(PROFILER, "-s", *options) for options in ((), ("--cudamem",)))
    assert measured.last == plain.last == "2 passed"
    traces = [[line for line in inner.lines if line.startswith("TRACE")] for inner in (plain, measured)]
    assert traces[0] == traces[1]
    assert [traces[0][0].count(f"'aten::{name}'") for name in ("ones", "mm", "relu", "add")] == [1, 1, 3, 3]
    window = measured.window("test_own_profiler")
    assert (window.peak_growth, window.complete, window.notes) == (3 * MIB + 32 * KIB, True, ())  # two matrices live on
    assert measured.window("test_memory_only").peak_growth == KIB
