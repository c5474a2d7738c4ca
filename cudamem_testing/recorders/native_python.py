"""This Python as the native libraries see it: a few functions of its C interface, and how its frames lie in memory.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
from functools import cache
from types import CodeType

from cudamem_testing.recorders.layout import FrameLayout, find_layout, find_shim

_FUNCTIONS = ("PyGILState_GetThisThreadState", "PyGILState_Ensure", "PyGILState_Release", "Py_IncRef", "Py_DecRef")


class NativePython(ctypes.Structure):
    """`struct Python` of cpu_stacks.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("this_thread_state", "take_gil", "give_gil", "keep", "drop")),
        ("code_type", ctypes.c_uint64),
        ("type_offset", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in FrameLayout._fields),
        ("shim", ctypes.c_uint64),
    )


@cache
def this_python() -> NativePython | None:
    """`None` where the layout of frames is not known (see layout.py)."""
    layout = find_layout()
    if layout is None:
        return None
    addresses = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in _FUNCTIONS]
    type_offset = object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)  # the type is the last field of any object
    return NativePython(*addresses, id(CodeType), type_offset, *layout, find_shim(layout))
