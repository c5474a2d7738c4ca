"""The leak check on a card, whose history tells neither threads nor owners: who freed what, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cudamem_testing import guards
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Kind, Severity
from cudamem_testing.model.windows import SharedWindows
from cudamem_testing.objects import places
from cudamem_testing.recorders.base import Owned, WithoutOwners
from cudamem_testing.recorders.capture import CudaCapture
from cudamem_testing.report.schema import FINDING
from cudamem_testing.run import holders, retained_analysis
from cudamem_testing.run.attribution import Attributions
from cudamem_testing.run.evidence import Evidence
from cudamem_testing.run.leaks import LeakCheck
from cudamem_testing.run.running import Fixture, LeakSubject
from cudamem_testing.windows.owners import Owner, Owners
from cudamem_testing.windows.phases import Phases
from cudamem_testing.windows.tracker import Tracker
from cudamem_testing.wording.findings import details, text
from suites.windows.fake import FakeRecorder

KIB, MIB = 2**10, 2**20
WORKSPACE = 32 * MIB
TEST = [("/project/test_a.py", 3, "test_a"), ("/project/.venv/bin/pytest", 8, "<module>")]
THREAD = [("/project/work.py", 7, "filling"), ("/usr/lib/python3.12/threading.py", 1032, "_bootstrap")]
Frames = list[tuple[str, int, str]]


class Card(WithoutOwners, FakeRecorder):
    """A card with its history of ``room`` events. ``asked`` is what happens when libraries are asked for their
    workspaces, ``waited`` when the card is waited for.
    """

    tells_blocks = True

    def __init__(self) -> None:
        super().__init__("cuda:0")
        self.events: list[dict[str, Any]] = []
        self.live: dict[int, int] = {}
        self.frames: dict[int, Frames] = {}
        self.asked: Callable[[], object] = lambda: None
        self.waited: Callable[[], None] = lambda: None
        self.retaken: Callable[[], object] = lambda: None
        self.pools: dict[int, tuple[int, int]] = {}  # by address of a block
        self.pool: tuple[int, int] | None = None  # of a graph that lives
        self.room = 1000

    def take(self, size: int, frames: Frames = TEST) -> int:
        """A block, somewhere no Python object knows of."""
        address = 2**50 + len(self.frames) * WORKSPACE
        self.live[address], self.frames[address] = size, frames
        self._event("alloc", address, size, frames)
        self.allocate(size)
        return address

    def free(self, address: int) -> None:
        size = self.live.pop(address)
        self._event("free_requested", address, size, [])
        self._event("free_completed", address, size, [])
        self.allocate(-size)

    def give_back(self, *addresses: int) -> None:
        """Free those that are still there."""
        for address in addresses:
            if address in self.live:
                self.free(address)

    def _event(self, action: str, address: int, size: int, frames: Frames) -> None:
        self.events.append({"action": action, "addr": address, "size": size, "stream": 0, "frames": named(frames)})

    def capture(self) -> CudaCapture:  # type: ignore[override]
        segments = [
            {
                "device": 0,
                "address": address,
                "total_size": size,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": self.pools.get(address, (0, 0)),
                "blocks": [
                    {
                        "address": address,
                        "size": size,
                        "requested_size": size,
                        "state": "active_allocated",
                        "frames": named(self.frames[address]),
                    }
                ],
            }
            for address, size in self.live.items()
        ]
        if self.pool is not None:
            graph = {"device": 0, "address": 2**49, "total_size": 2 * MIB, "stream": 0, "segment_type": "large"}
            segments.append({**graph, "segment_pool_id": self.pool, "blocks": []})
        traces = [self.events[-self.room :]]
        return CudaCapture(Device("cuda", 0), {"segments": segments, "device_traces": traces}, self.room)

    def finish(self) -> None:
        self.waited()

    def workspace_sizes(self) -> frozenset[int]:
        return frozenset({WORKSPACE})

    def release(self) -> None:
        self.asked()

    def retake(self) -> None:
        self.retaken()


def named(frames: Frames) -> list[dict[str, Any]]:
    return [dict(zip(("filename", "line", "name"), frame, strict=True)) for frame in frames]


class Judged:
    """A test on a card, where less than ``least`` bytes are not judged."""

    def __init__(self, card: Card) -> None:
        self.least = 0
        self.card, self.tracker = card, Tracker()
        self.tracker.attach([card])
        self.owners = Owners(self.tracker)
        evidence = Evidence(self.tracker, Path("/project"), self.owners.names, recorded=True)
        self.attributions = Attributions(self.tracker, self.owners, evidence)
        self.check = LeakCheck(self.tracker, evidence, self.attributions, lambda device: self.least)
        self.begin()

    def begin(self) -> None:
        phases = Phases(self.tracker, "setup", SharedWindows())
        self.subject = LeakSubject(phases, Owner("test_a.py::test_a"), ())

    def findings(self) -> list[tuple[str, int | None, str | None]]:
        self.tracker.read(self.card)
        found = self.check.judge(self.subject, Severity.FAIL)
        return [(finding.verdict.value, finding.bytes, finding.allocated) for finding in found]


@pytest.fixture
def test(monkeypatch: pytest.MonkeyPatch) -> Judged:
    monkeypatch.setattr(retained_analysis, "collect_garbage", lambda: None)
    return Judged(Card())


LEAK = ("held by C++", 4 * KIB, "test_a.py:3 in test_a")


def test_what_libraries_give_back_is_theirs(test: Judged) -> None:
    test.card.take(4 * KIB)
    workspace = test.card.take(3 * MIB)
    test.card.asked = lambda: test.card.give_back(workspace)
    assert test.findings() == [("library workspace", 3 * MIB, "test_a.py:3 in test_a"), LEAK]


def test_what_a_thread_frees_meanwhile_is_no_workspace(test: Judged) -> None:
    test.card.take(4 * KIB)
    passing = test.card.take(512, THREAD)
    test.card.asked = lambda: test.card.free(passing)
    assert test.findings() == [LEAK]
    test.begin()
    test.card.asked = lambda: None
    test.card.take(512)
    assert test.findings() == [("held by C++", 512, "test_a.py:3 in test_a")]


def test_memory_freed_before_libraries_release_has_no_owner(test: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    test.card.take(4 * KIB)
    passing = test.card.take(512)
    search = places.find_holders

    def long_search(*args: Any, **kwargs: Any) -> Any:
        found = search(*args, **kwargs)
        if passing in test.card.live:
            test.card.free(passing)
        return found

    monkeypatch.setattr(places, "find_holders", long_search)
    assert test.findings() == [LEAK]


@pytest.mark.parametrize("frees", ["what libraries are asked for", "the search for holders", "a library"])
def test_what_is_too_small_without_what_others_free(test: Judged, monkeypatch: pytest.MonkeyPatch, frees: str) -> None:
    """More than the least size was left at first, and the rest of the test is less: it is not judged."""
    test.least = 64 * KIB
    test.card.take(4 * KIB)
    passing = test.card.take(3 * MIB, TEST if frees == "a library" else THREAD)
    if frees == "the search for holders":
        search = places.find_holders

        def long_search(*args: Any, **kwargs: Any) -> Any:
            found = search(*args, **kwargs)
            test.card.give_back(passing)
            return found

        monkeypatch.setattr(places, "find_holders", long_search)
    else:
        test.card.asked = lambda: test.card.give_back(passing)
    workspace = ("library workspace", 3 * MIB, "test_a.py:3 in test_a")
    assert test.findings() == [workspace] * (frees == "a library")
    assert test.check.small.any
    assert test.attributions.of(test.card.device).totals() == {"test_a.py::test_a": Owned(4 * KIB, 1)}


def test_a_workspace_is_allocated_again_before_the_next_test(test: Judged) -> None:
    """Known sizes are released before holders are searched; what libraries allocate then has no owner."""
    test.attributions.begin()
    workspace = test.card.take(WORKSPACE)
    test.card.asked = lambda: test.card.give_back(workspace)
    test.card.retaken = lambda: test.card.take(WORKSPACE)
    assert test.findings() == [("library workspace", WORKSPACE, "test_a.py:3 in test_a")]
    assert test.subject.phases.whole is not None
    (whole,) = test.tracker.close(test.subject.phases.whole)
    assert (whole.retained, whole.blocks) == (0, 0)
    assert test.attributions.border("test_a.py") == []
    test.begin()
    test.card.asked = lambda: pytest.fail("asked")
    assert test.findings() == []
    test.card.take(4 * KIB)
    test.card.asked = lambda: None
    assert test.findings() == [LEAK]


@pytest.mark.parametrize("size", [WORKSPACE, 3 * MIB])
def test_what_no_library_frees_is_no_workspace(test: Judged, size: int) -> None:
    """Of any size: only C++ holds it, as a tensor that was exported through DLPack."""
    test.card.take(size)
    assert test.findings() == [("held by C++", size, "test_a.py:3 in test_a")]
    test.begin()
    workspace = test.card.take(WORKSPACE)
    test.card.asked = lambda: test.card.give_back(workspace)
    test.card.take(WORKSPACE)
    assert test.findings() == [
        ("library workspace", WORKSPACE, "test_a.py:3 in test_a"),
        ("held by C++", WORKSPACE, "test_a.py:3 in test_a"),
    ]


TREES = [("/opt/venv/site-packages/torch/_inductor/cudagraph_trees.py", 1370, "CUDAGraphNode._record"), *TEST]


def test_what_compiled_graphs_need_is_the_compilers(test: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the stack of a capture, or by the pool, where nothing else holds it; the rest is judged."""
    test.card.take(512, TREES)
    in_pool = test.card.take(2 * MIB)
    test.card.take(4 * KIB)
    test.card.pools[in_pool] = (7, 0)
    monkeypatch.setattr(holders, "compiler_pools", lambda: {(7, 0)})
    monkeypatch.setattr(retained_analysis, "compiler_pools", lambda: {(7, 0)})
    test.tracker.read(test.card)
    cache, leak = test.check.judge(test.subject, Severity.FAIL)
    assert (cache.verdict.value, cache.severity.value, cache.bytes) == ("compiler cache", "note", 2 * MIB + 512)
    assert cache.holder == "module torch._inductor.cudagraph_trees"
    assert "   compiler cache: a cache of torch.compile holds it until torch.compiler.reset()" in details(cache)
    assert (leak.verdict.value, leak.bytes) == ("held by C++", 4 * KIB)


