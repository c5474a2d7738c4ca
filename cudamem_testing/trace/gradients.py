"""Finds the storages that were a ``.grad``, from three sources, none of which is complete.

* **The autograd engine.** ``AccumulateGrad`` is the node that stores a gradient. It detaches a new gradient, or adds to
  an existing one; either way the first operator inside takes the gradient as its first argument. The profile does not
  show whose gradient it is.
* **Modules.** When a module is called, the profiler's Python tracer notes its parameters and their gradients.
* **Optimizers.** At the end of a step the tracer notes parameters, gradients and state.

The tracer reads each object *once* and repeats in every later call what it saw in the first. With
``zero_grad(set_to_none=True)`` the gradients of the second step are other tensors than those of the first, and what the
tracer repeats is stale: its memory is freed, or used for something else. So a sighting here belongs to the first call
of its owner, and :func:`held` returns what is still a gradient when the trace ends. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

from cudamem_testing.trace.records import Allocation, Operator, Owner, PythonCall, Storage, Trace

Witness: TypeAlias = Literal["operator", "module", "optimizer"]

ACCUMULATE = "torch::autograd::AccumulateGrad"
_FIRST_INSIDE = ("aten::detach", "aten::add_")


class Gradient(NamedTuple):
    """A storage that was a gradient at an event."""

    storage: Storage
    parameter: Storage | None
    """Whose gradient; ``None`` if the source does not show it."""
    event: int
    witness: Witness


def find_owners(trace: Trace) -> list[tuple[int, Owner]]:
    """Every module and optimizer, with the event of its first call.

    The profiler gives storages to one record of each object, not always to the first: the last record counts, which
    is the one that has them if any has.
    """
    first: dict[int, int] = {}
    owners: dict[int, Owner] = {}
    for index, event in enumerate(trace.events):
        if type(event) is PythonCall and event.owner is not None:
            identity = event.owner.identity
            first.setdefault(identity, index)
            owners[identity] = event.owner
    return [(first[identity], owner) for identity, owner in owners.items()]


def find_gradients(trace: Trace, owners: Iterable[tuple[int, Owner]] | None = None) -> tuple[Gradient, ...]:
    """Every gradient that a witness saw, in order of the events: once for each witness and parameter."""
    found: dict[tuple[Storage, Storage | None, Witness], Gradient] = {}
    for index, owner in find_owners(trace) if owners is None else owners:
        witness: Witness = "optimizer" if owner.is_optimizer else "module"
        for _, parameter, gradient, _ in owner.parameters:
            if gradient is not None:
                found.setdefault((gradient, parameter, witness), Gradient(gradient, parameter, index, witness))
    for index, event in enumerate(trace.events):
        if type(event) is Operator and event.signature.name == ACCUMULATE and event.signature.backward:
            gradient = _accumulated(trace, index)
            if gradient is not None:
                found.setdefault((gradient, None, "operator"), Gradient(gradient, None, index, "operator"))
    return tuple(sorted(found.values(), key=lambda sighting: sighting.event))


def held(gradients: Iterable[Gradient], trace: Trace) -> tuple[Gradient, ...]:
    """Those that are still gradients when the trace ends: not freed, and not replaced by a later one.

    A gradient from before the recording may be freed without a recorded event on the CPU; a later gradient of its
    parameter shows that.
    """
    freed = {event.storage for event in trace.events if type(event) is Allocation and event.nbytes < 0}
    kept = [gradient for gradient in gradients if gradient.storage not in freed]
    last = {gradient.parameter: gradient.storage for gradient in kept}
    return tuple(one for one in kept if one.parameter is None or last[one.parameter] is one.storage)


def _accumulated(trace: Trace, index: int) -> Storage | None:
    """The gradient that an ``AccumulateGrad`` handled; ``None`` when no known operator is inside it."""
    inside = index + 1
    if inside >= trace.stops[index]:
        return None
    event = trace.events[inside]
    if not isinstance(event, Operator) or event.name not in _FIRST_INSIDE or event.signature.places[:1] != (0,):
        return None
    first = event.arguments[0]
    return first if isinstance(first, Storage) else None
