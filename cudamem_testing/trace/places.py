"""Places: where in the program an event happened.

The operator that the data flow shows, the modules around it, the annotations around it, and the line of the project
that led there. A backward function has no modules around it: the profiler ties it to the operator of the forward pass
that made it by a number, so its place is that of this operator. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from functools import cached_property

from cudamem_testing.model.stacks import Locator, Stack
from cudamem_testing.trace.flow import MEMORY
from cudamem_testing.trace.graph import DataFlow, short_name
from cudamem_testing.trace.records import Operator, PythonCall, Scope, ScopeKind

_OPTIMIZER = re.compile(r"Optimizer\.\w+#(.+)")
ENGINE = "autograd::engine::"
"""The engine's name for its steps around the backward functions, which repeat the numbers."""
PATH = " > "
"""Between the modules of a path."""


class EventPlaces:
    """The places of the events of one data flow, each found once.

    Args:
        flow: the data flow.
        root: the project's folder, whose files are its own lines; the working folder by default.
    """

    def __init__(self, flow: DataFlow, root: str | None = None) -> None:
        self._flow = flow
        self._trace = flow.trace
        self._locator = Locator(os.getcwd() if root is None else root)
        self._stacks: dict[int, Stack] = {}

    def operator(self, event: int) -> str:
        """The operator or backward function around an event; empty for what Python did between them."""
        place = bisect_right(self._starts, event) - 1
        if place < 0:
            return ""
        node = self._flow.nodes[self._order[place]]
        inside = event < self._trace.stops[node.event]
        return short_name(node.name) if inside and node.name != MEMORY else ""

    def modules(self, event: int) -> str:
        """The module around an event by its path, ``model.h.0.attn``; empty outside of any.

        Modules without a name are shown by their classes, from the outside in: ``Sequential > Linear``.
        """
        scope: Scope = self._trace.events[event].scope
        if scope.within(ScopeKind.MODULE) is None and scope.backward:
            made_in = self._author(scope)
            return "" if made_in is None else self._path(made_in)
        return self._path(scope)

    def _path(self, scope: Scope) -> str:
        parts: list[str] = []
        for one in scope.chain():
            if one.kind is ScopeKind.MODULE:
                call = self._trace.events[one.event]
                owner = call.owner if isinstance(call, PythonCall) else None
                path = None if owner is None else self._trace.modules.get(owner.identity)
                parts.append(one.name if path is None else path)
                if path is not None:
                    break
        return PATH.join(parts[::-1])

    def regions(self, event: int) -> tuple[str, ...]:
        """The names of the annotations around an event, from the outside in."""
        found = self._trace.events[event]
        return tuple(region_name(region.name) for region in self._trace.regions_at(found.start, found.thread))

    def stack(self, event: int) -> Stack:
        """The Python calls around an event, innermost first; empty on the threads of autograd."""
        caller = self._trace.parents[event]
        known = self._stacks.get(caller)
        if known is None:
            known = self._stacks[caller] = self._locator.stack(self._trace.stack(event))
        return known

    @cached_property
    def _order(self) -> list[int]:
        """The nodes in order of their events; the replay has them in order of time."""
        return sorted(range(len(self._flow.nodes)), key=lambda place: self._flow.nodes[place].event)

    @cached_property
    def _starts(self) -> list[int]:
        return [self._flow.nodes[place].event for place in self._order]

    @cached_property
    def _authors(self) -> dict[int, Scope]:
        """The scope in which the backward function of a number was made: of the last operator that shows the number."""
        return {
            event.sequence: event.scope
            for event in self._trace.events
            if isinstance(event, Operator)
            and event.sequence >= 0
            and not event.scope.backward
            and not event.name.startswith(ENGINE)
        }

    def _author(self, scope: Scope) -> Scope | None:
        backward = scope.within(ScopeKind.BACKWARD)
        if backward is None:
            return None
        call = self._trace.events[backward.event]
        return self._authors.get(call.sequence) if isinstance(call, Operator) else None


def region_name(name: str) -> str:
    """An annotation as texts show it: ``Optimizer.step#Adam.step`` is ``Adam.step``."""
    match = _OPTIMIZER.fullmatch(name)
    return name if match is None else match[1]
