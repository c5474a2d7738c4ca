"""Reads local variables of frames without leaving a copy behind.

On CPython 3.12 and older ``frame.f_locals`` of a function copies all locals into a dictionary that stays attached to
the frame, and then ``frame.clear()`` no longer frees them. So the copy is emptied again, unless something else holds
it too (a debugger, the function's own ``locals()``). From 3.13 on (PEP 667) it is a view and leaves no copy.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import inspect
import sys
import types

from cudamem_testing.originals import Original

_LOCALS_ARE_COPIED = sys.version_info < (3, 13)
# The local variable below, the argument of getrefcount, and the frame's own reference.
_REFERENCES_WHEN_UNSHARED = 3


def frame_locals(frame: types.FrameType) -> list[tuple[str, object]]:
    """Names and values of a frame's local variables, closure variables included.

    Frames of modules have none of their own (their locals are the module's globals), and a class body that runs
    in a custom mapping of a metaclass is not read, because that would run the mapping's code.
    """
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        namespace = frame.f_locals
        if namespace is frame.f_globals or type(namespace) is not dict:
            return []
        return list(namespace.items())
    snapshot = frame.f_locals
    found = list(snapshot.items())
    if _LOCALS_ARE_COPIED and Original.getrefcount(snapshot) <= _REFERENCES_WHEN_UNSHARED:
        snapshot.clear()
    return found
