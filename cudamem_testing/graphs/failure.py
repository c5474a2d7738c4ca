"""Explains why a capture failed: the operator, the module and the line that broke it, and what to do.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import CodeType, FrameType

from cudamem_testing.graphs.places import CapturePlaces
from cudamem_testing.graphs.reasons import Clues, reason, refused, rule_of
from cudamem_testing.graphs.report import LintReport, SourceLine
from cudamem_testing.graphs.rules import Meaning, Rule
from cudamem_testing.model.pools import PoolUse
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.source import raw_line
from cudamem_testing.objects.frames import frame_locals
from cudamem_testing.safe_access import error_text, is_one_of, type_name
from cudamem_testing.show.printable import one_line
from cudamem_testing.show.tables import begin

#: torch modules in which functions of these names wait for the device, and functions that begin a capture.
_WAITING, _WAITS = ("torch.cuda", "torch.accelerator"), ("synchronize", "query", "elapsed_time")
_GRAPHS, _BEGINS = "torch.cuda.graphs", ("capture_begin", "__enter__")
_OURS = "cudamem_testing."
#: Exceptions of ordinary bugs. Libraries raise other types when the driver refuses something.
_MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
#: How another exception's text contains a worker's exception, and how a line that names an exception begins.
_WRAPPED, _NAMED = "Original Traceback", re.compile(r"[\w.]+: ")
#: Characters of a message and of a call that are shown.
LONGEST_ERROR, LONGEST_CALL = 200, 60


@dataclass(frozen=True, slots=True)
class Failure:
    """A capture, or its warm-up (``step``), that failed.

    ``operator`` is what was running: an operator, a function of torch or of a library; empty if none was. ``rule``
    is the rule of the lint that was broken, if any; ``meaning`` says what happened and what
    to do. ``orphans`` are pools that the capture left and that could not be freed, ``owner`` is who left them
    (the test, or the function). ``unusable`` is the device's error if it cannot capture again.
    """

    function: str
    error: str
    place: SourceLine
    meaning: Meaning
    operator: str = ""
    rule: Rule | None = None
    step: str = "capture"
    orphans: tuple[PoolUse, ...] = ()
    owner: str = ""
    lint: LintReport | None = None
    unusable: str = ""

    def __str__(self) -> str:
        place = self.place
        source = f": {place.source}" if place.source else ""
        lines = [f"the {self.step} of {self.function} failed at {place.line}{source}"]
        where = f", in module {place.module}" if place.module else ""
        lines.append(f"   {self.operator or 'no operator'} was running{where}")
        lines.append(f"   {self.error}")
        lines.append(f"   {f'{self.rule.value}: ' if self.rule is not None else ''}{self.meaning.happens}")
        lines.append(f"   do: {self.meaning.advice}")
        for pool in self.orphans:
            name = f"private pool {pool.pool}"
            lines.append(f"   left behind by {self.owner or self.function}: {name} keeps {format_size(pool.reserved)}")
        if self.lint is not None:
            seen = any(finding.place.stable == place.stable for finding in self.lint.findings)
            lines.append(f"   the lint {'had found this line' if seen else 'had not seen this line'}")
        if self.unusable:
            lines.append(f"   the device cannot capture again in this process: {self.unusable}")
        return "\n".join(lines)


class CaptureError(RuntimeError):
    """A capture failed; ``failure`` says where and why. The process can capture again."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What a failed capture shows by itself: its error text (``said`` in full), the place, and the running call.

    ``mistake``: the exception is an ordinary bug of the program.
    """

    said: str
    error: str
    place: SourceLine
    clues: Clues
    mistake: bool

    @property
    def unclear(self) -> bool:
        """Whether a second look could show more."""
        known = self.clues.waits or self.clues.nested
        return not known and (not self.mistake or refused(self.said) or rule_of(self.said, self.clues) is not None)

    def failure(self, function: str, seen: Clues | None = None) -> Failure:
        """The explanation, with what a second look saw."""
        own = self.clues
        call = own.call if seen is None or seen.place is None else ""  # another line made another call
        clues = own if seen is None else replace(seen, call=call)
        rule, meaning = reason(clues.said or self.said, clues, mistake=self.mistake)
        return Failure(function, self.error, clues.place or self.place, meaning, clues.at_work, rule)


def first_look(cause: BaseException, places: CapturePlaces, call: CodeType, code: CodeType | None = None) -> FirstLook:
    """Where a capture failed, and the error: in the ``call``, or at the function's own ``code``."""
    said = f"{error_text(cause)}"
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    shown = lines[0]
    if _WRAPPED in said:
        inner = next((line for line in reversed(lines) if _NAMED.match(line) and refused(line)), "")
        said = shown = f"{shown} {inner}".rstrip()
    frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
    called = any(frame.f_code is call for frame in frames)
    place = places.of_traceback(cause.__traceback__) if called or code is None else places.of_code(code)
    clues = _call(cause, frames, places) if called else Clues()
    return FirstLook(said, one_line(shown[:LONGEST_ERROR]), place, clues, is_one_of(cause, *_MISTAKES))


def _call(error: BaseException, frames: Sequence[FrameType], places: CapturePlaces) -> Clues:
    """Which function of a library the project's innermost line called."""
    own = [at for at, frame in enumerate(frames) if places.is_project(frame.f_code)]
    inner = [frame for frame in frames[own[-1] + 1 if own else 0 :] if not _module(frame).startswith(_OURS)]
    begins = next((frame for frame in inner if _module(frame) == _GRAPHS and frame.f_code.co_name in _BEGINS), None)
    if begins is not None:
        return Clues(call=_name(begins), nested=True)
    waits = next((one for one in inner if one.f_code.co_name in _WAITS and _module(one).startswith(_WAITING)), None)
    if waits is not None:
        return Clues(call=_name(waits), waits=True)
    if not own:
        return Clues()
    named = next((frame for frame in inner if _telling(frame)), None)
    return Clues(call=_written(error, own[-1]) if named is None else _name(named))


def _telling(frame: FrameType) -> bool:
    """Whether a function has a public name."""
    name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
    return "<" not in name and not frame.f_code.co_name.startswith("_")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _name(frame: FrameType) -> str:
    """``torch.cuda.Event.synchronize()``."""
    function = getattr(frame.f_code, "co_qualname", "")
    if not function:  # 3.10
        classes = [type_name(value) for name, value in frame_locals(frame) if name == "self"]
        function = ".".join((*classes, frame.f_code.co_name))
    return f"{_module(frame)}.{function}()".replace("torch.cuda.streams.", "torch.cuda.")


def _written(error: BaseException, at: int) -> str:
    """The source text of the call in a frame's line, for functions without a frame; empty before Python 3.11."""
    summary = traceback.extract_tb(error.__traceback__)[at]
    start, end = getattr(summary, "colno", None), getattr(summary, "end_colno", None)
    if start is None or end is None or summary.lineno is None or summary.lineno != getattr(summary, "end_lineno", None):
        return ""
    text = raw_line(summary.filename, summary.lineno).encode()[start:end].decode(errors="replace")
    return begin(text, LONGEST_CALL) if text.endswith(")") and not text.startswith(("raise ", "assert ")) else ""
