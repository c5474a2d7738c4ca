"""Where a check was called: a position in a file, read from the frame at once, so that no frame is kept.

From Python 3.11 the compiler records the columns of each call. On 3.10, or with ``-X no_debug_ranges``, only
the line is known, and `source` then needs the call to be the only fitting one on its line.

PYTEST_DONT_REWRITE
"""

import sys
from dataclasses import dataclass
from itertools import islice
from types import FrameType


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """A range in a file as the compiler counts: lines from 1, columns in UTF-8 bytes from 0."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class CallSite:
    """The call whose argument is the expected text.

    Attributes:
        file: the file as the code object names it.
        function: name of the function that makes the call, ``<module>`` or ``<lambda>``.
        first_line: where that function starts, decorators included.
        line: the line being executed.
        span: the whole call, or None if the interpreter did not keep columns.
        callee: name of the function that is called.
        argument: the parameter that takes the expected text.
        position: its place among the positional arguments at the call, or None if it is keyword-only.
    """

    file: str
    function: str
    first_line: int
    line: int
    span: SourceSpan | None
    callee: str
    argument: str
    position: int | None

    @classmethod
    def of_caller(cls, depth: int = 1, *, argument: str = "expected") -> "CallSite":
        """Describe the call that entered the function `depth` frames up (1: the function that asks).

        Args:
            depth: which function was called with the literal.
            argument: the name of its parameter; ``self`` is not counted as a position.
        """
        callee = sys._getframe(depth)
        caller = sys._getframe(depth + 1)
        code = caller.f_code
        return cls(
            file=code.co_filename,
            function=code.co_name,
            first_line=code.co_firstlineno,
            line=caller.f_lineno,
            span=_span(caller),
            callee=callee.f_code.co_name,
            argument=argument,
            position=_position(callee, argument),
        )

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def _position(callee: FrameType, argument: str) -> int | None:
    names = callee.f_code.co_varnames[: callee.f_code.co_argcount]
    if argument not in names:
        return None
    return names.index(argument) - (names[0] in ("self", "cls"))


def _span(frame: FrameType) -> SourceSpan | None:
    positions = getattr(frame.f_code, "co_positions", None)  # Python 3.11
    if positions is None:
        return None
    instruction = frame.f_lasti // 2  # one entry per code unit of two bytes
    line, end_line, column, end_column = next(islice(positions(), instruction, None))
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return SourceSpan(line, column, end_line, end_column)
