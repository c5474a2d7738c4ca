"""What the native libraries need to know of this Python: some C functions, and the memory layout of its frames.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import atexit
import ctypes
from functools import cache
from types import CodeType

from cudamem_testing.recorders.layout import FrameLayout, FramesUnreadable, Shims, find_layout, find_shims
from cudamem_testing.safe_access import type_name

_FUNCTIONS = ("PyGILState_GetThisThreadState", "Py_IncRef", "Py_DecRef")
_WORD = ctypes.sizeof(ctypes.c_void_p)
_DEALLOC = 52
"""The number of the function that frees an object, in CPython's stable interface (`typeslots.h`)."""


class NativePython(ctypes.Structure):
    """`struct Python` of cpu_stacks.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("this_thread_state", "keep", "drop", "free_slot")),
        ("code_type", ctypes.c_uint64),
        ("type_offset", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in FrameLayout._fields),
        *((name, ctypes.c_uint64) for name in Shims._fields),
    )


@cache
def this_python() -> NativePython:
    """What the libraries need to read stacks.

    Raises:
        FramesUnreadable: they cannot be read here without the interpreter's lock.
    """
    layout, slot = find_layout(), _slot_that_frees_code()
    addresses = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in _FUNCTIONS]
    type_offset = object.__basicsize__ - _WORD  # the type is the last field of any object
    return NativePython(*addresses, slot, id(CodeType), type_offset, *layout, *find_shims(layout))


def _slot_that_frees_code() -> int:
    """Address of `tp_dealloc` of the type of code objects.

    It follows the header of the type, which is an object of variable size, its name and two sizes. The value found must
    equal what Python itself reports for the slot.
    """
    slot_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_int)(("PyType_GetSlot", ctypes.pythonapi))
    address = id(CodeType) + object.__basicsize__ + 4 * _WORD
    if ctypes.c_void_p.from_address(address).value != slot_of(CodeType, _DEALLOC):
        raise FramesUnreadable("stacks are not recorded: the layout of this Python's types is unknown")
    return address


def introduce(library: ctypes.PyDLL) -> str | None:
    """Pass this Python's layout to a library; returns why that is not possible, if so."""
    try:
        python = this_python()
    except FramesUnreadable as reason:
        return str(reason)
    library.cudamem_set_python(ctypes.byref(python))
    atexit.register(library.cudamem_set_python, None)
    return None


def take_code(pointer: int) -> CodeType:
    """The code object at an address; takes over the reference that C++ added."""
    code = ctypes.cast(pointer, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(code))
    if not isinstance(code, CodeType):
        raise TypeError(f"the CPU recorder recorded a {type_name(code)} as code")
    return code
