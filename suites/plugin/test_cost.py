"""What a clean test costs: on a card in calls of torch, counted on a model of its allocators; on the CPU in our own."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from cudamem_testing.objects import places
from cudamem_testing.objects.places import KnownPlaces
from cudamem_testing.objects.search import find_holders
from cudamem_testing.recorders.cuda import CudaRecorder
from suites import forked
from suites.plugin.apart import run_apart
from suites.plugin.inner import CACHE

#: Frames of functions of the package, generators counted each time they go on.
CALLS_OF_A_CLEAN_TEST = 57
CALLS_ON_A_CARD = 70, 73  # more on a simulated one, whose memory outside the allocator is never known
ONE_CARD = """
    import gc
    import json
    from contextlib import ExitStack

    import pytest

    from cudamem_testing import torch_api
    from cudamem_testing.run import baselines
    from cudamem_testing.recorders.card_recorder import CardLibrary
    from suites.recorders.allocator import Allocator
    from suites.recorders.test_host import Pinned

    class Counting(Allocator):
        def __init__(self):
            super().__init__()
            self.calls = dict.fromkeys(
                ("native reads", "reads", "resets", "pinned reads", "histories", "snapshots", "collections"), 0
            )
            pinned = Pinned()
            for name, function in vars(pinned.bindings).items():
                setattr(self.bindings, name, self.counted("pinned reads", function))

        def native_card(self, index):
            card = super().native_card(index)
            card.read = self.counted("native reads", card.read)
            card.read_alone = self.counted("native reads", card.read_alone)
            return card

        def statistics(self, index):
            self.calls["reads"] += 1
            return super().statistics(index)

        def reset_peaks(self, index):
            self.calls["resets"] += 1
            super().reset_peaks(index)

        def counted(self, name, function):
            def call(*arguments, **options):
                self.calls[name] += 1
                return function(*arguments, **options)
            return call

        def collected(self, phase, info):
            self.calls["collections"] += phase == "start" and info["generation"] == 2

    ALLOCATOR, STACK, TESTS = Counting(), ExitStack(), []

    def pytest_configure():
        STACK.enter_context(ALLOCATOR.in_place())
        patch = STACK.enter_context(pytest.MonkeyPatch.context())
        nothing = {"segments": [], "device_traces": [[]]}
        for name, function in {
            "allocator_backend": lambda: "native",
            "history_starter": lambda entries: ALLOCATOR.counted("histories", lambda: None),
            "stop_history": lambda: None,
            "snapshot": ALLOCATOR.counted("snapshots", lambda: nothing),
        }.items():
            patch.setattr(torch_api, name, function)
        patch.setattr(baselines, "identity", lambda device: "a model")
        patch.setattr(CardLibrary, "load", lambda say: None)  # pinned memory is a model, too
        gc.callbacks.append(ALLOCATOR.collected)
        STACK.callback(gc.callbacks.remove, ALLOCATOR.collected)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure():
        STACK.close()

    @pytest.fixture
    def card():
        return ALLOCATOR.cards[0]

    def pytest_runtest_logfinish(nodeid):
        TESTS.append(dict(ALLOCATOR.calls))

    def pytest_sessionfinish():
        found = [{name: after[name] - before[name] for name in after} for before, after in zip(TESTS, TESTS[1:])]
        with open("calls.json", "w") as out:
            json.dump(found, out)
"""
CLEAN = """
    import torch

    def test_first():
        pass

    def test_idle():
        pass

    def test_allocates_and_frees(card):
        card.allocate(100)
        card.free(0)

    def test_allocates_as_much(card):
        card.allocate(100)
        card.free(0)

    def test_last():
        pass
"""
FIXTURE = """
    import pytest

    @pytest.fixture(scope="class")
    def model(card):
        card.allocate(1000)
        yield
        card.free(0)

    def test_first():
        pass

    class TestModel:
        def test_one(self, model): pass
        def test_two(self, model): pass
        def test_ends_it(self, model): pass

    def test_last():
        pass
