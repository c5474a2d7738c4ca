"""Stacks for the history of cards: those of torch, frame for frame, and nothing kept that no record has."""

from __future__ import annotations

import ctypes
import subprocess
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from pathlib import Path
from textwrap import dedent
from threading import Thread
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing import torch_api
from cudamem_testing.guards import CollectorPaused
from cudamem_testing.recorders import card_recorder
from cudamem_testing.recorders.build import Library, compile_library
from cudamem_testing.recorders.capture import GRAD_MODE
from cudamem_testing.recorders.card_recorder import CardLibrary, CardStacks
from cudamem_testing.recorders.host import PEAK_RESET, HostRecorder
from cudamem_testing.recorders.layout import FramesUnreadable
from cudamem_testing.recorders.native import NativeRecorder
from suites import forked

gather = partial(torch._C._profiler.gather_traceback, python=True, script=False, cpp=False)
symbolize = torch._C._profiler.symbolize_tracebacks
Frames = list[dict[str, Any]]


@pytest.fixture(scope="module")
def library() -> CardLibrary:
    found = CardLibrary.load()
    assert found is not None
    return found


@pytest.fixture
def stacks(library: CardLibrary) -> Iterator[CardStacks]:
    """Switched on, with no stack kept."""
    found = library.stacks()
    assert found is not None
    if found.trim():
        pytest.skip("a session that measures this run reads the stacks of a card")
    found.start()
    yield found
    found.stop()
    found.trim()


def both(stacks: CardStacks) -> tuple[Frames, Frames]:
    """The frames of one place by torch and by us."""
    records = []
    for switch in (stacks.stop, stacks.start):
        switch()
        records.append(gather())
    torchs, ours = symbolize(records)
    return torchs, ours


def below(depth: int, call: Callable[[], Any]) -> Any:
    return call() if depth == 0 else below(depth - 1, call)


def through_a_generator(call: Callable[[], Any]) -> Any:
    return next(call() for _ in (0,))


def through_c(call: Callable[[], Any]) -> Any:
    return reduce(lambda found, _: call(), (0, 0), None)


def through_a_class_body(call: Callable[[], Any]) -> Any:
    class Body:
        found = call()

    return Body.found


def through_a_property(call: Callable[[], Any]) -> Any:
    class Holder:
        found = property(lambda self: call())

    return Holder().found


def through_exec(call: Callable[[], Any]) -> Any:
    space = {"call": call}
    exec(compile("def made():\n    return call()\nfound = made()", "<made>", "exec"), space)
    return space["found"]


def through_a_hook(call: Callable[[], Any]) -> Any:
    """Called by autograd in this thread."""
    found = []
    with torch.enable_grad():
        product = torch.ones(2, requires_grad=True) * 2
        product.register_hook(lambda gradient: found.append(call()))
        product.sum().backward()
    return found[0]


def through_a_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def directly(call: Callable[[], Any]) -> Any:
    return call()


WAYS = (
    directly,
    through_a_generator,
    through_c,
    through_a_class_body,
    through_a_property,
    through_exec,
    through_a_hook,
    through_a_thread,
)


@pytest.mark.parametrize("way", WAYS)
def test_frames_are_those_of_torch(stacks: CardStacks, way: Callable[[Callable[[], Any]], Any]) -> None:
    torchs, ours = way(partial(both, stacks))
    assert stacks.kept() == 1
    places = [(frame["filename"], frame["name"]) for frame in torchs]
    assert (__file__, "both") in places
    assert [(frame["filename"], frame["name"]) for frame in ours] == places
    lines = [[frame["line"] for frame in frames if frame["name"] != "both"] for frames in (torchs, ours)]
    assert lines[0] == lines[1]


@given(ways=st.lists(st.sampled_from(WAYS), max_size=5), depth=st.integers(0, 40))
def test_frames_are_those_of_torch_through_any_way(
    library: CardLibrary, ways: list[Callable[[Callable[[], Any]], Any]], depth: int
) -> None:
    stacks = library.stacks()
    assert stacks is not None
    call = partial(below, depth, partial(both, stacks))
    for way in ways:
        call = partial(way, call)
    torchs, ours = call()
    stacks.stop()
    assert [(f["filename"], f["name"]) for f in ours] == [(f["filename"], f["name"]) for f in torchs]


def test_stacks_end_before_the_harness(library: CardLibrary) -> None:
    def harness(call: Callable[[], Any]) -> Any:
        return call()

    stacks = library.stacks([directly.__code__, harness.__code__])
    assert stacks is not None
    stacks.start()
    record = harness(partial(below, 3, gather))
    directly(stacks.stop)
    outside = gather()
    frames, rest = symbolize([record, outside])
    assert [frame["name"] for frame in frames] == 4 * ["below"]
    assert rest[0]["name"] == "test_stacks_end_before_the_harness"


