"""The CPU recorder in place for one test, and C++ for what Python cannot do."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudamem_testing.recorders.build import compile_library
from cudamem_testing.recorders.native import NativeRecorder


@pytest.fixture
def native() -> Iterator[NativeRecorder]:
    """The recorder in place, and everything off again afterwards."""
    recorder = NativeRecorder.load()
    was_installed = recorder.is_installed()
    recorder.install()
    stop_codes = recorder.swap_stop_codes([])
    owner = recorder.set_owner(0)
    yield recorder
    recorder.set_owner(owner)
    recorder.swap_stop_codes(stop_codes)
    recorder.set_limit(None)
    recorder.set_recording(stacks=False, events=False)
    recorder.restart_events(0)
    recorder.trim_stacks()
    if not was_installed:
        recorder.uninstall()


@pytest.fixture(scope="session")
def helper(tmp_path_factory: pytest.TempPathFactory) -> ctypes.PyDLL:
    """helper.cpp, loaded; its calls keep the GIL."""
    target = tmp_path_factory.mktemp("helper") / "helper.so"
    compile_library(Path(__file__).with_name("helper.cpp"), target)
    library = ctypes.PyDLL(str(target))
    library.helper_raw_allocate.restype = ctypes.c_void_p
    library.helper_raw_allocate.argtypes = [ctypes.c_size_t]
    library.helper_raw_free.argtypes = [ctypes.c_void_p]
    library.helper_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int]
    return library
