"""Repeats a failed capture while tracing it, to see what was running when it broke.

The first capture is not traced, so that it equals that of ``torch.cuda.graph``. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import sys
import traceback
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from cudamem_testing.graphs.backend import Backend
from cudamem_testing.graphs.forks import Forks
from cudamem_testing.graphs.operators import BACKWARD_NODES
from cudamem_testing.graphs.places import CapturePlaces
from cudamem_testing.graphs.plan import Plan
from cudamem_testing.graphs.reasons import SAME_STREAM_SAID, SILENT_SAID, Clues
from cudamem_testing.graphs.report import SourceLine
from cudamem_testing.guards import replaced, traced
from cudamem_testing.model.errors import drop_tracebacks, first_cause
from cudamem_testing.torch_api.modes import watched

#: Frames outside this function do not belong to the captured function.
_END = Plan.call.__code__
#: How often a capture that fails differently each time is repeated.
_LOOKS = 3


class RunningOperators:
    """Records which function and which operator are running, and which were when an exception passed."""

    def __init__(self, backend: Backend, places: CapturePlaces) -> None:
        self._backend, self._places = backend, places
        self._now = Clues()
        self._broken: list[tuple[BaseException, Clues]] = []
        self._forks = Forks(lambda: backend.here()[0])
        self._origin = 0
        self.said = ""
        """The text of the error that broke the capture."""

    @contextlib.contextmanager
    def watching(self, lines: Lines | None = None) -> Iterator[None]:
        """Trace what is called inside, and its lines for ``lines``; the current stream is the capturing one."""
        self._origin = self._backend.here()[0]
        if lines is not None:
            lines.begin(self._origin)
        with (
            watched(self),
            replaced(self._forks.changes()),
            contextlib.nullcontext() if lines is None else traced(lines),
        ):
            yield

    def function(self, name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a Python function."""
        return self._called(replace(self._now, function=name, operator=""), func, args, kwargs)

    def operator(self, name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator."""
        stream, captures = self._backend.here()
        if stream != self._origin:
            self._forks.worked(stream, name, self._places.of_frame(sys._getframe(1), _END))
        clues = replace(self._now, operator=name, to_host=_to_host(name, args, kwargs), aside=not captures)
        return self._called(clues, func, args, kwargs)

    def clues(self, cause: BaseException, outer: BaseException | None) -> Clues:
        """What was running when ``cause`` broke the capture; the record is cleared."""
        said = self.said = str(cause)
        found = next((clues for one, clues in self._broken if str(one) == said), Clues())
        if SILENT_SAID in said:  # the first exception was caught
            found = next((replace(clues, said=str(one)) for one, clues in self._broken), Clues())
            found = Clues() if SILENT_SAID in found.said else found
        for one, _ in self._broken:
            drop_tracebacks(one, outer)
        self._broken.clear()
        aside = self._forks.unjoined(self._origin) if "unjoined" in said else None
        return found if aside is None else replace(found, operator=aside[0], place=aside[1])

    def _called(self, clues: Clues, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        before, self._now = self._now, clues
        try:
            return func(*args, **kwargs)
        except BaseException as error:
            if not self._broken or self._broken[-1][0] is not error:
                self._broken.append((error, clues))
            raise
        finally:
            self._now = before


class Lines:
    """A trace function that finds lines of the project that break the capture or switch streams without an exception.

    ``broken``: the line after which the capture was broken. ``switched``: the line that changed the current stream.
    """

    def __init__(self, backend: Backend, places: CapturePlaces) -> None:
        self._backend, self._places = backend, places
        self._last: SourceLine | None = None
        self._origin = self._stream = 0
        self.broken: SourceLine | None = None
        self.switched: SourceLine | None = None

    def begin(self, stream: int) -> None:
        """Start for a capture on this stream, which is the current one."""
        self._origin = self._stream = stream

    def __call__(self, frame: types.FrameType, event: str, argument: object) -> Any:
        """Python calls it when a function begins, and for lines and ends of the project's functions."""
        if not self._places.is_project(frame.f_code):
            return None
        if self._last is not None and event != "exception":
            # Not the current stream: if that differs, the break would only be seen after the line that leaves it.
            if self.broken is None and not self._backend.intact(self._origin):
                self.broken = self._last
            stream = self._backend.here()[0]
            if stream != self._stream:
                self.switched = self._last
            self._stream = stream
        goes_on = frame.f_back if event == "return" else frame
        self._last = self._places.of_frame(goes_on, _END)
        return self


def look_again(plan: Plan, places: CapturePlaces, backward: Collection[str], said: str) -> Clues:
    """Capture again while tracing; everything is freed afterwards.

    If it then fails differently and shows nothing, it is repeated once more: an allocation on a side stream, which
    broke the first capture, may find memory in the cache of the stream that comes next.

    Args:
        plan: the capture that failed.
        places: finds the lines.
        backward: nodes of autograd that the function runs. Some take another path while traced, and then the
            second capture works although the first did not.
        said: the error of the first capture.
    """
    found: Clues | None = None
    for _ in range(_LOOKS):
        at_work, lines = RunningOperators(plan.backend, places), Lines(plan.backend, places)
        found = _broken(plan, at_work.watching(lines), partial(_seen, at_work, lines, places))
        if found is None:
            return _unwatched(plan, sorted({*backward} & {*BACKWARD_NODES}))
        if found != Clues() or at_work.said == said:
            break
    return found or Clues()


def _seen(
    at_work: RunningOperators, lines: Lines, places: CapturePlaces, cause: BaseException, outer: BaseException | None
) -> Clues:
    """What was seen of a capture that ``cause`` broke."""
    known = {places.of_code(frame.f_code, line).line for frame, line in traceback.walk_tb(cause.__traceback__)}
    clues = at_work.clues(cause, outer)
    if SAME_STREAM_SAID in at_work.said:
        return replace(clues, place=lines.switched)
    if lines.broken is None or lines.broken.line in known:
        return clues
    return replace(clues, place=lines.broken) if clues.said else Clues(place=lines.broken, said=SILENT_SAID)


def look_at_warm_up(plan: Plan, places: CapturePlaces) -> Clues:
    """Repeat a failed warm-up while tracing it."""
    at_work, outer = RunningOperators(plan.backend, places), sys.exc_info()[1]
    try:
        with plan.backend.warming(plan.stream), at_work.watching():
            plan.call()
    except Exception as error:
        return at_work.clues(first_cause(error, outer), outer)
    return Clues()


def _unwatched(plan: Plan, nodes: Sequence[str]) -> Clues:
    """Clues if the second capture worked: these nodes take another path when traced, or only the first call fails."""
    if nodes:
        return Clues(operator=f"backward of {nodes[-1]}")
    found = _broken(plan, contextlib.nullcontext(), lambda cause, outer: Clues())
    return Clues(worked=True) if found is None else found


def _broken(
    plan: Plan,
    around: contextlib.AbstractContextManager[Any],
    look: Callable[[BaseException, BaseException | None], Clues],
) -> Clues | None:
    """What ``look`` makes of the first exception of a capture, ``None`` if it works. The capture is freed.

    ``outer`` is an exception that is already being handled, such as that of the capture before.
    """
    graph, outer = plan.backend.new_graph(), sys.exc_info()[1]
    try:
        plan.record(graph, around)
    except Exception as error:
        clues = look(first_cause(error, outer), outer)
        drop_tracebacks(error, outer)  # its frames hold the pool
        return clues
    finally:
        plan.backend.recover(graph)
    return None


def _to_host(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator copies a tensor of the device to the host."""
    if name == "aten::_to_copy":
        target = kwargs.get("device")
        return target is not None and torch.device(target).type == "cpu" and args[0].device.type != "cpu"
    return name == "aten::copy_" and args[0].device.type == "cpu" and args[1].device.type != "cpu"
