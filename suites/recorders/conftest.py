"""The CPU recorder in place for one test, and C++ for what Python cannot do."""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cudamem_testing.recorders.build import Library, compile_library
from cudamem_testing.recorders.native import NativeRecorder, introduced
from suites.recorders import device
from suites.recorders.in_place import in_place


def _compiled(name: str, folders: pytest.TempPathFactory) -> str:
    """A file of C++ here as a library, which the first worker that needs it compiles for all of the run."""
    library = Library(name, name, (f"{name}.cpp",), "c++17", ("c10",), Path(__file__).parent)
    own = folders.getbasetemp()
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    target = folder / f"{name}.so"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            compile_library(library, target)
    return str(target)


@pytest.fixture
def native() -> Iterator[NativeRecorder]:
    """The recorder in place, and everything as it was again afterwards."""
    with in_place() as recorder:
        yield recorder


@pytest.fixture(scope="session")
def device_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.PyDLL:
    """device.cpp, compiled and registered."""
    header = Path(torch.__file__).parent / "include/c10/core/CachingDeviceAllocator.h"
    if not header.exists() or "DeviceAllocator :" not in header.read_text():
        pytest.skip(f"torch {torch.__version__} has no counters for C++")
    return device.load(_compiled("device", tmp_path_factory))


@pytest.fixture(name="device")
def device_in_cpp(device_library: ctypes.PyDLL) -> device.CppAllocator:
    """A fresh device whose counters are in C++."""
    return device.CppAllocator(device_library)


@pytest.fixture(scope="session")
def helper(tmp_path_factory: pytest.TempPathFactory) -> ctypes.PyDLL:
    """helper.cpp, loaded; its calls keep the GIL."""
    library = ctypes.PyDLL(_compiled("helper", tmp_path_factory))
    library.helper_raw_allocate.restype = ctypes.c_void_p
    library.helper_raw_allocate.argtypes = [ctypes.c_size_t]
    library.helper_raw_free.argtypes = [ctypes.c_void_p]
    library.helper_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int]
    return library


@pytest.fixture(scope="session")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> NativeRecorder:
    """others.cpp, loaded: a separate CPU recorder, not installed."""
    return NativeRecorder(*introduced(ctypes.PyDLL(_compiled("others", tmp_path_factory))))
