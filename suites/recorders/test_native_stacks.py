"""Python stacks of the CPU recorder: the right line from everywhere, unknown where there is none, and bounded."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Thread
from types import CodeType, FunctionType
from typing import Any

import pytest
import torch

from cudamem_testing.recorders import layout, native_python, native_records
from cudamem_testing.recorders.cpu import CpuRecorder
from cudamem_testing.recorders.layout import FramesUnreadable
from cudamem_testing.recorders.native import DEPTH, NativeRecorder
from cudamem_testing.recorders.native_records import FrameRecord, StackCounts, position_of
from suites.recorders.in_place import in_place

HERE = Path(__file__)
LINES = HERE.read_text().splitlines()


@pytest.fixture
def stacks(native: NativeRecorder) -> NativeRecorder:
    """The recorder with stacks on."""
    assert native.no_stacks is None
    native.set_recording(stacks=True, events=False)
    return native


def block(size: int) -> torch.Tensor:
    """A tensor of exactly `size` bytes."""
    return torch.empty(size, dtype=torch.uint8)


def stack_of(native: NativeRecorder, tensor: torch.Tensor) -> tuple[FrameRecord, ...]:
    pointer = tensor.untyped_storage().data_ptr()
    (found,) = (b for b in native.scan() if b.pointer == pointer)
    return native.frames(found.stack)


def source(frame: FrameRecord) -> str:
    """The text that the frame points at."""
    assert frame.filename == str(HERE)
    assert frame.line is not None
    if frame.line == frame.end_line:
        return LINES[frame.line - 1].encode()[frame.column : frame.end_column].decode()
    return LINES[frame.line - 1].strip()


def in_this_file(frames: tuple[FrameRecord, ...]) -> list[tuple[str, str]]:
    return [(frame.qualname.split(".")[-1], source(frame)) for frame in frames if frame.filename == str(HERE)]


def pointed(expression: str, line: str) -> str:
    """What a frame points at: an expression, or before Python 3.11, which keeps no columns, its line."""
    return expression if sys.version_info >= (3, 11) else line


ALLOCATION = pointed("torch.empty(size, dtype=torch.uint8)", "return torch.empty(size, dtype=torch.uint8)")


class Made:
    """Allocates when it is made."""

    def __init__(self) -> None:
        self.block = block(8)


class Scale(torch.autograd.Function):
    """Allocates in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.mul(2)


def test_names_every_caller_as_python_does(stacks: NativeRecorder) -> None:
    def inner() -> tuple[torch.Tensor, list[tuple[CodeType, int]]]:
        kept = block(10)
        frame, chain = sys._getframe().f_back, []
        while frame is not None and len(chain) < DEPTH - 2:
            chain.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        return kept, chain

    kept, chain = next(iter([inner() for _ in range(1)]))
    (found,) = (b for b in stacks.scan() if b.pointer == kept.data_ptr())
    noted = stacks.stack(found.stack)
    assert [frame.code for frame in noted[:2]] == [block.__code__, inner.__code__]
    assert len(noted) == len(chain) + 2
    assert [(code, at) for code, at in noted[2:]] == chain
    assert in_this_file(stacks.frames(found.stack))[:3] == [
        ("block", ALLOCATION),
        ("inner", pointed("block(10)", "kept = block(10)")),
        (
            "<listcomp>" if sys.version_info < (3, 12) else "test_names_every_caller_as_python_does",
            pointed("inner()", "kept, chain = next(iter([inner() for _ in range(1)]))"),
        ),
    ]


def test_objects_made_at_one_place_have_one_stack(stacks: NativeRecorder) -> None:
    """From the second on, Python 3.13 puts a frame of its own below ``__init__``."""
    found = set()
    for _ in range(20):
        made = Made()
        found.add(stack_of(stacks, made.block))
    (frames,) = found
    names = [frame.qualname for frame in frames[:3]]
    test = "test_objects_made_at_one_place_have_one_stack"
    assert names == ["block", pointed("Made.__init__", "__init__"), test]
    assert {frame.filename for frame in frames[:3]} == {str(HERE)}


