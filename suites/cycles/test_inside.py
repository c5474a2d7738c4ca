"""What a test can notice of the watch inside a collection: nothing."""

from __future__ import annotations

import ast
import builtins
import ctypes
import gc
import linecache
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import cudamem_testing
from cudamem_testing import Cycle, watch_cycles
from cudamem_testing.cycles.draft import Question
from cudamem_testing.cycles.explain import explain
from cudamem_testing.cycles.native import Graph
from cudamem_testing.cycles.watch import CycleWatch, library
from cudamem_testing.guards import FEWEST_FROZEN, CollectorPaused, thawed
from cudamem_testing.model.stacks import Locator
from cudamem_testing.unfinalized import GarbageWatch
from suites import forked

pytestmark = pytest.mark.usefixtures("no_callbacks")


class Node:
    """Anything with attributes."""

    def step(self) -> None:
        """Something to call."""


class Late(Exception):  # noqa: N818 - what a handler raises
    """Time is over."""


def ring(size: int = 256) -> None:
    one: Any = Node()
    one.fns, one.big = [one.step], torch.ones(size)


def rings() -> None:
    for _ in range(5):
        ring()


@pytest.fixture
def watch() -> Iterator[CycleWatch]:
    """Collections are watched."""
    gc.collect()
    made = CycleWatch()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Sets the alarm of this process; its handler raises ``Late``."""

    def handler(number: int, frame: types.FrameType | None) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


MANY = 1000 if os.environ.get("HYPOTHESIS_PROFILE") == "full" else 300
TIMES = [100, pytest.param(MANY, marks=pytest.mark.slow)]


def lost(alarm: Callable[[float], None], times: int, seed: int, raised: type[BaseException]) -> int:
    """How many of some alarms, at random moments of collections, raised nothing in the code that they met."""
    moments = random.Random(seed)
    found = 0
    for _ in range(times):
        end = time.monotonic() + 2
        try:
            alarm(moments.uniform(0.0001, 0.003))
            while time.monotonic() < end:
                rings()
                gc.collect(0)
        except raised:
            continue
        found += 1
    return found


@pytest.mark.parametrize("times", TIMES)
def test_no_alarm_is_lost(watch: CycleWatch, alarm: Callable[[float], None], times: int) -> None:
    assert lost(alarm, times, 0, Late) == 0
    assert sum(cycle.count for together in watch.take() for cycle in together) >= times


@pytest.mark.parametrize("times", TIMES)
def test_no_keyboard_interrupt_is_lost(watch: CycleWatch, alarm: Callable[[float], None], times: int) -> None:
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # that of Ctrl-C, which is written in C
    assert lost(alarm, times, 1, KeyboardInterrupt) == 0


def test_no_signal_of_ours_is_left_to_the_callback_of_another(
    alarm: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal that comes while native code reads: Python would run its handler in the next callback, and drop it."""
    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)

    class Sent:
        @staticmethod
        def from_param(shown: object) -> ctypes.c_int:
            return ctypes.c_int(signal.SIGALRM)

    send = ctypes.PyDLL(None)["raise"]  # no Python code runs after it
    send.argtypes, send.restype = [Sent], None
    watch = GarbageWatch((Node,), lambda garbage, parts: False, lambda: False, dropped.append)
    monkeypatch.setattr(watch, "look", send)
    gc.callbacks.append(lambda phase, info: None)
    watch.start(library())
    try:
        with CollectorPaused():
            ring()
            with pytest.raises(Late):  # noqa: PT012
                gc.collect(0)
                raise AssertionError("not raised at once")
            ring()
            gc.callbacks.clear()
            with pytest.raises(Late):  # noqa: PT012
                gc.collect(0)
                raise AssertionError("not raised at once")
    finally:
        watch.stop()
    assert dropped == []


