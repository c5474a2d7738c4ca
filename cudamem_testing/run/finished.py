"""What a failed test leaves behind: its traceback, whose frames hold the test's locals.

pytest keeps the last failure until the next test is called, and a frame of pytest's own makes a cycle with it, so that
the locals would live until some garbage collection. Once the failure was reported (and a debugger had its chance), they
are no longer needed. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import inspect
from types import FrameType

from cudamem_testing.guards import take_last_failure
from cudamem_testing.model.errors import exception_chain, traceback_of

_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def clear_frames(error: BaseException) -> None:
    """Clear the finished frames of an error, of its causes and contexts, and of a group's parts.

    Those are the frames in its traceback, and those that called the first of them: pytest's, one of which has the error
    itself in a local variable.
    """
    for one in exception_chain(error):
        traceback = traceback_of(one)
        if traceback is not None:
            _clear_callers(traceback.tb_frame)
            traceback = traceback.tb_next
        while traceback is not None:
            _clear(traceback.tb_frame)
            traceback = traceback.tb_next


def forget_last() -> None:
    """Clear the last failure, including that of a teardown, and the frames of its error."""
    error = take_last_failure()
    if error is not None:
        clear_frames(error)


def _clear_callers(frame: FrameType | None) -> None:
    """Clear the frame that caught an error, and its callers, up to one that may not be over.

    A suspended generator is such a one: clearing its frame would close it, and it may be a wider fixture.
    """
    while frame is not None and not frame.f_code.co_flags & _SUSPENDABLE and _clear(frame):
        frame = frame.f_back


def _clear(frame: FrameType) -> bool:
    """Whether the frame was over, and is cleared."""
    try:
        frame.clear()
    except RuntimeError:  # still running: pytest's own loop
        return False
    frame.f_locals  # noqa: B018 - before Python 3.13 a copy of the locals stays until it is refreshed
    return True
