"""Recording a piece of code and analysing what was recorded; without pytest.

::

    profile = MemoryProfile()(train_step, model=model, x=x)
    print(profile.data_flow())

    with MemoryProfile() as profile:
        with profile.region("forward"):
            loss = model(x).sum()
        profile.name(loss=loss)

torch has one profiler per process. Starting a second one ends the first, so an open one is an error before anything
starts, and ours is always stopped. Tensors are never kept: named ones are noted by address, and weak references refer
to those that the block may drop. The profiler's own result, which holds
those of ``vmap`` and ``jvp`` calls, is read and dropped when the recording ends. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any

from torch.profiler import record_function

from cudamem_testing.guards import collect_garbage, restore_python_profiler
from cudamem_testing.model.facts import OverLimit
from cudamem_testing.model.findings import Finding
from cudamem_testing.model.windows import Window
from cudamem_testing.safe_access import is_a
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.torch_api.calls import DispatchedCalls
from cudamem_testing.torch_api.profiler import (
    disable_profiler,
    event_tree,
    finished_results,
    let_callers_go,
    new_profiler,
    older_profiler_stays,
    prepared_by_another,
    profiler_is_running,
    profiler_keeps_callers,
)
from cudamem_testing.trace.categories import Categories, categories
from cudamem_testing.trace.dispatched import dispatched, sightings
from cudamem_testing.trace.expect import Expectations
from cudamem_testing.trace.graph import DataFlow, data_flow
from cudamem_testing.trace.measured import Measurement, measure
from cudamem_testing.trace.names import (
    Address,
    addresses,
    gradient_of,
    named_modules,
    named_tensors,
    places_of,
    resolve,
    storages_of,
    with_gradients,
    with_results,
)
from cudamem_testing.trace.peak import Peak, find_peak
from cudamem_testing.trace.reader import read_events
from cudamem_testing.trace.records import Trace
from cudamem_testing.trace.timeline import Timeline, timeline
from cudamem_testing.trace.witnesses import optimizers_in, parts_of, state_of
from cudamem_testing.windows.regions import OverBudget
from cudamem_testing.windows.tracker import Tracker

__tracebackhide__ = hide_wrong_arguments

_FLAGS = ("record_shapes", "profile_memory", "with_stack")
_ESSENTIAL = _FLAGS[:2]
_ENDED = "another torch profiler was started inside the memory profile and ended it: torch runs one profiler at a time"
_OPEN = (
    "a torch profiler is recording already, and a second one would end it: stop it before the memory profile starts, "
    "or analyse its own recording with from_profile(prof)"
)
_PREPARED = (
    "another torch profiler is prepared and not started, and torch can start no other until it is: start the memory "
    "profile before or after the warm-up of a profiler's schedule; where a profiler failed to start, in a new process"
)


class MemoryProfile(Expectations):
    """One recording and its analysis.

    Use it once: as a context manager, or by calling it with a function and its arguments. Threads that the code starts
    are not recorded by torch's profiler; those of autograd are.

    Args:
        collect: collect garbage before the recording ends. Otherwise what reference cycles hold is freed at a moment
            that changes from run to run, and so does the text. Not while a stream captures a CUDA graph.
        tracker: recorders that measure the same span, so that the timeline has what was live before, and what the
            profiler misses.
        root: the project's folder, whose lines the peak shows; by default the working folder.
        compared: whether the tracker's peak is comparable: its recorders began before the test's first tensor.
        dispatched: note each call of the dispatcher, for texts of categories with ``ids="profiler"``: a mode that makes
            operators slower (by some 10 microseconds each) and that ``torch.compile`` may not support.
    """

    def __init__(
        self,
        *,
        collect: bool = True,
        tracker: Tracker | None = None,
        root: str | None = None,
        compared: bool = True,
        dispatched: bool = False,
    ) -> None:
        self.entered, self.is_read = False, True  # there is nothing to read yet
        self._collect = collect
        self._dispatched = dispatched
        self._calls: Any = None
        self._root = root
        self._measuring = measure(
            Tracker() if tracker is None else tracker, root=root or os.getcwd(), compared=compared
        )
        self._measurement: Measurement | None = None
        self._profiler: Any = None
        self._python_profiler: Any = None
        self._mark: AbstractContextManager[object] | None = None
        self._trace: Trace | None = None
        self._flow: DataFlow | None = None
        self._categories: Categories | None = None
        self._timeline: Timeline | None = None
        self._addresses: list[Address] = []
        self._tensors: list[weakref.ref[Any]] = []
        self._modules: dict[int, str] = {}
        self._optimizers: list[weakref.ref[Any]] = []
        self._states: list[Address] = []

    @property
    def left(self) -> bool:
        """Whether it has recorded, or could not."""
        return self.entered and self._profiler is None

    def __call__(self, function: Callable[..., object], /, *args: object, **kwargs: object) -> MemoryProfile:
        """Record one call; arguments and results get names.

        Keyword arguments have their own, positional ones those of the function's parameters; results that come in a
        dict are named by its keys, others ``out`` or ``out[0]``. Gradients found afterwards are called ``x.grad``.

        Raises:
            RuntimeError: when a profiler records already, or this one was used before.
            Exception: any exception of the function; the profiler is stopped.
        """
        self._check_fresh()
        self._note_optimizers(function)
        for name, value in (*zip(_argument_names(function, len(args)), args, strict=True), *kwargs.items()):
            self._note(name, value, given=True)
        with self:
            result = function(*args, **kwargs)
            self._note("" if issubclass(type(result), dict) else "out", result, given=False)
        return self

    def __enter__(self) -> MemoryProfile:
        """Start recording.

        Raises:
            RuntimeError: when a profiler records already, or this one was used before.
        """
        self._check_fresh()
        profiler = new_profiler()
        self._python_profiler = sys.getprofile()
        if self._dispatched:
            self._calls = DispatchedCalls()
            self._calls.__enter__()
        try:
            profiler_keeps_callers()  # an error before anything is recorded
            profiler.__enter__()
        except BaseException as error:
            self._end_calls()
            disable_profiler()
            self._restore_python_profiler()
            if prepared_by_another(error):
                raise RuntimeError(_PREPARED) from error
            raise
        self._profiler = profiler
        self._measurement = self._measuring.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop recording, also after an error.

        Raises:
            RuntimeError: when another profiler was started meanwhile, which ends this one.
        """
        profiler, self._profiler = self._profiler, None
        whole = profiler_is_running()
        try:
            self._end_mark()
            if self._collect and error is None:
                collect_garbage()
            alive = [tensor() for tensor in self._tensors]
            self._addresses = [*with_gradients(self._addresses, alive)]
            gradients = places_of(parts_of(one for one in map(gradient_of, alive) if one is not None))
            for optimizer in self._optimizers:
                self._states += places_of(state_of(optimizer()))
            alive.clear()
        finally:
            self._tensors = []
            try:
                self._measuring.__exit__(None, None, None)
                if whole:
                    profiler.__exit__(None, None, None)
            finally:
                disable_profiler()
                self._restore_python_profiler()
                calls = self._end_calls()
        if not whole:
            if error is None:
                raise RuntimeError(_ENDED)
            return
        # At once: as long as the profiler's result lives it may hold tensors.
        roots = event_tree(finished_results(profiler))
        let_callers_go(roots)
        trace = with_results(read_events(roots), self._addresses)
        trace = replace(
            trace,
            gradients=storages_of(gradients, trace),
            states=storages_of(self._states, trace),
            modules=self._modules,
        )
        if calls is not None:
            trace = replace(trace, dispatched=tuple(dispatched(trace, calls, sightings(roots))))
        self._trace = trace
        self.is_read = error is not None
        if is_a(error, OverBudget):
            self._add_purposes(error)

    def name(self, **tensors: object) -> None:
        """Name tensors that live when the recording ends; containers and modules name what they hold.

        Raises:
            RuntimeError: outside of the recording.
        """
        if self._profiler is None:
            raise RuntimeError("name() works inside the recording: call it in the with block of MemoryProfile")
        for name, value in tensors.items():
            self._note(name, value, given=False)

    @staticmethod
    def region(name: str) -> AbstractContextManager[object]:
        """Name what happens inside, for texts with ``regions=True``; torch's ``record_function``."""
        return record_function(name)

    def mark(self, name: str) -> None:
        """Name what happens from here to the next mark, or to the end of the recording.

        Raises:
            RuntimeError: outside of the recording.
        """
        if self._profiler is None:
            raise RuntimeError("mark() works inside the recording: call it in the with block of MemoryProfile")
        self._end_mark()
        self._mark = self.region(name)
        self._mark.__enter__()

    @property
    def trace(self) -> Trace:
        """What was recorded.

        Raises:
            RuntimeError: while it is recorded, or before.
        """
        if self._trace is None:
            raise RuntimeError("nothing is recorded yet: leave the with block of MemoryProfile first")
        self.is_read = True
        return self._trace

    def data_flow(self) -> DataFlow:
        """Which operator reads, writes, makes and frees which version of which tensor."""
        if self._flow is None:
            trace = self.trace
            self._flow = data_flow(trace, resolve(self._addresses, trace))
        return self._flow

    def categories(self) -> Categories:
        """What each version of each tensor is for: parameter, gradient, activation, ..."""
        if self._categories is None:
            self._categories = categories(self.data_flow())
        return self._categories

    def timeline(self) -> Timeline:
        """The memory in use at every moment, in bytes by category."""
        if self._timeline is None:
            measured = () if self._measurement is None else self._measurement.results
            self._timeline = timeline(self.categories(), measured)
        return self._timeline

    def plot(self, path: str | Path, device: str | None = None, title: str = "") -> Path:
        """Draw bytes by category over time into a PNG or SVG file; see :meth:`.timeline.Timeline.plot`."""
        return self.timeline().plot(path, device, title)

    def peak(self, device: str | None = None) -> Peak:
        """The moment at which most memory is in use, and what it is for.

        Args:
            device: any spelling of one; by default the accelerator with the highest peak, else the CPU.

        Raises:
            ValueError: when nothing happened on the device.
        """
        return find_peak(self.timeline(), device, self._root)

    def explain(self, window: Window) -> tuple[str, ...]:
        """A table of what a window's peak was for, if this recording contains it; else no lines."""
        if self._trace is None:
            return ()
        measured = self._measurement.results if self._measurement is not None else ()
        here = any(one.device == str(window.device) and one.peak == window.peak for one in measured)
        return self.peak(str(window.device)).category_lines() if here else ()

    def _add_purposes(self, error: OverBudget) -> None:
        """Add to the error of a broken budget what the memory was for; not before Python 3.11, which has no notes."""
        devices = {str(one.device): None for one in error.findings if _breaks_peak(one)}
        add_note = getattr(error, "add_note", None)
        if add_note is not None:
            for device in devices:
                add_note("\n".join(self.peak(device).category_lines()))

    def _end_mark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _end_calls(self) -> Any:
        """Stop noting calls of the dispatcher; those that were noted."""
        mode, self._calls = self._calls, None
        if mode is None:
            return None
        mode.__exit__(None, None, None)
        return mode.calls

    def _check_fresh(self) -> None:
        self.entered = True
        if self._profiler is not None or self._trace is not None:
            raise RuntimeError("a MemoryProfile records once: make a new one")
        if profiler_is_running() or older_profiler_stays():
            raise RuntimeError(_OPEN)

    def _note(self, name: str, value: object, *, given: bool) -> None:
        """Note addresses now, and the tensors weakly: their gradients are asked for at the end."""
        self._addresses += addresses(name, value, given=given)
        self._modules |= named_modules(name, value)
        self._note_optimizers(value)
        self._tensors += [weakref.ref(tensor) for _, tensor in named_tensors(name, value)]

    def _note_optimizers(self, value: object) -> None:
        """Look for optimizers, and note what the state of new ones is before the recording, or at its end."""
        known = [one() for one in self._optimizers]
        found = [one for one in optimizers_in(value) if not any(one is other for other in known)]
        self._optimizers += map(weakref.ref, found)
        if self._profiler is None:
            for optimizer in found:
                self._states += places_of(state_of(optimizer), given=True)

    def _restore_python_profiler(self) -> None:
        previous, self._python_profiler = self._python_profiler, None
        restore_python_profiler(previous)