def test_workspaces_of_earlier_tests_do_not_count(test: Judged) -> None:
    """A block of the same size that no library gives back is found all the same."""
    earlier = test.card.take(WORKSPACE)
    test.attributions.begin()
    test.begin()
    test.card.asked = lambda: test.card.give_back(earlier)
    test.card.take(WORKSPACE)
    assert test.findings() == [("held by C++", WORKSPACE, "test_a.py:3 in test_a")]
    assert test.subject.phases.whole is not None
    (whole,) = test.tracker.close(test.subject.phases.whole)
    assert (whole.retained, whole.blocks) == (WORKSPACE, 1)


def test_libraries_are_not_asked_while_a_graph_lives(test: Judged) -> None:
    """It may use their workspaces in its replays. What may be one is then not attributed, all else is judged."""
    test.card.take(WORKSPACE)
    test.card.take(4 * KIB)
    test.card.asked = lambda: pytest.fail("asked")
    test.card.pool = (0, 1)
    test.tracker.read(test.card)
    doubtful, leak = test.check.judge(test.subject, Severity.FAIL)
    assert (doubtful.verdict.value, doubtful.severity.value, doubtful.bytes) == ("unattributed", "note", WORKSPACE)
    assert details(doubtful)[-1] == (
        "   note: it may be a library workspace: workspaces are not released while a CUDA graph is live"
    )
    assert (leak.verdict.value, leak.bytes) == ("held by C++", 4 * KIB)
    assert test.subject.unjudged == {Kind.LEAK}