def test_the_harness_itself_has_an_empty_stack(library: CardLibrary) -> None:
    stacks = library.stacks([test_the_harness_itself_has_an_empty_stack.__code__])
    assert stacks is not None
    stacks.start()
    first, record, second = directly(gather), gather(), directly(gather)
    kept = stacks.trim()  # those that records have
    stacks.stop()
    assert [[frame["name"] for frame in frames] for frames in symbolize([first, record, second])] == [
        ["directly"],
        [],
        ["directly"],
    ]
    assert kept == 1  # both are the same up to the harness


def test_a_deep_stack_has_its_innermost_frames(stacks: CardStacks) -> None:
    torchs, ours = below(300, partial(both, stacks))
    assert stacks.kept() == 1
    assert len(torchs) > 300
    assert [(f["filename"], f["name"]) for f in ours] == [(f["filename"], f["name"]) for f in torchs[:256]]


@pytest.fixture(scope="module")
def gatherer(tmp_path_factory: pytest.TempPathFactory) -> ctypes.PyDLL:
    """gatherer.cpp, loaded; its calls keep the GIL."""
    target = tmp_path_factory.mktemp("gatherer") / "gatherer.so"
    sources, linked = ("gatherer.cpp",), ("c10", "torch_cpu")
    compile_library(Library("gatherer", "a gatherer", sources, "c++17", linked, Path(__file__).parent), target)
    return ctypes.PyDLL(str(target))


def test_a_new_stack_does_not_wait_for_the_gil(stacks: CardStacks, gatherer: ctypes.PyDLL) -> None:
    # The main thread keeps the GIL until the other one has its record.
    without_gil = ctypes.CDLL(gatherer._name)
    for kept in (1, 1):  # a stack that was never seen, and one that is known
        thread = Thread(target=without_gil.gather_when_held)
        thread.start()
        in_time = gatherer.hold(5)
        thread.join()
        assert in_time
        assert stacks.kept() == kept
    gatherer.drop()
    assert stacks.trim() == 0


def test_cpp_threads_have_an_empty_stack_without_the_gil(stacks: CardStacks, gatherer: ctypes.PyDLL) -> None:
    assert gatherer.gather_in_a_cpp_thread(5)
    assert stacks.kept() == 0
    gatherer.drop()


def test_records_share_one_stack_until_the_last_is_dropped(stacks: CardStacks) -> None:
    records = [gather() for _ in range(3)]
    assert stacks.kept() == 1
    for left in (2, 1, 0):
        assert stacks.trim() == 1
        assert len(symbolize(records)) == left + 1
        records.pop()
    assert stacks.trim() == 0


def test_records_of_two_stacks_keep_their_order(stacks: CardStacks) -> None:
    first, second = gather(), gather()
    found = symbolize([second, first, second])
    assert [frames[0]["line"] for frames in found] == 3 * [found[0][0]["line"]]
    third = gather()
    found = [frames[0]["line"] for frames in symbolize([third, first, second, third])]
    assert [line - found[1] for line in found] == [3, 0, 0, 3]


def test_only_our_snapshots_show_grad_mode(stacks: CardStacks) -> None:
    records = []
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            records.append(directly(gather))
    assert stacks.kept() == 1
    with stacks.with_grad_mode():
        told = symbolize(records)
    untold = symbolize(records)
    assert [frames[-1] for frames in told] == [
        {"filename": GRAD_MODE, "name": mode, "line": 0} for mode in ("on", "off", "off")
    ]
    assert [frames[:-1] for frames in told] == untold
    assert GRAD_MODE not in {frame["filename"] for frames in untold for frame in frames}


def test_beside_records_of_torchs_own(stacks: CardStacks) -> None:
    records = []
    for switch in (stacks.stop, stacks.start, stacks.stop, stacks.start):
        switch()
        records.append(gather())
    places = [[(f["filename"], f["name"]) for f in frames] for frames in symbolize(records)]
    assert places == [places[0]] * 4


def test_code_lives_as_long_as_a_record_of_it(stacks: CardStacks) -> None:
    space: dict[str, Any] = {"gather": gather}
    exec(compile("def gone():\n    return gather()", "<gone>", "exec"), space)
    code = weakref.ref(space["gone"].__code__)
    record = space["gone"]()
    space.clear()
    (frames,) = symbolize([record])
    assert (frames[0]["filename"], frames[0]["line"], frames[0]["name"]) == ("<gone>", 2, "gone")
    assert stacks.trim() == 1
    assert code() is not None  # the function is gone, the stack has it
    del record
    assert stacks.trim() == 0
    assert code() is None