"""


@pytest.mark.parametrize("natively", [False, True], ids=["python", "native"])
def test_calls_of_a_clean_test(run_inner, natively: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaRecorder, "outside", lambda self: None)  # this machine may have a card of its own
    conftest = ONE_CARD.replace("in_place()", f"in_place(native={natively})")
    inner = run_inner({"conftest.py": conftest, "test_it.py": CLEAN}, "--cudamem", "--cudamem-device=cuda")
    assert inner.last == "5 passed"
    tests = "test_allocates_and_frees", "test_allocates_as_much"
    assert [inner.window(test).peak_growth for test in tests] == [512, 512]
    assert inner.run.notes == ()
    idle, busy, again, last = json.loads((inner.folder / "calls.json").read_text())
    # One read for each end of setup, call and teardown: where one phase ends and the next begins they share it.
    reads = {"native reads": 4, "reads": 0} if natively else {"native reads": 0, "reads": 4}
    clean = reads | {"resets": 0, "pinned reads": 4, "histories": 1, "snapshots": 0, "collections": 0}
    assert idle == clean
    # Where a peak is above what is there, new ones start: in the native library with the same call, but with a second
    # one, which reports it, where it is higher than any before.
    assert busy == clean | ({"native reads": 5} if natively else {"resets": 1})
    assert again == clean | ({} if natively else {"resets": 1})
    assert last == clean  # a file's last test: where nothing is live, nothing hides behind equal counts


def test_a_fixture_that_frees_everything_costs_two_reads_an_end(run_inner) -> None:
    conftest = ONE_CARD.replace("@pytest.fixture\n", "@pytest.fixture(scope='session')\n")
    inner = run_inner({"conftest.py": conftest, "test_it.py": FIXTURE}, "--cudamem", "--cudamem-device=cuda")
    assert inner.last == "5 passed"
    one, two, end, _ = json.loads((inner.folder / "calls.json").read_text())
    using = {
        "native reads": 0,
        "reads": 4,
        "resets": 0,
        "pinned reads": 4,
        "histories": 1,
        "snapshots": 0,
        "collections": 0,
    }
    # At its end two more for its finalizer.
    assert (two, end) == (using, using | {"reads": 6, "resets": 1, "pinned reads": 6})
    assert one["snapshots"] == 1  # what it made is noted once


COUNTED = """
    import sys
    from pathlib import Path

    import pytest

    import cudamem_testing

    PACKAGE = str(Path(cudamem_testing.__file__).parent)
    SIMULATION = tuple(f"{PACKAGE}/{place}" for place in ("simulated/", "plugin/simulation.py"))
    CALLS = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol():
        calls = 0

        def count(frame, event, argument):
            nonlocal calls
            file = frame.f_code.co_filename
            calls += event == "call" and file.startswith(PACKAGE) and not file.startswith(SIMULATION)

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            return (yield)
        finally:
            sys.setprofile(before)
            CALLS.append(calls)

    def pytest_sessionfinish():
        Path("calls.txt").write_text(" ".join(map(str, CALLS)))
"""
ALIKE = """
    import pytest, torch

    @pytest.mark.parametrize("number", range(6))
    def test_clean(number):
        torch.ones(8).add_(1)
"""


def test_a_clean_test_on_the_cpu_takes_few_calls_of_ours(run_inner) -> None:
    """Each takes about a microsecond, in a cache that the test itself has filled with other things."""
    inner = run_inner({"conftest.py": COUNTED, "test_it.py": ALIKE}, "--cudamem", "--cudamem-device=cpu")
    assert inner.last == "6 passed"
    calls = [int(text) for text in (inner.folder / "calls.txt").read_text().split()]
    assert 0 < min(calls) <= CALLS_OF_A_CLEAN_TEST


@pytest.mark.subprocess
@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cuda:0", marks=pytest.mark.gpu),
        pytest.param(
            "simulated",
            marks=pytest.mark.simulated_card,
        ),
    ],
)
def test_a_clean_test_on_a_card_takes_few_calls_of_ours(device: str, tmp_path: Path) -> None:
    """The native libraries read the card and pinned memory, each with one function of Python around it."""
    on_card = ALIKE.replace("torch.ones(8)", 'torch.ones(8, device="cuda")')
    arguments = "-p", "cudamem", "-p", "no:randomly", "--cudamem", f"--cudamem-device={device}", f"--rootdir={tmp_path}"
    files = {"conftest.py": COUNTED, "test_it.py": on_card}
    run_apart(forked.python(), tmp_path, files, *arguments, CUDAMEM_CACHE=CACHE)
    calls = [int(text) for text in (tmp_path / "calls.txt").read_text().split()]
    assert 0 < min(calls) <= CALLS_ON_A_CARD[device == "simulated"]


LEAKING = """
    import torch
    A, B, C = [], {}, set()

    class D: kept = []

    def make(): return torch.zeros(32 << 10)
    def test_a(): A.append(make())
    def test_b(): B["x"] = [make()]
    def test_c(): C.add(make())
    def test_d(): D.kept.append(make())
"""


def test_leaks_in_names_of_the_tests_module_need_no_search(run_inner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a whole heap takes a tenth of a second; one of another module, once it is known, needs none either."""
    searched: list[object] = []

    def search(wanted: tuple[int, ...], **options: object) -> object:
        searched.append(wanted)
        return find_holders(wanted, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(places, "find_holders", search)
    other = "import elsewhere\n" + textwrap.dedent(LEAKING).replace("A.a", "elsewhere.A.a").replace(
        "D.k", "elsewhere.D.k"
    )
    files = {"elsewhere.py": LEAKING, "test_here.py": LEAKING, "test_there.py": f"import elsewhere\n{other}"}
    inner = run_inner(files, "--cudamem", "--cudamem-device=cpu")
    assert inner.last == "8 passed, 8 errors"
    assert len(searched) == 1


GARBAGE = """
    import torch
    KEPT = []

    class Node:
        def __init__(self):
            self.me, self.state = self, torch.empty(32 << 10)

    def test_leaks(): KEPT.append(torch.empty(32 << 10))
    def test_makes_a_cycle(): Node()
    def test_makes_another(): Node()
"""


def test_no_search_for_holders_of_young_garbage(run_inner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collecting it takes less than an answer; each question reads what surrounds all places that are known."""
    asked: list[bool] = []
    find = KnownPlaces.find

    def count(self: KnownPlaces, *arguments: object, **options: object) -> object:
        asked.append(True)
        return find(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(KnownPlaces, "find", count)
    inner = run_inner({"test_it.py": GARBAGE}, "--cudamem", "--cudamem-device=cpu")
    assert inner.last == "3 passed, 1 error"
    tests = (inner.test(f"test_{name}") for name in ("leaks", "makes_a_cycle", "makes_another"))
    assert [len(test.findings) for test in tests] == [1, 1, 1]
    assert len(asked) == 1