def test_workspaces_do_not_count_where_leaks_are_not_looked_for(test: Judged) -> None:
    def counted() -> tuple[int | None, int | None]:
        test.tracker.read(test.card)
        test.check.exclude_workspaces(test.subject)
        assert test.subject.phases.whole is not None
        (whole,) = test.tracker.peek(test.subject.phases.whole)
        return whole.retained, whole.blocks

    test.attributions.begin()
    workspace = test.card.take(WORKSPACE)
    test.card.asked = lambda: test.card.give_back(workspace)
    assert counted() == (0, 0)
    assert test.attributions.border("test_a.py") == []
    test.card.asked = lambda: pytest.fail("asked")
    test.card.take(4 * KIB)
    test.card.take(WORKSPACE)
    assert counted() == (4 * KIB + WORKSPACE, 2)


class TestDroppedEvents:
    """A test whose history has no room for its first events: the counters by address show what they allocated."""

    @pytest.fixture
    def test(self, monkeypatch: pytest.MonkeyPatch) -> Judged:
        monkeypatch.setattr(retained_analysis, "collect_garbage", lambda: None)
        card = Card()
        card.take(5 * KIB)
        card.take(WORKSPACE)
        test = Judged(card)
        test.attributions.begin()
        card.events.clear()
        card.room = 6
        return test

    @staticmethod
    def work(card: Card) -> None:
        """So many events that no other one is left."""
        for _ in range(4):
            card.free(card.take(MIB))

    def test_a_workspace_is_a_librarys(self, test: Judged) -> None:
        workspace = test.card.take(WORKSPACE)
        test.card.asked = lambda: test.card.give_back(workspace)
        self.work(test.card)
        assert test.findings() == [("library workspace", WORKSPACE, "test_a.py:3 in test_a")]
        assert test.subject.phases.whole is not None
        (whole,) = test.tracker.close(test.subject.phases.whole)
        assert (whole.retained, whole.blocks) == (0, 0)
        assert test.attributions.border("test_a.py") == []

    def test_a_leak_is_the_tests(self, test: Judged) -> None:
        workspace = test.card.take(WORKSPACE)
        test.card.asked = lambda: test.card.give_back(workspace)
        test.card.take(4 * KIB)
        self.work(test.card)
        test.card.take(2 * KIB)
        found = [("library workspace", WORKSPACE, "test_a.py:3 in test_a")]
        assert test.findings() == [*found, ("held by C++", 6 * KIB, "test_a.py:3 in test_a")]
        assert test.attributions.border("test_a.py") == []

    def test_what_does_not_add_up_has_no_owner(self, test: Judged) -> None:
        """A block of somebody went: of the others one may have taken its place before."""
        test.card.take(4 * KIB)
        test.card.free(next(iter(test.card.live)))
        self.work(test.card)
        test.card.take(2 * KIB)
        assert test.findings() == [("held by C++", 2 * KIB, "test_a.py:3 in test_a")]
        assert [finding.bytes for finding in test.attributions.border("test_a.py")] == [4 * KIB]


