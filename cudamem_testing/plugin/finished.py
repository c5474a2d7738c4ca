"""What a failed test leaves behind: its traceback, whose frames hold the test's locals.

pytest keeps the last failure until the next test is called, and a frame of pytest's own makes a cycle with it, so that
the locals would live until some garbage collection. Once the failure was reported (and a debugger was offered it)
nobody needs them. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import builtins
from types import FrameType
from typing import Any

_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # 3.11


def let_go(error: BaseException) -> None:
    """Clear the finished frames in the tracebacks of an error, of its causes and contexts, and of a group's parts."""
    todo, seen = [error], set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        traceback = one.__traceback__
        while traceback is not None:
            _clear(traceback.tb_frame)
            traceback = traceback.tb_next
        parts = one.exceptions if isinstance(one, _GROUP) else ()
        todo += [other for other in (one.__cause__, one.__context__, *parts) if other is not None]


def _clear(frame: FrameType) -> None:
    try:
        frame.clear()
    except RuntimeError:  # still running: pytest's own loop
        return
    frame.f_locals  # noqa: B018 - before Python 3.13 a copy of the locals stays until it is refreshed
