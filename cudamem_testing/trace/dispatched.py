"""The calls of the dispatcher in a trace: the rows of torch's own tests of categories.

The profiler records what an operator reads and not what it returns, so a mode notes both, as addresses, while the
profiler records. The storage at an address is the last one that was made there before. Torch's tests know a tensor only
if an operator took it at some time, as the same object at the same memory. A tensor that no operator took, such as the
copy that ``detach`` makes of a gradient, is ``???`` there and has no storage here. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cudamem_testing.torch_api.profiler import EventTypes, event_types
from cudamem_testing.trace.records import Allocation, Dispatched, Storage, Trace

if TYPE_CHECKING:
    from cudamem_testing.torch_api.calls import Call, TensorAddress

Sighting = tuple[int, int, int]
"""Address of a tensor's object and of its memory, and the profiler's number of the allocation."""


def sightings(roots: Sequence[Any], types: EventTypes | None = None) -> frozenset[Sighting]:
    """The tensors that operators took, from the profiler's events."""
    types = types or event_types()
    operator, tensor = types.operator, types.tensor
    found: set[Sighting] = set()
    stack = [*roots]
    while stack:
        event = stack.pop()
        stack += event.children
        fields: Any = event.extra_fields
        kind = type(fields)
        if kind is operator:
            for value in fields.inputs:
                tensors: list[Any] = [
                    item for item in (value if isinstance(value, list) else (value,)) if type(item) is tensor
                ]
                found.update(
                    (item.impl_ptr, item.storage_data_ptr, item.allocation_id)
                    for item in tensors
                    if item.allocation_id is not None
                )
    return frozenset(found)


def dispatched(trace: Trace, calls: Iterable[Call], seen: frozenset[Sighting]) -> Iterator[Dispatched]:
    """The calls with the storages of their tensors."""
    storage_at = _by_address(trace)

    def known(tensor: TensorAddress, time: int) -> Storage | None:
        storage = storage_at(tensor[1], time)
        return storage if storage is not None and (*tensor, storage.allocation) in seen else None

    for call in calls:
        yield Dispatched(
            call.name,
            call.called,
            tuple(known(tensor, call.called) for tensor in call.inputs),
            tuple(known(tensor, call.returned) for tensor in call.outputs),
        )


def _by_address(trace: Trace) -> Callable[[int, int], Storage | None]:
    """Finds the storage at an address at some time."""
    made = {event.storage: event.start for event in trace.events if isinstance(event, Allocation) and event.nbytes > 0}
    places: dict[int, list[tuple[int, int, Storage]]] = {}
    for storage in trace.storages:
        places.setdefault(storage.pointer, []).append((made.get(storage, 0), storage.index, storage))
    for place in places.values():
        place.sort()

    def storage_at(pointer: int, time: int) -> Storage | None:
        place = places.get(pointer, [])
        index = bisect_right(place, time, key=lambda entry: entry[0]) - 1
        return place[index][2] if index >= 0 else None

    return storage_at
