"""State that a user names: parameters, gradients, optimizers, caches; and whether a run changed all of it or a part.

Importing this module imports torch. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

import torch

from cudamem_testing.model.recovery import HalfChanged, WrittenInPart
from cudamem_testing.safe_access import instance_dict, is_a, is_one_of, items, slots
from cudamem_testing.torch_api.tensors import writes_in_place

#: How deep attributes and containers of other objects are read, and how many values at most.
DEPTH, MOST = 6, 20_000
SHOWN = 3
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class StateChange(Enum):
    """What a run did to one value."""

    NONE = "none"
    VALUE = "value"
    GONE = "gone"
    ABSENT = "absent"


class Copied:
    """A tensor's values, and how often it had been written in place when they were copied."""

    __slots__ = ("original", "values", "writes")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.values = tensor.detach().clone()
        self.original = id(tensor)
        self.writes = writes_in_place(tensor)


#: Copies of values by name.
Snapshot = Mapping[str, object]


class NamedState:
    """The values of objects by name; each read finds values that were added or replaced meanwhile."""

    def __init__(self, objects: Mapping[str, object]) -> None:
        self._objects = objects
        self.values_unknown = False
        """Whether a tensor's values could not be compared: then one that was written in place counts as changed."""
        self._parameters = {
            id(parameter): f"{name}.{inner}"
            for name, one in objects.items()
            if is_a(one, torch.nn.Module)
            for inner, parameter in one.named_parameters(remove_duplicate=True)
        }

    def read(self) -> dict[str, object]:
        """A copy of each value."""
        with torch.no_grad():
            return {name: _copied(value) for name, value in self.values()}

    def changes(self, before: Snapshot) -> dict[str, StateChange]:
        """What happened to each value since a read."""
        now = dict(self.values())
        with torch.no_grad():
            names = (*now, *(before.keys() - now.keys()))
            return {name: self._change(before.get(name), now.get(name)) for name in names}

    def _change(self, before: object, now: object) -> StateChange:
        if now is None:
            return StateChange.ABSENT if before is None else StateChange.GONE
        if not isinstance(before, Copied) or not is_a(now, torch.Tensor):
            return StateChange.NONE if type(before) is type(now) and before == now else StateChange.VALUE
        try:
            return StateChange.NONE if _is_equal(before.values, now) else StateChange.VALUE
        except NotImplementedError:  # a simulated card without values
            self.values_unknown = True
            return (
                StateChange.NONE
                if (before.original, before.writes) == (id(now), writes_in_place(now))
                else StateChange.VALUE
            )

    def writes(self, before: Snapshot) -> dict[str, int]:
        """How often each tensor was written in place since a read, where that is known."""
        found = {}
        for name, value in self.values():
            then, now = before.get(name), writes_in_place(value) if is_a(value, torch.Tensor) else None
            if isinstance(then, Copied) and then.original == id(value) and then.writes is not None and now is not None:
                found[name] = now - then.writes
        return found

    def addresses(self) -> frozenset[int]:
        """The addresses of the storages of all its tensors."""
        return frozenset(filter(None, (_address(value) for _, value in self.values())))

    def values(self) -> Iterator[tuple[str, object]]:
        """Names and values; a parameter that an optimizer steps has the name that its module gives it."""
        seen: set[int] = set()
        for name, one in self._objects.items():
            for path, value in self._parts(name, one, DEPTH, seen):
                if len(seen) > MOST:
                    return
                yield path, value

    def _parts(self, name: str, one: object, depth: int, seen: set[int]) -> Iterator[tuple[str, object]]:
        if is_one_of(one, *_PLAIN):
            yield name, one
            return
        if id(one) in seen or depth < 0:
            return
        seen.add(id(one))
        if is_a(one, torch.Tensor):
            yield name, one
        elif is_a(one, torch.nn.Module):
            yield from ((f"{name}.{inner}", value) for inner, value in one.named_parameters())
            yield from ((f"{name}.{inner}", value) for inner, value in one.named_buffers())
        elif is_a(one, torch.optim.Optimizer):
            yield from self._of_optimizer(name, one, seen)
        else:
            for inner, value in _inside(one):
                yield from self._parts(f"{name}{inner}", value, depth - 1, seen)

    def _of_optimizer(
        self, name: str, optimizer: torch.optim.Optimizer, seen: set[int]
    ) -> Iterator[tuple[str, object]]:
        for number, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                own = f"{name}.param_groups[{number}].params[{place}]"
                known = self._parameters.get(id(parameter))
                if known is None:
                    yield from self._parts(own, parameter, 0, seen)
                for key, value in optimizer.state.get(parameter, {}).items():
                    yield from self._parts(f"{name}.state[{known or own}].{key}", value, 1, seen)