def test_cards_without_counters_are_not_counted(watch: CycleWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.9 no count says when a collection was: the blocks of cards are then read in it."""
    monkeypatch.setattr(library(), "cudamem_collector_counts_cards", lambda: 0)
    assert watch.counting((0, 0), ["cuda:0"]) is None
    assert watch.counting((0, 0)) is not None


@pytest.mark.slow
def test_an_interrupted_look_begins_again(watch: CycleWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler runs in the middle of looking, which is as certain as it gets: the look itself sends the signal."""
    seen: list[str] = []

    def handler(number: int, frame: types.FrameType | None) -> None:
        seen.append("handler")
        raise Late("over")

    def again(garbage: list[object], question: Question, *more: Any) -> Any:
        if not seen:
            explain(garbage, question, *more).settle()  # on some versions of Python it makes dictionaries
            signal.raise_signal(signal.SIGUSR1)
        return explain(garbage, question, *more)

    # A function of the package's own, as far as its frames tell.
    again = types.FunctionType(
        again.__code__, {**globals(), "__name__": "cudamem_testing.x"}, closure=again.__closure__
    )
    monkeypatch.setattr("cudamem_testing.cycles.explain.explain", again)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with CollectorPaused(), pytest.raises(Late, match="over") as caught:  # noqa: PT012
            ring()
            dead = [weakref.ref(obj) for obj in gc.get_objects() if type(obj) is Node]
            gc.collect()
            raise AssertionError("not raised at once")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [reference() for reference in dead] == [None]
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames == ["test_an_interrupted_look_begins_again", "handler"]
    (found,) = watch.take()
    assert [(cycle.bytes, cycle.chain[0]) for cycle in found] == [(1024, "Node.__dict__['fns']")]


def test_a_signal_that_comes_each_time_is_no_endless_look(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[BaseException] = []
    watch = CycleWatch(failed=failed.append)

    def handler(number: int, frame: types.FrameType | None) -> None:
        raise Late

    monkeypatch.setattr("cudamem_testing.cycles.explain.explain", lambda *_: signal.raise_signal(12))
    before = signal.signal(12, handler)
    watch.start()
    try:
        with CollectorPaused():
            ring()
            # Each is raised while the one before is handled.
            with (
                pytest.raises(Late),
                pytest.raises(Late),
                pytest.raises(Late),
                pytest.raises(Late),
                pytest.raises(Late),
            ):
                gc.collect()
    finally:
        watch.stop()
        signal.signal(12, before)
    assert [str(error) for error in failed] == ["signals interrupted it too often"]


def test_what_another_thread_sets_in_a_collection_arrives(watch: CycleWatch) -> None:
    """An exception that has no frame: ``PyThreadState_SetAsyncExc``, as tools that end threads use it."""
    arrived: list[str] = []
    started = threading.Event()

    def work() -> None:
        end = time.monotonic() + 5
        try:
            started.set()
            while time.monotonic() < end:
                rings()
                gc.collect(0)
        except Late:
            arrived.append("late")

    for _ in range(20):
        thread = threading.Thread(target=work)
        thread.start()
        started.wait()
        time.sleep(0.003)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Late))
        thread.join()
        started.clear()
    assert arrived == ["late"] * 20


@pytest.fixture
def slow_look() -> Iterator[Callable[..., None]]:
    """Watches garbage with a Node; reading it, and its end, run what is given."""
    watches: list[GarbageWatch] = []

    def begin(look: Callable[[], object], end: Callable[[], object] = bool) -> None:
        failed: list[BaseException] = []

        def looked(garbage: list[object], parts: object) -> bool:
            garbage.clear()
            look()
            return True

        watch = GarbageWatch((Node,), looked, lambda: bool(end() and 0), failed.append)
        gc.collect(1)
        watch.start(library())
        watches.append(watch)

    with CollectorPaused():
        yield begin
        for one in watches:
            one.stop()


class Other:
    """A thread that collects garbage of its own when it is asked to."""

    def __init__(self, collect: Callable[[int], int] = gc.collect) -> None:
        self.asked, self.waits = threading.Event(), threading.Event()
        self.left: list[object] = []
        self._collect = collect
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self) -> None:
        self.asked.wait(10)
        one: Any = weakref.WeakSet()
        one.me = one
        dead = weakref.ref(one)
        del one
        self.waits.set()
        self._collect(1)
        self.left.append(dead())

    def ask(self) -> None:
        """Hand over the interpreter's lock until the thread has had the time to collect."""
        self.asked.set()
        self.waits.wait(10)
        time.sleep(0.05)