@pytest.mark.parametrize("size", [WORKSPACE, 3 * MIB])
def test_what_was_asked_for_by_hand_is_no_workspace(test: Judged, size: int) -> None:
    """Of any size."""
    test.card.take(size, [("/opt/venv/site-packages/torch/cuda/memory.py", 100, "caching_allocator_alloc"), *TEST])
    assert test.findings() == [("raw allocation", size, "test_a.py:3 in test_a")]


@pytest.mark.parametrize(
    ("frames", "found"), [(TEST, [("cycle", 512, "test_a.py:3 in test_a"), LEAK]), (THREAD, [LEAK]), ([], [LEAK])]
)
def test_what_a_collection_frees(
    test: Judged, monkeypatch: pytest.MonkeyPatch, frames: Frames, found: list[tuple[str, int, str]]
) -> None:
    test.card.take(4 * KIB)
    garbage = test.card.take(512, frames)
    monkeypatch.setattr(retained_analysis, "collect_garbage", lambda: test.card.free(garbage))
    assert test.findings() == found


OTHER = [("/project/test_a.py", 5, "test_a"), *TEST[1:]]


def test_each_step_is_shown_with_what_it_freed(test: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    traced, pending, garbage = test.card.take(2 * MIB), test.card.take(512, OTHER), test.card.take(8 * MIB, OTHER)
    test.card.take(4 * KIB)
    test.subject.release_frames = lambda: test.card.free(traced)
    test.card.waited = lambda: test.card.free(pending)
    monkeypatch.setattr(retained_analysis, "collect_garbage", lambda: test.card.free(garbage))
    test.tracker.read(test.card)
    traceback, waited, cycle, leak = test.check.judge(test.subject, Severity.FAIL)
    assert text(waited).splitlines() == [
        "cudamem: 512 B retained, then freed by: waiting for the device (1 block, cuda:0)",
        "   512 B  allocated  test_a.py:5 in test_a <- .venv/bin/pytest:8 in <module>",
        "   freed after device synchronization; not a leak",
    ]
    told = FINDING.write(waited)
    assert {name: told[name] for name in ("kind", "verdict", "severity", "bytes", "allocated", "details")} == {
        "kind": "leak",
        "verdict": "unattributed",
        "severity": "note",
        "bytes": 512,
        "allocated": "test_a.py:5 in test_a",
        "details": text(waited).splitlines()[1:],
    }
    assert (traceback.verdict.value, traceback.bytes, details(traceback)[0]) == (
        "traceback",
        2 * MIB,
        "   2.0 MiB  allocated  test_a.py:3 in test_a <- .venv/bin/pytest:8 in <module>",
    )
    assert (cycle.verdict.value, cycle.bytes, details(cycle)[0]) == (
        "cycle",
        8 * MIB,
        "   8.0 MiB  allocated  test_a.py:5 in test_a <- .venv/bin/pytest:8 in <module>",
    )
    assert (leak.verdict.value, leak.bytes) == ("held by C++", 4 * KIB)


def test_nothing_is_collected_while_a_stream_captures(test: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    garbage = test.card.take(4 * KIB)
    monkeypatch.setattr(retained_analysis, "collect_garbage", guards.collect_garbage)
    monkeypatch.setattr(guards, "capturing", lambda: True)
    monkeypatch.setattr(guards.Original, "collect", lambda generation: test.card.free(garbage))
    assert test.findings() == [LEAK]


def test_garbage_of_earlier_tests_is_not_this_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card()
    earlier = card.take(MIB)
    test = Judged(card)
    monkeypatch.setattr(retained_analysis, "collect_garbage", lambda: card.free(earlier))
    card.take(2 * MIB, TEST)
    assert test.findings() == [("held by C++", 2 * MIB, "test_a.py:3 in test_a")]


def test_a_test_that_runs_in_a_thread_is_judged_as_any(test: Judged) -> None:
    test.card.take(4 * KIB)
    workspace = test.card.take(3 * MIB, [*TEST, *THREAD[1:]])
    test.card.asked = lambda: test.card.give_back(workspace)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(test.findings()))
    thread.start()
    thread.join()
    assert found == [("library workspace", 3 * MIB, "test_a.py:3 in test_a"), LEAK]


def test_what_autograd_allocates_is_placed_by_the_line_before(test: Judged) -> None:
    test.card.take(512)
    backward = test.card.take(MIB, [])
    test.card.free(next(iter(test.card.live)))
    test.tracker.read(test.card)
    (finding,) = test.check.judge(test.subject, Severity.FAIL)
    assert backward in test.card.live
    assert text(finding).splitlines()[2] == (
        "      allocated  by one of torch's threads, as in backward (no Python stack), after test_a.py:3 in test_a"
    )
    assert finding.allocated == "(no Python stack)"


FIXTURE = [("/project/test_a.py", 9, "model"), ("/project/.venv/bin/pytest", 8, "<module>")]
FIXTURE_LEAK = ("held by C++", MIB, "test_a.py:9 in model")


class Wider(Judged):
    """A wider fixture on a card, set up in one test and ended in another. A history lasts one test."""

    def __init__(self) -> None:
        super().__init__(Card())
        self.running = self._test()
        self.fixture = Fixture(Owner("fixture 'model'"))

    def _test(self) -> Any:
        running = SimpleNamespace(phases=self.subject.phases, foreign=[])
        self.subject.fixtures = running.foreign
        return running

    def next_test(self) -> None:
        self.card.events.clear()
        self.begin()
        self.running = self._test()

    @contextmanager
    def setup(self, fixture: Fixture | None = None) -> Iterator[None]:
        fixture = self.fixture if fixture is None else fixture
        with self.teardown(fixture):
            yield
        self.check.made(fixture)

    @contextmanager
    def teardown(self, fixture: Fixture | None = None) -> Iterator[None]:
        span = self.tracker.open("of the fixture", exclusive=True)
        yield
        (fixture or self.fixture).measured(self.running, self.tracker.close(span))

    def left(self) -> list[tuple[str, int | None, str | None]]:
        self.tracker.read(self.card)
        found = self.check.judge(self.fixture.subject, Severity.FAIL)
        return [(finding.verdict.value, finding.bytes, finding.allocated) for finding in found]


@pytest.fixture
def wider(monkeypatch: pytest.MonkeyPatch) -> Wider:
    monkeypatch.setattr(retained_analysis, "collect_garbage", lambda: None)
    return Wider()


def test_a_fixture_that_gives_all_back_is_not_looked_at(wider: Wider, monkeypatch: pytest.MonkeyPatch) -> None:
    with wider.setup():
        taken = wider.card.take(MIB, FIXTURE)
    wider.next_test()
    with wider.teardown():
        wider.card.free(taken)
    monkeypatch.setattr(Card, "capture", lambda self: pytest.fail("looked at"))
    assert wider.left() == []


def test_what_a_fixture_leaves_on_a_card(wider: Wider) -> None:
    with wider.setup():
        wider.card.take(MIB, FIXTURE)
        freed = wider.card.take(2 * MIB, FIXTURE)
    wider.next_test()
    own = wider.card.take(4 * KIB)
    with wider.teardown():
        wider.card.free(freed)
        wider.card.take(512, FIXTURE)
    assert wider.left() == [("held by C++", MIB + 512, "test_a.py:9 in model")]
    assert wider.findings() == [LEAK], "the test in which it ended keeps its own"
    wider.card.free(own)
    wider.next_test()
    assert wider.findings() == []


def test_a_fixture_that_begins_and_ends_in_one_test(wider: Wider) -> None:
    before = wider.card.take(2 * MIB)
    with wider.setup():
        wider.card.take(MIB, FIXTURE)
    wider.card.take(4 * KIB)
    wider.card.free(before)
    with wider.teardown():
        pass
    assert wider.left() == [FIXTURE_LEAK]
    assert wider.findings() == [LEAK]


def test_a_fixture_inside_the_setup_of_another_keeps_its_own(wider: Wider) -> None:
    inner = Fixture(Owner("fixture 'inner'"))
    with wider.setup():
        wider.card.take(MIB, FIXTURE)
        with wider.setup(inner):
            wider.card.take(3 * MIB)
    assert wider.left() == [FIXTURE_LEAK]
    wider.next_test()
    assert wider.left() == [FIXTURE_LEAK]


def test_a_block_in_the_place_of_a_fixtures_is_not_the_fixtures(wider: Wider) -> None:
    with wider.setup():
        taken = wider.card.take(MIB, FIXTURE)
    wider.next_test()
    wider.card.free(taken)  # by the test: the counters no longer tell that the fixture is clean
    wider.card.events.append({**wider.card.events[-1], "action": "alloc"})
    wider.card.live[taken] = MIB
    wider.card.allocate(MIB)
    assert wider.left() == []


def test_a_workspace_of_a_fixture_is_no_leak_of_it(wider: Wider) -> None:
    with wider.setup():
        libraries = [wider.card.take(size, FIXTURE) for size in (WORKSPACE, 3 * MIB)]
        wider.card.take(MIB, FIXTURE)
    wider.next_test()
    wider.card.asked = lambda: wider.card.give_back(*libraries)
    with wider.teardown():
        pass
    assert wider.left() == [("library workspace", WORKSPACE + 3 * MIB, "test_a.py:9 in model"), FIXTURE_LEAK]


def test_a_cycle_of_a_fixture_on_a_card(wider: Wider, monkeypatch: pytest.MonkeyPatch) -> None:
    with wider.setup():
        garbage = wider.card.take(MIB, FIXTURE)
    wider.next_test()
    with wider.teardown():
        pass
    monkeypatch.setattr(retained_analysis, "collect_garbage", lambda: wider.card.free(garbage))
    assert wider.left() == [("cycle", MIB, "test_a.py:9 in model")]


def test_fixture_memory_that_a_failed_test_held_is_the_fixtures(wider: Wider) -> None:
    with wider.setup():
        held = wider.card.take(MIB, FIXTURE)
    wider.next_test()
    own = wider.card.take(4 * KIB)
    with wider.teardown():
        pass

    def release() -> None:
        wider.card.free(held)
        wider.card.free(own)

    wider.subject.release_frames, wider.subject.over = release, [wider.fixture]
    assert wider.findings() == [("traceback", 4 * KIB, "test_a.py:3 in test_a")]
    assert wider.subject.phases.whole is not None
    (whole,) = wider.tracker.close(wider.subject.phases.whole)
    assert (whole.retained, whole.blocks, whole.peak_growth) == (0, 0, 4 * KIB)
    assert whole.notes == ("fixture 'model' changed cuda:0 by -1.0 MiB, not counted here",)
    (freed,) = wider.fixture.freed
    assert (freed.verdict.value, freed.bytes, freed.allocated) == ("traceback", MIB, "test_a.py:9 in model")
