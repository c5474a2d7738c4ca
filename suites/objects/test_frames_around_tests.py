"""Frames around a test: those of hooks are the harness', whoever wrote them; those of tests, fixtures, threads are not.

Functions with the names of pytest's stand for them here, inside a test that pytest runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import torch

from cudamem_testing.model.references import Reach
from cudamem_testing.objects.search import find_holders
from suites.heap import set_aside

Answer = tuple[Reach, str]


def ask(names: Sequence[str], address: int = 0) -> Answer:
    """Call functions of these names inside each other; from the innermost, who holds what ``holder`` made."""
    if names:
        return FRAMES[names[0]](names[1:], address)
    found = find_holders([address])[address]
    return found.reach, "" if found.path is None else found.path.root.partition(" (")[0]


def holder(names: Sequence[str], address: int) -> Answer:
    """A frame with a tensor in a local variable."""
    mine = torch.ones(3)
    return ask(names, mine.untyped_storage().data_ptr() + 0 * address)


def pytest_runtestloop(names: Sequence[str], address: int) -> Answer:
    return ask(names, address)


def pytest_pyfunc_call(names: Sequence[str], address: int) -> Answer:
    return ask(names, address)


def call_fixture_func(names: Sequence[str], address: int) -> Answer:
    return ask(names, address)


def runtest(names: Sequence[str], address: int) -> Answer:
    return ask(names, address)


def in_a_thread(names: Sequence[str], address: int) -> Answer:
    """The next frame is one of another thread, which waits while this one asks."""
    ready, done = threading.Event(), threading.Event()
    addresses: list[int] = []

    def worker() -> None:
        held = torch.ones(3)
        addresses.append(held.untyped_storage().data_ptr())
        ready.set()
        done.wait(60)

    thread = threading.Thread(target=worker, name="helper")
    thread.start()
    try:
        assert ready.wait(60)
        return ask(names, addresses[0])
    finally:
        done.set()
        thread.join()


FRAMES: dict[str, Callable[[Sequence[str], int], Answer]] = {
    one.__name__: one
    for one in (holder, pytest_runtestloop, pytest_pyfunc_call, call_fixture_func, runtest, in_a_thread)
}
LOOP, CALL, FIXTURE = "pytest_runtestloop", "pytest_pyfunc_call", "call_fixture_func"
HARNESS, USER = (Reach.HARNESS, "frame holder"), (Reach.REACHABLE, "frame holder")


@pytest.mark.parametrize(
    ("frames", "answer"),
    [
        ((LOOP, "holder", CALL), HARNESS),
        ((LOOP, "holder", FIXTURE), HARNESS),
        ((LOOP, "holder"), HARNESS),  # the test is over
        ((LOOP, CALL, "holder"), USER),
        ((LOOP, FIXTURE, "holder"), USER),
        ((LOOP, CALL, "holder", FIXTURE), USER),  # a test that asks for a fixture
        ((LOOP, "runtest", "holder"), USER),  # an item that is no function
        ((LOOP, "holder", "runtest"), HARNESS),
        ((LOOP, "runtest", "holder", CALL), HARNESS),
        (("holder",), USER),
        (("holder", LOOP, CALL), USER),  # a test that runs pytest
        ((LOOP, "in_a_thread"), (Reach.REACHABLE, "thread 'helper' > frame worker")),
    ],
    ids=lambda given: "-".join(given) if isinstance(given[0], str) else "",
)
def test_whose_a_frame_is(frames: tuple[str, ...], answer: Answer) -> None:
    with set_aside():  # no older object is a holder here
        assert ask(frames) == answer
