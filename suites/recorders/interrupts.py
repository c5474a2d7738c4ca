"""An interrupt between any two instructions of a module, as a signal may bring one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any


class Interrupt(BaseException):
    """Raised where a test wants it."""


def interrupting(place: int, *modules: ModuleType) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that raises before one of the instructions of these modules, counted from 0."""
    files = {module.__file__ for module in modules}
    sys._getframe().f_trace_opcodes = True  # Python 3.12 counts instructions only if a frame asked before settrace
    left = place

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace = trace  # before the next line: Python 3.13 looks at it there
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            left -= 1
            if left < 0:
                raise Interrupt
        return trace

    return trace
