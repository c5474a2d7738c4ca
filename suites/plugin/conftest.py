"""The two ways of running an inner pytest, as fixtures."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import pytest
import torch

from cudamem_testing.cycles.native import library
from suites.heap import set_aside
from suites.plugin.inner import Files, Inner
from suites.plugin.inner import run_inner as in_process
from suites.plugin.inner import run_outer as in_subprocess


@pytest.fixture(autouse=True)
def small_heap(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set the objects of other tests aside, unless the test requests the ``whole_heap``.

    It begins before pytester and ends after it, so it frees what an inner run leaves, and no later run meets that.
    """
    with nullcontext() if "whole_heap" in request.fixturenames else set_aside():
        yield


@pytest.fixture(scope="session", autouse=True)
def time_passes_slowly() -> None:
    """What a collection reads must not depend on the load of the machine, but in tests that are about time."""
    library().cudamem_collector_pace(0.02)


@pytest.fixture
def pace(time_passes_slowly: None) -> Iterator[Callable[[float], None]]:
    """Sets how fast time passes for the reading of garbage, until the test ends."""
    yield library().cudamem_collector_pace
    library().cudamem_collector_pace(0.02)


@pytest.fixture
def whole_heap() -> None:
    """For tests in which an older object is the holder. Garbage of other tests is freed before."""
    gc.collect()


@pytest.fixture
def collector_off() -> Iterator[None]:
    """No collection runs but those that the plugin asks for."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def one_thread() -> None:
    """The environment of baselines names the number of threads."""
    torch.set_num_threads(1)


@pytest.fixture
def run_inner(pytester: pytest.Pytester) -> Callable[..., Inner]:
    """Run pytest in this process over some files: ``run_inner(files, *args) -> Inner``."""

    def run(files: Files, *args: str, **options: Sequence[str]) -> Inner:
        return in_process(pytester, files, *args, **options)

    return run


@pytest.fixture
def run_outer(pytester: pytest.Pytester) -> Callable[..., Inner]:
    """Run pytest in another process over some files: ``run_outer(files, *args) -> Inner``."""
    return lambda files, *args, **options: in_subprocess(pytester, files, *args, **options)