def test_stacks_of_generators_callbacks_and_methods(stacks: NativeRecorder) -> None:
    def generate() -> Iterator[torch.Tensor]:
        yield block(20)

    class Owner:
        def __lt__(self, other: Owner) -> bool:
            kept.append(block(30))
            return True

    kept = list(islice(generate(), 1))
    sorted([Owner(), Owner()])
    kept += map(partial(block), [40])
    first, second, third = (in_this_file(stack_of(stacks, tensor)) for tensor in kept)
    assert first[1:3] == [
        ("generate", pointed("block(20)", "yield block(20)")),
        (
            "test_stacks_of_generators_callbacks_and_methods",
            pointed("list(islice(generate(), 1))", "kept = list(islice(generate(), 1))"),
        ),
    ]
    assert second[1:3] == [
        ("__lt__", pointed("block(30)", "kept.append(block(30))")),
        ("test_stacks_of_generators_callbacks_and_methods", "sorted([Owner(), Owner()])"),
    ]
    assert third[1:2] == [("test_stacks_of_generators_callbacks_and_methods", "kept += map(partial(block), [40])")]


def test_stacks_inside_autograd(stacks: NativeRecorder) -> None:
    x = torch.ones(1000, requires_grad=True)
    y = Scale.apply(x)
    hooked: list[torch.Tensor] = []
    y.register_hook(lambda gradient: hooked.append(gradient.add(1)))
    y.sum().backward()
    assert x.grad is not None
    name = "test_stacks_inside_autograd"
    assert in_this_file(stack_of(stacks, y))[:2] == [
        ("forward", pointed("x * 2", "return x * 2")),
        (name, pointed("Scale.apply(x)", "y = Scale.apply(x)")),
    ]
    assert in_this_file(stack_of(stacks, x.grad))[:2] == [
        ("backward", pointed("gradient.mul(2)", "return gradient.mul(2)")),
        (name, "y.sum().backward()"),
    ]
    assert in_this_file(stack_of(stacks, hooked[0]))[:2] == [
        ("<lambda>", pointed("gradient.add(1)", "y.register_hook(lambda gradient: hooked.append(gradient.add(1)))")),
        (name, "y.sum().backward()"),
    ]


def test_python_threads_have_their_own_stack_and_number(stacks: NativeRecorder) -> None:
    with ThreadPoolExecutor(1) as pool:
        kept, number = pool.submit(block, 50).result(), pool.submit(stacks.thread).result()
    (found,) = (b for b in stacks.scan() if b.pointer == kept.data_ptr())
    assert found.thread == number != stacks.thread()
    frames = stacks.frames(found.stack)
    assert in_this_file(frames) == [("block", ALLOCATION)]
    assert frames[-1].qualname == ("Thread._bootstrap" if sys.version_info >= (3, 11) else "_bootstrap")


def test_a_new_stack_does_not_wait_for_the_gil(stacks: NativeRecorder, helper: ctypes.PyDLL) -> None:
    # The main thread keeps the GIL until the other has allocated, and freed.
    without_gil = ctypes.CDLL(helper._name)
    owner = stacks.new_owner()
    stacks.set_owner(owner)

    def allocate() -> None:
        without_gil.helper_allocate_when_held(61)

    for _ in range(2):  # a stack that was never seen, and one that is known
        thread = Thread(target=allocate)
        thread.start()
        in_time = helper.helper_hold(5)
        thread.join()
        assert in_time
    first, second = stacks.scan(owner)
    assert first.size == second.size == 61
    assert first.stack == second.stack
    assert in_this_file(stacks.frames(first.stack)) == [
        ("allocate", pointed("without_gil.helper_allocate_when_held(61)", "without_gil.helper_allocate_when_held(61)"))
    ]
    helper.helper_drop()