def _breaks_peak(finding: Finding) -> bool:
    return isinstance(finding.fact, OverLimit) and finding.fact.breach.limit.metric == "peak"


def memory_profile(function: Callable[..., object] | None = None, /, *args: Any, **kwargs: Any) -> MemoryProfile:
    """Record one call of a function; without a function, return a ``MemoryProfile`` that records a ``with`` block.

    ``profile = memory_profile(step, model=model)`` or ``with memory_profile() as profile:``. Without a function, other
    arguments are those of :class:`MemoryProfile`, which can also be called: ``memory_profile(dispatched=True)(step)``.

    Raises:
        RuntimeError: when a profiler records already.
        Exception: any exception of the function; the profiler is stopped.
    """
    return MemoryProfile(*args, **kwargs) if function is None else MemoryProfile()(function, *args, **kwargs)


def from_profile(prof: Any) -> MemoryProfile:
    """The analysis of a profile that the caller recorded with ``torch.profiler``.

    Without ``with_stack=True`` modules, optimizers and lines are unknown, which the result notes.

    Args:
        prof: a stopped ``torch.profiler.profile`` or ``torch.autograd.profiler.profile``.

    Raises:
        ValueError: when it was recorded without shapes or memory; the message names each missing flag.
        RuntimeError: when it has not stopped.
    """
    missing = tuple(f"{flag}=True" for flag in _FLAGS if not getattr(prof, flag, False))
    if any(f"{flag}=True" in missing for flag in _ESSENTIAL):
        raise ValueError(f"{', '.join(missing)} required for memory profiling.")
    results = finished_results(prof)
    if results is None:
        raise RuntimeError("the profile has recorded nothing: leave its with block, or call stop(), first")
    profile = MemoryProfile()
    profile._trace = read_events(event_tree(results), missing=missing)
    return profile


def _argument_names(function: Callable[..., object], count: int) -> Sequence[str]:
    """Names for positional arguments: a plain function's parameters, else ``arg0``."""
    known: tuple[str, ...] = ()
    if type(function) is FunctionType:
        known = function.__code__.co_varnames[: function.__code__.co_argcount]
    return [known[place] if place < len(known) else f"arg{place}" for place in range(count)]