@pytest.mark.parametrize("moment", ["look", "end"])
def test_another_threads_collection_waits_until_garbage_is_read(slow_look: Callable[..., None], moment: str) -> None:
    other = Other()
    slow_look(other.ask) if moment == "look" else slow_look(bool, other.ask)
    ring()
    gc.collect(1)
    other.thread.join()
    assert other.left == [None]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_forked_while_garbage_is_read_does_not_wait(slow_look: Callable[..., None]) -> None:
    """The thread that reads is not in it. (That Python collects nothing there either is its own.)"""
    ended: list[int] = []

    def fork(generation: int) -> int:
        child = os.fork()
        if child == 0:
            start = time.monotonic()
            gc.collect(generation)
            os._exit(time.monotonic() - start > 1)
        ended.append(os.waitpid(child, 0)[1])
        return 0

    other = Other(fork)
    slow_look(lambda: (other.ask(), other.thread.join(5)))
    ring()
    gc.collect(1)
    assert ended == [0]


def test_a_collection_inside_a_read_does_not_wait(slow_look: Callable[..., None]) -> None:
    """As in a signal's handler: the same thread."""
    found: list[int] = []
    slow_look(lambda: found.append(gc.collect(1)))
    ring()
    gc.collect(1)
    assert found == [0]


@pytest.mark.slow
def test_a_collection_whose_end_is_not_seen_delays_one_call(slow_look: Callable[..., None]) -> None:
    class Clears(Node):
        def __del__(self) -> None:
            gc.callbacks.clear()

    slow_look(bool)
    one: Any = Clears()
    one.me, one.big = one, torch.ones(16)
    del one
    gc.collect(1)
    times: list[float] = []

    def collect(generation: int) -> int:
        for _ in range(2):
            start = time.monotonic()
            gc.collect(generation)
            times.append(time.monotonic() - start)
        return 0

    other = Other(collect)
    other.asked.set()
    other.thread.join()
    assert times[0] > 1.5 > times[1]


@pytest.mark.slow
def test_a_collection_under_a_lock_that_reading_needs_passes(slow_look: Callable[..., None]) -> None:
    lock = threading.Lock()

    def collect(generation: int) -> int:
        with lock:
            return gc.collect(generation)

    def look() -> None:
        other.ask()
        with lock:
            pass

    other = Other(collect)
    slow_look(look)
    ring()
    gc.collect(1)
    other.thread.join()
    assert len(other.left) == 1


def test_a_recursion_error_stays_the_tests_own(watch: CycleWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    threshold = gc.get_threshold()

    def deep(depth: int) -> int:
        one: Any = Node()
        one.me, one.big = one, torch.ones(16)
        del one
        return deep(depth + 1) + len([[], {}, (depth, [])])

    limit = sys.getrecursionlimit()
    try:
        for step in (1, 12, 25):
            gc.set_threshold(40 + step, 3, 3)
            with pytest.raises(RecursionError):
                deep(0)
    finally:
        gc.set_threshold(*threshold)
    assert (told, sys.getrecursionlimit()) == ([], limit)
    assert gc.callbacks == []
    assert watch.take()


MOCKED = [
    (builtins, "len"),
    (builtins, "print"),
    (builtins, "open"),
    (builtins, "isinstance"),
    (builtins, "__import__"),
    (time, "thread_time"),
    (time, "monotonic"),
    (os, "getcwd"),
    (os.path, "exists"),
    (linecache, "getlines"),
    (ast, "parse"),
    (gc, "get_referents"),
    (gc, "get_objects"),
    (sys, "getrefcount"),
    (torch.cuda, "is_available"),
]


@pytest.mark.parametrize(("owner", "name"), MOCKED, ids=[name for _, name in MOCKED])
def test_what_a_test_replaces_is_not_called(watch: CycleWatch, owner: Any, name: str) -> None:
    calls: list[object] = []
    original = getattr(owner, name)

    def stands(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return original(*args, **kwargs)

    with CollectorPaused():
        ring()
        collect = gc.collect
        with mock.patch.object(owner, name, stands):
            collect()
            assert vars(owner)[name] is stands
            made = calls[:]
    assert made == []
    assert [cycle.bytes for together in watch.take() for cycle in together] == [1024]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 cannot hide calls from profilers")
def test_neither_callbacks_nor_finders_nor_profilers_see_it(watch: CycleWatch) -> None:
    seen: list[str] = []
    with CollectorPaused():
        finders = [*sys.meta_path]
        assert gc.callbacks == []
        ring()
        sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code.co_filename))
        try:
            gc.collect()
        finally:
            sys.setprofile(None)
        assert (gc.callbacks, sys.meta_path) == ([], finders)
    assert {*seen} == {__file__}
    assert len(watch.take()) == 1