def test_cpp_threads_are_unknown_and_never_wait_for_the_gil(stacks: NativeRecorder, helper: ctypes.PyDLL) -> None:
    # The call keeps the GIL until the C++ thread has ended: one that asked for it would never end.
    owner = stacks.new_owner()
    stacks.set_owner(owner)
    helper.helper_allocate(60, True)
    (found,) = stacks.scan(owner)
    assert (found.size, found.stack) == (60, 0)
    assert found.thread != stacks.thread()
    assert stacks.frames(0) == ()
    helper.helper_drop()
    assert stacks.scan(owner) == []


def test_ends_before_a_stop_code(stacks: NativeRecorder) -> None:
    def stop() -> torch.Tensor:
        return below()

    def below() -> torch.Tensor:
        return block(70)

    assert stacks.swap_stop_codes([test_stacks_inside_autograd.__code__, stop.__code__]) == ()
    kept = stop()
    assert in_this_file(stack_of(stacks, kept)) == [
        ("block", ALLOCATION),
        ("below", pointed("block(70)", "return block(70)")),
    ]
    codes = (test_stacks_inside_autograd.__code__, stop.__code__)
    assert stacks.swap_stop_codes([block.__code__]) == codes
    nothing_below = block(80)
    assert stack_of(stacks, nothing_below) == ()
    assert stacks.swap_stop_codes([]) == (block.__code__,)
    with pytest.raises(ValueError, match="at most 8 stop codes, not 9"):
        stacks.swap_stop_codes([block.__code__] * 9)


def test_keeps_the_innermost_frames_of_deep_stacks(stacks: NativeRecorder) -> None:
    def deep(levels: int) -> torch.Tensor:
        return deep(levels - 1) if levels else block(90)

    frames = stack_of(stacks, deep(100))
    assert len(frames) == DEPTH
    assert [frame.qualname.split(".")[-1] for frame in frames] == ["block"] + ["deep"] * (DEPTH - 1)


def test_refused_allocations_have_a_stack(stacks: NativeRecorder) -> None:
    stacks.set_limit(0)
    with pytest.raises(torch.OutOfMemoryError):
        block(100)
    stacks.set_limit(None)
    refusal = stacks.refusal()
    assert refusal is not None
    stacks.trim_stacks()
    assert in_this_file(stacks.frames(refusal.stack))[:2] == [
        ("block", ALLOCATION),
        ("test_refused_allocations_have_a_stack", "block(100)"),
    ]


def test_without_stacks_blocks_are_unknown(native: NativeRecorder) -> None:
    kept = block(110)
    assert stack_of(native, kept) == ()


def generated(number: int, name: str = "made") -> Callable[[], torch.Tensor]:
    """A function with a separate code object."""
    space: dict[str, Any] = {"torch": torch}
    exec(f"def {name}():\n    return torch.empty({number + 1}, dtype=torch.uint8)", space)
    made = space[name]
    assert isinstance(made, FunctionType)
    return made


def test_repeating_a_line_keeps_one_stack(stacks: NativeRecorder) -> None:
    stacks.trim_stacks()
    before = stacks.stack_counts()
    for _ in range(5000):
        block(1)
    assert stacks.stack_counts() == StackCounts(before.kept + 1, before.overflow)