class Gradients(NamedState):
    """The gradients of the tensors of an object, ``None`` where there is none."""

    def values(self) -> Iterator[tuple[str, object]]:
        """Names and gradients."""
        for name, value in super().values():
            if is_a(value, torch.Tensor) and value.is_leaf and value.requires_grad:
                yield f"{name}.grad", value.grad


def half_changed(
    changes: Mapping[str, StateChange], usual: Mapping[str, StateChange], *, may_go: bool = False
) -> HalfChanged | None:
    """What changed while other state did not; ``None`` if all changed, or nothing.

    ``usual`` are the changes of a run without a failure: what stays the same there counts only if it changes now. If
    values ``may_go``, all of them may be gone.
    """
    there = [name for name, change in changes.items() if change in (StateChange.NONE, StateChange.VALUE)]
    gone = [
        name
        for name, change in changes.items()
        if change is StateChange.GONE and usual.get(name) is not StateChange.GONE
    ]
    if may_go and gone:
        return _half(there, gone, missing=True) if there else None
    expected = [name for name, change in usual.items() if change in (StateChange.VALUE, StateChange.GONE)]
    changed = [name for name, change in changes.items() if change in (StateChange.VALUE, StateChange.GONE)]
    still = [name for name in expected if name not in {*changed}]
    return _half(changed, still) if changed and (still or {*changed} - {*expected}) else None


def written_in_part(writes: Mapping[str, int], usual: Mapping[str, int]) -> WrittenInPart | None:
    """What was written in place, but less often than a complete run, ``usual``, writes it.

    A fused step writes all parameters by one operator and then by the next: between them all are changed, and none as
    it should be.
    """
    partly = [name for name, done in writes.items() if 0 < done < usual.get(name, 0)]
    if not partly:
        return None
    return WrittenInPart(partly[0], writes[partly[0]], usual[partly[0]], len(partly))


def _half(changed: list[str], others: list[str], missing: bool = False) -> HalfChanged:
    return HalfChanged(tuple(changed[:SHOWN]), len(changed), tuple(others[:SHOWN]), len(others), missing)


def _inside(one: object) -> Iterator[tuple[str, object]]:
    """Items and attributes of an object, with their place in it."""
    if is_a(one, dict):
        yield from ((f"[{key!r}]" if is_one_of(key, *_PLAIN) else "[...]", value) for key, value in items(one))
    elif is_one_of(one, list, tuple):
        yield from ((f"[{place}]", value) for place, value in enumerate(one))
    else:
        yield from ((f".{name}", value) for name, value in items(instance_dict(one) or {}))
        yield from ((f".{name}", value) for name, value in slots(one))


def _address(value: object) -> int:
    """The address of a tensor's storage; 0 for anything else."""
    if not is_a(value, torch.Tensor) or value.layout is not torch.strided:
        return 0
    try:
        return value.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a fake one
        return 0


def _copied(value: object) -> object:
    return Copied(value) if is_a(value, torch.Tensor) else value


def _is_equal(before: torch.Tensor, now: torch.Tensor) -> bool:
    if (before.shape, before.dtype, before.device, before.layout) != (now.shape, now.dtype, now.device, now.layout):
        return False
    return torch.equal(before, now) or bool(((before == now) | ((before != before) & (now != now))).all())