def test_a_users_callback_sees_no_flag_and_is_called(watch: CycleWatch) -> None:
    seen: list[tuple[str, int, int]] = []

    def other(phase: str, info: object) -> None:
        seen.append((phase, gc.get_debug(), len(gc.garbage)))

    gc.callbacks.append(other)
    try:
        with CollectorPaused():
            ring()
            gc.collect()
    finally:
        gc.callbacks.remove(other)
    assert seen == [("start", 0, 0), ("stop", 0, 0)]
    assert len(watch.take()) == 1


@pytest.mark.slow
def test_who_empties_the_callbacks_delays_only_the_end(watch: CycleWatch) -> None:
    class Clears(Node):
        def __del__(self) -> None:
            gc.callbacks.clear()

    with CollectorPaused():
        one: Any = Clears()
        one.me, one.big = one, torch.ones(256)
        del one
        gc.collect()
        assert watch.take() == []
        other: Any = Node()
        other.me = other
        del other
        gc.collect()
    assert [cycle.bytes for together in watch.take() for cycle in together] == [1024]


def test_garbage_without_tensors_runs_nothing(watch: CycleWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr("cudamem_testing.cycles.explain.explain", lambda garbage, *_: looked.append(len(garbage)) or ())
    with CollectorPaused():
        one: Any = Node()
        one.me = one
        del one
        gc.collect()
        assert looked == []
        ring()
        gc.collect()
        assert len(looked) == 1


def test_too_little_memory_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    one: Any = Node()
    one.me, one.big = one, torch.ones(256)
    asked: list[dict[str, int]] = []
    question = Question(Locator(""), enough=lambda kept: asked.append(dict(kept)) is not None)
    monkeypatch.setattr(Graph, "search", None)
    assert len(explain([one, one.__dict__, one.big], question)) == 0
    assert asked == [{"cpu": 1024}]
    del one.me


def test_a_watch_without_a_collection_has_nothing_to_take(watch: CycleWatch) -> None:
    with CollectorPaused():
        watch.stop()
        watch.take()
        watch.start()
        assert not watch.stop()
        watch.start()
        gc.collect(0)
        assert watch.stop()
        watch.start()
        assert watch.stop(), "until it is taken"
        assert watch.take() == []
        watch.start()
        assert not watch.stop()
        assert watch.missed == 0


def test_a_watch_that_ends_inside_a_collection_has_missed_none(watch: CycleWatch) -> None:
    """Which was seen, and is counted later."""
    stopped: list[bool] = []

    class Stops:
        def __del__(self) -> None:
            stopped.append(watch.stop())

    one: Any = Stops()
    one.me = one
    del one
    watch.start()
    gc.collect()
    assert stopped == [True]
    assert watch.missed == 0


@pytest.mark.slow
def test_a_list_of_all_objects_is_said_to_hide_collections(watch: CycleWatch) -> None:
    with CollectorPaused():
        gc.collect()
        watch.stop()
        assert watch.missed == 0
        watch.start()
        every = gc.get_objects()
        gc.collect()
        del every
        ring()
        gc.collect(0)
        watch.stop()
        assert watch.missed == 2
        assert watch.take() == []


@pytest.fixture
def eager() -> Iterator[None]:
    """A collection starts at almost every new object."""
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1000, 1000)
    yield
    gc.set_threshold(*threshold)