def test_trimming_drops_unused_stacks_and_their_code(stacks: NativeRecorder) -> None:
    stacks.restart_events(100)
    gc.collect()  # tensors of earlier tests in cycles, whose stacks would go below
    stacks.trim_stacks()
    before = stacks.stack_counts().kept
    functions = [generated(i) for i in range(3)]
    codes = [weakref.ref(function.__code__) for function in functions]
    kept = functions[0]()
    functions[1]()
    stacks.set_recording(stacks=True, events=True)
    functions[2]()
    stacks.set_recording(stacks=True, events=False)
    functions.clear()
    gc.collect()
    assert [code() is None for code in codes] == [False] * 3
    assert stacks.stack_counts().kept == before + 3
    assert stacks.trim_stacks() == 1  # the second: freed, and in no event
    assert [code() is None for code in codes] == [False, True, False]
    event_stack = stacks.events().events[-1].stack
    others = NativeRecorder.load()
    assert stacks.frames(event_stack)[0].qualname == others.frames(event_stack)[0].qualname == "made"
    stacks.restart_events(100)
    assert others.trim_stacks() == 1
    assert stacks.frames(event_stack) == ()
    assert stack_of(stacks, kept)[0][:3] == ("<string>", 2, "made")
    del kept
    assert stacks.trim_stacks() == 1
    assert [code() is None for code in codes] == [True] * 3


def test_a_stack_takes_no_reference_until_the_code_would_end(stacks: NativeRecorder) -> None:
    function = generated(1)
    counts = [sys.getrefcount(function.__code__)]
    kept = function()
    counts.append(sys.getrefcount(function.__code__))
    assert counts[0] == counts[1]
    code = weakref.ref(function.__code__)
    unseen = weakref.ref((lambda: None).__code__.replace(co_name="unseen"))  # no stack names it
    assert unseen() is None
    del function
    gc.collect()
    found = code()
    assert found is not None
    ours = object()
    assert sys.getrefcount(found) == sys.getrefcount(ours) + 1  # that of the stacks
    del found, kept
    stacks.trim_stacks()
    assert code() is None


def test_the_address_of_code_that_ended_names_no_other_code(stacks: NativeRecorder) -> None:
    def addresses(kept: list[torch.Tensor]) -> set[int]:
        found = set()
        for number in range(300):
            function = generated(number, f"made_{number}")
            kept.append(function())
            found.add(id(function.__code__))
            del function
        return found

    kept: list[torch.Tensor] = []
    assert len(addresses(kept)) == 300
    names = {block.pointer: stacks.frames(block.stack)[0].qualname for block in stacks.scan() if block.stack}
    assert [names[tensor.data_ptr()] for tensor in kept] == [f"made_{number}" for number in range(300)]
    stacks.set_recording(stacks=False, events=False)
    assert len(addresses([])) < 300  # the control: an address is used again where no stack names it


@pytest.mark.slow
def test_code_that_two_recorders_name_outlives_the_first_trim(stacks: NativeRecorder, crowded: NativeRecorder) -> None:
    function = generated(7)
    code = weakref.ref(function.__code__)
    kept = [function()]
    stacks.uninstall()
    crowded.install()
    crowded.set_recording(stacks=True, events=False)
    kept.append(function())
    crowded.set_recording(stacks=False, events=False)
    crowded.uninstall()
    stacks.install()
    del function
    kept.clear()
    gc.collect()
    assert stacks.trim_stacks() >= 1
    assert code() is not None
    assert crowded.trim_stacks() >= 1
    assert code() is None


def test_new_stacks_on_many_threads_during_trims(stacks: NativeRecorder) -> None:
    stacks.restart_events(256)
    stacks.set_recording(stacks=True, events=True)

    def work(start: int) -> list[torch.Tensor]:
        return [generated(start + i)() for i in range(200) for _ in range(2)]

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(work, 1000 * i) for i in range(4)]
        while not all(future.done() for future in running):
            stacks.trim_stacks()
            gc.collect(0)
    for start, future in enumerate(running):
        for tensor in future.result()[::50]:
            frames = stack_of(stacks, tensor)
            # A trim between noting a new stack and the block that names it may make it unknown, never another one.
            assert [frame.qualname for frame in frames[:1]] in ([], ["made"])
            assert all(frame.filename != "<string>" or frame.line == 2 for frame in frames), start


