"""Runs a function once, without a card and without a capture, and lists what would break or freeze in one.

::

    report = check(step, x, cache)
    report.assert_clean()

The function runs on the given CPU tensors; they take the place of CUDA tensors, and so do tensors that it creates with
``device="cuda"`` or ``device=x.device``. Streams, events and waits are recorded but not executed. With CUDA tensors
the function runs on the card. Changes that the function makes to its arguments are not undone. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from cudamem_testing.graphs.fake_streams import Streams, noted_calls
from cudamem_testing.graphs.outer import ExternalState, SideEffect, random_state, roots_of
from cudamem_testing.graphs.places import CapturePlaces, module_names
from cudamem_testing.graphs.report import LintReport, SourceLine
from cudamem_testing.graphs.rules import Rule
from cudamem_testing.graphs.sides import Sides, storage_reference
from cudamem_testing.graphs.stores import line_that_changes, line_that_uses
from cudamem_testing.graphs.watch import Watch
from cudamem_testing.guards import replaced
from cudamem_testing.model.stacks import Locator
from cudamem_testing.objects.names import type_word
from cudamem_testing.safe_access import error_text, is_a, type_name
from cudamem_testing.show.printable import one_line
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.torch_api.foreach import grouped_on
from cudamem_testing.torch_api.modes import watched
from cudamem_testing.torch_api.trees import leaves

__tracebackhide__ = hide_wrong_arguments

TOO_LARGE = "the function reaches more objects than are examined: a side effect may have been missed"


def check(function: Callable[..., object], /, *args: object, **kwargs: object) -> LintReport:
    """Lint one call of ``function``; see :func:`lint`. Paths are shown relative to the current folder."""
    return lint(function, args, kwargs)


def lint(
    function: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    root: str | None = None,
) -> LintReport:
    """Run ``function(*args, **kwargs)`` once and report what would break or freeze in a CUDA graph of it.

    An exception of the function ends the run and is a finding. ``docs/graphs.md`` lists what the lint cannot see.

    Args:
        function: a function, a method or a module.
        args: its arguments; their tensors take the place of device tensors.
        kwargs: its keyword arguments.
        root: the project's folder, by default the current one.
    """
    if not callable(function):
        raise TypeError(f"the lint needs a function, a method or a module, not {type_name(function)}")
    kwargs = kwargs or {}
    places = CapturePlaces(Locator(os.getcwd() if root is None else root), {})
    roots, codes = roots_of(function, args, kwargs, places.is_project)
    own = (function, function.__self__ if type(function) is types.MethodType else None)
    places.names = module_names(("" if any(value is one for one in own) else name, value) for name, value in roots)
    before, drawn = ExternalState(roots), random_state()
    sides = Sides(real=before.on_card, devices=before.devices)
    known = before.storages
    watch = Watch(places, sides, lambda one: storage_reference(one) in known, _generators(args, kwargs), _run.__code__)
    with _streams(sides, watch, places):
        _run(function, args, kwargs, watch)
    roots, _ = roots_of(function, args, kwargs, places.is_project)
    changes = before.changes(ExternalState(roots))
    names = [*dict.fromkeys((*places.codes, *codes))]
    first = next(iter(codes or names), None)
    for change in changes:
        if change.path[-1] != ".grad" or sides.touched(before.reference(change.path)):  # else it is created again
            watch.report(change.rule, str(change), _line_of(change, names, first, places))
    _judge_draws(drawn, watch, names, first, places)
    return LintReport(type_word(function), watch.findings(), () if before.complete else (TOO_LARGE,))


def _generators(args: Sequence[object], kwargs: Mapping[str, object]) -> list[torch.Generator]:
    """The generators among the arguments, which a capture registers."""
    try:
        given = leaves((tuple(args), {**kwargs}))
    except RecursionError:  # a container that contains itself; a capture refuses it too
        given = [*args, *kwargs.values()]
    return [leaf for leaf in given if is_a(leaf, torch.Generator)]


def _run(function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], watch: Watch) -> None:
    try:
        with watched(watch):
            function(*args, **kwargs)
    except Exception as error:
        traceback = error.__traceback__
        inner = None if traceback is None else traceback.tb_next  # without this function's own frame
        text = one_line(" ".join(error_text(error).split())[:200])
        watch.report(Rule.RAISED, text, watch.places.of_traceback(inner))


@contextlib.contextmanager
def _streams(sides: Sides, watch: Watch, places: CapturePlaces) -> Iterator[None]:
    def here() -> SourceLine:
        return places.of_frame(sys._getframe(1), _run.__code__)

    if sides.real:
        with replaced(noted_calls(watch.report, here)):
            yield
        return
    streams = Streams(watch.report, here)
    with replaced([*streams.changes(), *grouped_on(sides.place)]):
        yield
    streams.end()


def _line_of(
    change: SideEffect, codes: Sequence[types.CodeType], first: types.CodeType | None, places: CapturePlaces
) -> SourceLine:
    """The line that made a change, or the function's first line."""
    words = [re.sub(r"\W", "", step.rpartition(".")[2]) for step in reversed(change.path) if not step.startswith("[")]
    found = line_that_changes(codes, words)
    if found is not None:
        return places.of_code(*found)
    return SourceLine("(no Python source)", "(no Python source)") if first is None else places.of_code(first)


def _judge_draws(
    before: Sequence[object],
    watch: Watch,
    codes: Sequence[types.CodeType],
    first: types.CodeType | None,
    places: CapturePlaces,
) -> None:
    """Report random numbers of Python and NumPy: a graph draws them only once."""
    for name, earlier, now in zip(("Python", "NumPy"), before, random_state(), strict=True):
        if earlier != now and earlier is not None:
            found = line_that_uses(codes, "random") or (None if first is None else (first, None))
            place = SourceLine("(no Python source)", "(no Python source)") if found is None else places.of_code(*found)
            watch.report(Rule.GENERATOR, f"numbers of {name}'s generator, drawn during the capture only", place)
