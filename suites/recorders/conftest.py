"""The CPU recorder in place for one test, and C++ for what Python cannot do."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cudamem_testing.recorders.build import CPU_RECORDER, Library, compiled
from cudamem_testing.recorders.native import NativeRecorder, introduced
from suites.recorders import device
from suites.recorders.in_place import in_place


def _compiled(name: str, *, includes: Library | None = None) -> str:
    """A file of C++ here as a library: kept as those of the package are, so that only the first run compiles it.

    The name of one that ``includes`` a library of the package changes with that.
    """
    whole = name if includes is None else f"{name}-{compiled(library=includes).stem}"
    return str(compiled(library=Library(whole, name, (f"{name}.cpp",), "c++17", ("c10",), Path(__file__).parent)))


@pytest.fixture
def native() -> Iterator[NativeRecorder]:
    """The recorder in place, and everything as it was again afterwards."""
    with in_place() as recorder:
        yield recorder


@pytest.fixture(scope="session")
def device_library() -> ctypes.PyDLL:
    """device.cpp, compiled and registered."""
    header = Path(torch.__file__).parent / "include/c10/core/CachingDeviceAllocator.h"
    if not header.exists() or "DeviceAllocator :" not in header.read_text():
        pytest.skip(f"torch {torch.__version__} has no counters for C++")
    return device.load(_compiled("device"))


@pytest.fixture(name="device")
def device_in_cpp(device_library: ctypes.PyDLL) -> device.CppAllocator:
    """A fresh device whose counters are in C++."""
    return device.CppAllocator(device_library)


@pytest.fixture(scope="session")
def helper() -> ctypes.PyDLL:
    """helper.cpp, loaded; its calls keep the GIL."""
    library = ctypes.PyDLL(_compiled("helper"))
    library.helper_raw_allocate.restype = ctypes.c_void_p
    library.helper_raw_allocate.argtypes = [ctypes.c_size_t]
    library.helper_raw_free.argtypes = [ctypes.c_void_p]
    library.helper_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int]
    return library


@pytest.fixture(scope="session")
def crowded() -> NativeRecorder:
    """others.cpp, loaded: a separate CPU recorder, not installed."""
    return NativeRecorder(*introduced(ctypes.PyDLL(_compiled("others", includes=CPU_RECORDER))))