def test_stacks_of_many_lines_are_found_as_fast_as_of_one(stacks: NativeRecorder) -> None:
    lines = 4000
    space: dict[str, Any] = {"empty": partial(torch.empty, 8)}
    exec("def many():\n" + "    empty()\n" * lines + "def one():\n    for _ in range(4000): empty()", space)
    took: dict[str, list[float]] = {"one": [], "many": []}
    for name in ["one", "many"] * 6:
        start = time.thread_time()
        space[name]()
        took[name].append(time.thread_time() - start)
    many, one = min(took["many"]), min(took["one"])
    assert stacks.stack_counts().kept > lines
    assert many < 2 * one, f"{many / one:.1f} times"


def test_frames_that_stacks_share_are_read_once(stacks: NativeRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reading(code: CodeType, position: int) -> FrameRecord:
        read.append(code.co_name)
        return position_of(code, position)

    monkeypatch.setattr(native_records, "position_of", reading)
    first, second = [make() for make in (generated(1), generated(2))]
    frames = stack_of(stacks, first)
    all_read = [*read]
    assert len(all_read) <= len(frames)  # pytest's own calls repeat
    read.clear()
    other = stack_of(stacks, second)
    assert other == frames  # equal text, of two functions
    assert read == ["made"]
    assert stacks.trim_stacks() == 0
    assert stack_of(stacks, second) == other
    assert read == ["made", *all_read]


def test_a_code_at_the_address_of_another_has_its_own_text(stacks: NativeRecorder) -> None:
    seen: set[int] = set()
    again = 0
    for number in range(50):
        make = generated(8, name := f"made_{number}")
        again += id(make.__code__) in seen
        seen.add(id(make.__code__))
        assert stack_of(stacks, make())[0].qualname == name
        del make
        gc.collect(0)
        stacks.trim_stacks()
    assert again > 0


def test_position_of_knows_lines_without_columns() -> None:
    frame = sys._getframe()
    record = position_of(frame.f_code, frame.f_lasti)
    assert record.line == frame.f_lineno - 1
    code = frame.f_code.replace(co_linetable=b"")
    assert position_of(code, 10_000)[:3] == (str(HERE), None, record.qualname)


def test_layout_is_found_or_refused_without_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    found = layout.find_layout()
    assert (found.code_start == -1) == (sys.version_info < (3, 11))
    with monkeypatch.context() as patch:
        patch.setattr(layout, "_callers", lambda frame: [(1, 1), (2, 2), (3, 3)])
        assert why_not() == "stacks are not recorded: the layout of this Python's frames is unknown"
    with monkeypatch.context() as patch:
        patch.setattr(sys.implementation, "name", "pypy")
        assert why_not() == "stacks are recorded with 64-bit CPython only"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "abiflags", "t")
        assert why_not() == "stacks are not recorded with free-threaded Python"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "getobjects", list, raising=False)
        assert why_not() == "stacks are not recorded with a Python that traces references"
    with monkeypatch.context() as patch:
        patch.setattr(layout.os, "open", raising(PermissionError(13, "Permission denied")))
        assert why_not() == "stacks are recorded only where /proc/self/mem can be read (Permission denied)"


def why_not() -> str:
    with pytest.raises(FramesUnreadable) as raised:
        layout.find_layout()
    return str(raised.value)


def raising(error: Exception) -> Callable[..., None]:
    def function(*arguments: object) -> None:
        raise error

    return function


def test_without_readable_frames_all_else_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_python, "this_python", raising(FramesUnreadable("not here")))
    with in_place() as recorder:
        blind = NativeRecorder(recorder._library, native_python.introduce(recorder._library))
        assert blind.no_stacks == "not here"
        monkeypatch.setattr(NativeRecorder, "load", lambda say=None: blind)
        measured = CpuRecorder(record=True).start()
        measured.wake(limited=True)
        kept = block(120)
        capture = measured.capture()
        measured.close()
        assert capture.missing == "not here"
        assert kept.data_ptr() in [found[0] for found in capture.blocks]