def test_threads_count_each_of_their_records(stacks: CardStacks) -> None:
    def many() -> list[Any]:
        return [gather() for _ in range(200)]

    with ThreadPoolExecutor(4) as pool:
        records = [record for found in [*pool.map(lambda _: many(), range(20))] for record in found]
    assert len({str(frames) for frames in symbolize(records)}) == 1
    records.clear()
    assert stacks.trim() == 0


def test_switched_off_it_is_torch(stacks: CardStacks) -> None:
    stacks.stop()
    record = gather()
    assert stacks.kept() == 0
    assert symbolize([record])[0][0]["name"] == "test_switched_off_it_is_torch"


def test_unused_stacks_are_discarded_above_a_limit(library: CardLibrary, stacks: CardStacks) -> None:
    held = gather()
    for depth in range(5):
        below(depth, gather)
    assert stacks.kept() == 6
    stacks.start()
    assert stacks.kept() == 6
    for most, kept in ((7, 6), (6, 1)):
        others = library.stacks(most=most)
        assert others is not None
        others.start()
        assert stacks.kept() == kept
    assert symbolize([held])[0][0]["name"] == "test_unused_stacks_are_discarded_above_a_limit"


def test_a_record_is_no_garbage_to_collect(stacks: CardStacks) -> None:
    import gc

    record = gather()
    with CollectorPaused():
        gc.collect()
        assert symbolize([record])[0][0]["name"] == "test_a_record_is_no_garbage_to_collect"


def test_without_the_layout_of_frames_there_are_no_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise FramesUnreadable("not here")

    monkeypatch.setattr(card_recorder, "this_python", refuse)
    library, has_stacks = card_recorder._of_this_process.__wrapped__()
    assert CardLibrary(library, has_stacks).stacks() is None


@pytest.mark.subprocess
def test_without_cuda_pinned_memory_never_counts_as_unchanged() -> None:
    """In a process of its own: a card that was simulated in this one has left its allocator of pinned memory."""
    if torch.backends.cuda.is_built():
        pytest.skip("this torch has CUDA")
    code = """
        from cudamem_testing.recorders.card_recorder import CardLibrary

        watch = CardLibrary.load().host_watch()
        print([watch.is_still() for _ in range(2)])
    """
    command = [forked.python(), "-c", dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[0, 0]\n"


@pytest.mark.gpu
def test_pinned_memory_is_still_until_it_changes(library: CardLibrary) -> None:
    torch.cuda.init()
    is_still = library.host_watch().is_still
    recorder = HostRecorder()
    is_still()
    assert [is_still(), is_still()] == [1, 1]
    pinned = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
    assert [is_still(), is_still()] == [0, 1]
    recorder.read_and_reset_peaks()
    before = recorder.read_and_reset_peaks()
    is_still()
    del pinned
    changed = recorder.read_and_reset_peaks() != before  # torch counts it as free when it comes to it
    assert [is_still(), is_still()] == [not changed, 1]
    recorder.close()


@pytest.mark.gpu
def test_pinned_memory_is_read_natively_until_it_changes(library: CardLibrary) -> None:
    torch.cuda.init()
    recorder = HostRecorder(library.host_watch())
    recorder.read_and_reset_peaks()
    read = recorder.read_and_reset_peaks()
    boundaries = NativeRecorder.load().boundaries([recorder.source], ["host", "host reserved"])
    assert [boundaries.read(0), boundaries.read(1)] == [True, True]
    assert boundaries.counters() == ((read,), (read,))
    getattr(torch_api.bindings(), PEAK_RESET)()
    assert boundaries.read(2) is False
    assert recorder.source is None
    recorder.read_and_reset_peaks()
    assert boundaries.read(0) is True
    pinned = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
    assert boundaries.read(1) is False
    assert boundaries.counters() == ((read,), (None,))
    del pinned
    recorder.close()


@pytest.mark.gpu
def test_stacks_of_blocks_on_a_card_are_those_of_torch(stacks: CardStacks) -> None:
    def recorded() -> Frames:
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=1000)
        try:
            block = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
            return frames_at(block.data_ptr())
        finally:
            torch.cuda.memory._record_memory_history(None)

    def frames_at(address: int) -> Frames:
        found = [
            block["frames"]
            for segment in torch.cuda.memory._snapshot()["segments"]
            for block in segment["blocks"]
            if block["address"] == address
        ]
        return found[0]

    found = []
    for switch in (stacks.stop, stacks.start):
        switch()
        found.append(below(20, recorded))
    assert stacks.kept() == 1
    names = [[(frame["filename"], frame["line"], frame["name"]) for frame in frames] for frames in found]
    assert names[0] == names[1]
    assert names[0][0][2] == "recorded"
