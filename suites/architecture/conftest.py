"""Syntax trees stay from the first test of this folder to the last, and no collection reads them meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Generator
from pathlib import Path

import pytest

from suites.architecture import source

HERE = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Run a test of this folder without collections: what it reads is no garbage."""
    if item.path.parent != HERE:  # pytest asks every conftest.py for every test
        return (yield)
    collects = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path.parent != HERE:
            source.forget()
        if collects:
            gc.enable()