def test_collections_that_begin_and_end_with_a_watch_are_seen(eager: None) -> None:
    made = CycleWatch()
    keep: list[list[int]] = []
    for _ in range(50):
        made.start()
        keep.append([])
        made.stop()
    assert made.missed == 0


@pytest.mark.slow
def test_asking_for_frozen_objects_hides_no_collection(
    watch: CycleWatch, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "get_freeze_count", lambda: FEWEST_FROZEN)  # all objects are listed then
    for _ in range(20):
        with thawed():
            pass
    watch.stop()
    assert watch.missed == 0


@pytest.mark.slow
def test_the_callback_of_a_watch_runs_outside(watch: CycleWatch) -> None:
    running: list[bool] = []

    def told(cycle: Cycle) -> None:
        before = gc.get_stats()[2]["collections"]
        gc.collect()  # does nothing inside a collection
        running.append(gc.get_stats()[2]["collections"] == before)

    remove = watch_cycles(told)
    try:
        ring()
        gc.collect()
    finally:
        remove()
    assert running == [False]


#: Whether garbage of those tests is looked at.
LOOKED_AT = {"shown_tensors": False, "read_objects": True, "shown_objects": True}
CPYTHONS_TESTS = """
import gc, unittest, torch
from cudamem_testing.cycles.watch import CycleWatch, library
from cudamem_testing.unfinalized import GarbageWatch
from suites import forked
import test.test_gc

class Outcomes(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.of, self.finished = {}, []
    def stopTest(self, test):
        super().stopTest(test)
        self.of.setdefault(test.id(), "passed")
    def addSkip(self, test, reason):
        self.of[test.id()] = reason
    def addFailure(self, test, error):
        self.of[test.id()] = self._exc_info_to_string(error, test)
    addError = addFailure

def outcomes(order):
    tests = [one for group in unittest.defaultTestLoader.loadTestsFromModule(test.test_gc) for one in group]
    found = Outcomes()
    unittest.TestSuite(sorted(tests, key=lambda one: order(one.id().rpartition(".")[2]))).run(found)
    return found.of

def only_shown(kind):
    looked, failed = [], []
    watch = GarbageWatch((kind,), lambda garbage, parts: looked.append(len(garbage)) is None, bool, failed.append)
    watch.start(library())
    return watch, lambda: (bool(looked), failed, watch.missed)

def read_objects():
    failed = []
    watch = CycleWatch(failed=failed.append, kind=object)
    watch.start()
    return watch, lambda: (any(map(len, watch.take())), failed, watch.missed)

def shown_tensors():
    return only_shown(torch.Tensor)

def shown_objects():
    return only_shown(object)

def compare(begin, order):
    gc.collect()
    gc.freeze()
    watch, told = begin()
    found = outcomes(order)
    watch.stop()
    differ = {name: (plain[name], outcome) for name, outcome in found.items() if outcome != plain[name]}
    print("compared", begin.__name__, differ, len(found) > 40, "passed" in found.values(), *told())

gc.collect()
gc.freeze()
plain = outcomes(lambda name: name == "test_freeze")
compare(shown_tensors, lambda name: name == "test_freeze")
compare(read_objects, lambda name: name == "test_freeze")
compare(shown_objects, lambda name: 1 if name == "test_freeze" else 2 * ("test_s" < name != "test_trashcan"))
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_cpythons_tests_of_the_collector_keep_their_outcomes() -> None:
    """With torch's objects frozen, which makes collections short, until the test that ends that; some also after it."""
    pytest.importorskip("test.test_gc", reason="this Python comes without its own tests")
    root = Path(cudamem_testing.__file__).parent.parent
    command = [forked.python(), "-c", CPYTHONS_TESTS]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    told = [line for line in done.stdout.splitlines() if line.startswith("compared ")]
    expected = [f"compared {name} {{}} True True {looked} [] 0" for name, looked in LOOKED_AT.items()]
    assert told == expected, done.stderr[-2000:]
