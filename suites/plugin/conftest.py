"""The two ways of running an inner pytest, as fixtures."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from suites.plugin.inner import Files, Inner
from suites.plugin.inner import run_inner as in_process
from suites.plugin.inner import run_outer as in_subprocess


@pytest.fixture
def one_thread() -> None:
    """The environment of baselines names the number of threads."""
    torch.set_num_threads(1)


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """For tests whose inner run leaks on purpose: what its modules keep must not be there when the next run starts."""
    yield
    gc.collect()


@pytest.fixture
def retaining() -> Iterator[list[Inner]]:
    """Runs that kept memory. It goes with pytester, after which this ends: nobody after us shall find it."""
    runs: list[Inner] = []
    yield runs
    if runs:
        gc.collect()


@pytest.fixture
def run_inner(retaining: list[Inner], pytester: pytest.Pytester) -> Callable[..., Inner]:
    """Run pytest in this process over some files: ``run_inner(files, *args) -> Inner``."""

    def run(files: Files, *args: str, **options: Sequence[str]) -> Inner:
        inner = in_process(pytester, files, *args, **options)
        if inner.retains:
            retaining.append(inner)
        return inner

    return run


@pytest.fixture
def run_outer(pytester: pytest.Pytester) -> Callable[..., Inner]:
    """Run pytest in another process over some files: ``run_outer(files, *args) -> Inner``."""
    return lambda files, *args, **options: in_subprocess(pytester, files, *args, **options)
