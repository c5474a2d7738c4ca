"""The allocations of a step, and the order in which they are tried. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cudamem_testing.model.stacks import Stack
from cudamem_testing.snapshots.record import Kind

if TYPE_CHECKING:
    from cudamem_testing.model.stacks import Locator
    from cudamem_testing.recorders.base import AllocatingCall
    from cudamem_testing.snapshots.record import Recording


@dataclass(frozen=True, slots=True)
class Request:
    """One allocation of a run: its number from 1, its bytes, the operator if known, and its stack."""

    number: int
    size: int
    stack: Stack = Stack()
    operator: str | None = None


def requests_of_record(recording: Recording, first: int, number: int) -> list[Request]:
    """The last ``number`` allocations of a record from a moment on; those whose events were dropped have no stack."""
    events = recording.events
    made = [place for place in range(first, len(events)) if events.kinds[place] == Kind.ALLOC]
    made = made[-number:] if number else []
    missing = number - len(made)
    found = [Request(place + 1, 0) for place in range(missing)]
    for place, event in enumerate(made, missing + 1):
        found.append(Request(place, events.sizes[event], recording.stacks[events.stacks[event]]))
    return found


def allocated_since(recording: Recording, first: int) -> frozenset[int]:
    """The addresses of all allocations of a record from a moment on."""
    events = recording.events
    made = (place for place in range(first, len(events)) if events.kinds[place] == Kind.ALLOC)
    return frozenset(events.addresses[place] for place in made)


def requests_of_calls(calls: Iterable[AllocatingCall], locator: Locator) -> list[Request]:
    """The operators of a run that allocated."""
    return [Request(place, call.size, locator.stack(call.frames), call.operator) for place, call in enumerate(calls, 1)]


def with_operators(requests: Sequence[Request], named: Sequence[tuple[AllocatingCall, Stack]]) -> list[Request]:
    """The same with operators, from a run that was counted by operator; each call with its stack.

    Numbers that Python passes to an operator are wrapped once more in such a run, outside the operators, so only what
    operators allocate is compared. If that differs in number, a stack with one operator names it.
    """
    if sum(call.made for call, _ in named) == len(requests):
        names = [call.operator for call, _ in named for _ in range(call.made)]
        return [replace(one, operator=name) for one, name in zip(requests, names, strict=True)]
    by_stack: dict[Stack, set[str]] = {}
    for call, stack in named:
        by_stack.setdefault(stack, set()).add(call.operator)
    found = []
    for one in requests:
        operators = by_stack.get(one.stack, set())
        found.append(replace(one, operator=min(operators)) if len(operators) == 1 else one)
    return found


def in_order(requests: Sequence[Request]) -> list[Request]:
    """The first allocation of each distinct stack, in the order of the run; then all others, the largest first."""
    seen: set[Stack] = set()
    first: list[Request] = []
    rest: list[Request] = []
    for one in requests:
        (rest if one.stack in seen else first).append(one)
        seen.add(one.stack)
    return first + sorted(rest, key=lambda one: (-one.size, one.number))


def number_of_places(requests: Iterable[Request]) -> int:
    """How many distinct stacks they have."""
    return len({one.stack for one in requests})
