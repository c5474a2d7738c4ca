"""Compares the replays of a graph with calls of its function, one after the other from the same state.

For each set of inputs the function is called ``replays`` times, then the graph is replayed as often. Before each, what
both change is restored: the outside tensors that the graph writes and the random generator, so that dropout masks and
running averages must agree call by call. Between replays the static inputs, the outputs and the free memory of the pool
are overwritten, so that memory which a replay does not write, or reads before writing it, shows.

The values written there must be safe to read: a kernel that gets an index out of bounds crashes the CUDA
context of the whole process. So only the graph's own memory is overwritten: static inputs, which the next replay's
inputs overwrite before it starts, and outputs in the graph's pool. Integers become 0, the one index that is valid in
every tensor that is not empty. The pool's free memory has no type: it becomes NaN as floating point and -1 as an
integer, which indexes the last element. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cudamem_testing.graphs.backend import Backend, Graph
from cudamem_testing.graphs.differs import copied, differs
from cudamem_testing.graphs.inputs import StaticInputs
from cudamem_testing.graphs.operators import POISON
from cudamem_testing.graphs.pools import pool_at
from cudamem_testing.graphs.sides import storage_reference
from cudamem_testing.model.pools import Pool
from cudamem_testing.model.sizes import count
from cudamem_testing.safe_access import is_a
from cudamem_testing.torch_api.graphs import storage_bytes
from cudamem_testing.torch_api.trees import flatten

#: Differences that one message names.
MOST = 5
STALE = "NaN where the function has a number: memory that the replay does not write, or reads before it is written"
SAME_DRAWS = "every replay draws the same numbers, the function does not: its random numbers are frozen in the graph"


class Captured(Protocol):
    """What the comparison needs from a captured function (graphs/captured.py)."""

    backend: Backend
    graph: Graph
    function: Callable[..., Any]
    inputs: StaticInputs
    outputs: Any
    pool: Pool

    def written(self) -> list[StorageWeakRef]:
        """Storages from outside that the graph writes."""

    def outside(self, reference: StorageWeakRef) -> bool:
        """Whether a storage existed before the capture."""

    def output_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """The tensors of the outputs, by name."""


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """One value that differs: in which set of inputs and which replay (from 1), where, and how."""

    inputs: int
    replay: int
    name: str
    text: str
    hint: str = ""

    def __str__(self) -> str:
        lines = [f"inputs {self.inputs}, replay {self.replay}: {self.name}: {self.text}"]
        return "\n".join((*lines, *((f"   {self.hint}",) if self.hint else ())))


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """Everything that differed. ``poisoned`` is how many bytes of the pool's free memory were overwritten each time."""

    differences: tuple[ValueDifference, ...] = ()
    replays: int = 0
    poisoned: int = 0

    def __str__(self) -> str:
        if not self.differences:
            return f"{count(self.replays, 'replay')} equal to eager"
        more = len(self.differences) - MOST
        values, differing = (
            count(len(self.differences), "value"),
            len({(one.inputs, one.replay) for one in self.differences}),
        )
        lines = [f"the graph differs from eager in {values}, in {differing} of {count(self.replays, 'replay')}:"]
        lines += [str(difference) for difference in self.differences[:MOST]]
        return "\n".join((*lines, *((f"... and {more} more",) if more > 0 else ())))


class State:
    """What a call changes besides its outputs: written tensors from outside, and the random generator."""

    def __init__(self, captured: Captured) -> None:
        self._backend = captured.backend
        self._kept = [(reference, _bytes(reference).clone()) for reference in captured.written()]
        self._random = self._backend.random_state()

    def restore(self) -> None:
        """Restore everything."""
        for reference, kept in self._kept:
            _bytes(reference).copy_(kept)
        self._backend.set_random_state(self._random)

    def now(self) -> list[torch.Tensor]:
        """Copies of the tensors' current bytes."""
        return [_bytes(reference).clone() for reference, _ in self._kept]


@dataclass(frozen=True)
class Values:
    """Results of one call: its outputs, its inputs afterwards, the state afterwards."""

    outputs: tuple[tuple[str, Any], ...]
    inputs: tuple[tuple[str, Any], ...]
    state: tuple[torch.Tensor, ...]

    def named(self) -> Iterator[tuple[str, Any]]:
        """Everything with a name."""
        yield from ((f"output{name}", value) for name, value in self.outputs)
        yield from ((f"input {name} afterwards", value) for name, value in self.inputs)
        yield from ((f"outside tensor {place} afterwards", value) for place, value in enumerate(self.state))


def compare(
    captured: Captured,
    inputs: Sequence[tuple[Any, ...]],
    rtol: float | None = None,
    atol: float | None = None,
    replays: int = 3,
) -> ReplayComparison:
    """Compare a graph with its function for each set of positional inputs."""
    differences: list[ValueDifference] = []
    poisoned, kwargs = 0, captured.inputs.fresh(*captured.inputs.arguments)[1]
    sets = [captured.inputs.fresh(args, kwargs)[0] for args in inputs]  # some may be the static inputs themselves
    state, own = State(captured), _own(captured)
    try:
        for args in sets[:1]:  # a capture runs nothing: tensors that it created get their values from a replay
            _replayed(captured, args, kwargs, state)
        for number, args in enumerate(sets, 1):
            state.restore()
            eager = [_called(captured, args, kwargs, state) for _ in range(replays)]
            state.restore()
            replayed = []
            for _ in range(replays):
                poisoned = _poison(captured, own)
                replayed.append(_replayed(captured, args, kwargs, state))
            frozen = _repeats(replayed) and not _repeats(eager)
            for at, (wanted, got) in enumerate(zip(eager, replayed, strict=True), 1):
                for (name, value), (_, actual) in zip(wanted.named(), got.named(), strict=False):
                    text = differs(actual, value, rtol, atol)
                    if text:
                        draws = SAME_DRAWS if frozen and _tensor(value) else ""
                        hint = STALE if _stale(actual, value) else draws
                        differences.append(ValueDifference(number, at, name, text, hint))
    finally:
        state.restore()
    return ReplayComparison(tuple(differences), replays * len(inputs), poisoned)


def _called(captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any], state: State) -> Values:
    fresh_args, fresh_kwargs = captured.inputs.fresh(args, kwargs)
    outputs = captured.function(*fresh_args, **fresh_kwargs)
    after = [(name, leaf) for name, leaf in captured.inputs.named(fresh_args, fresh_kwargs) if _tensor(leaf)]
    return _values(outputs, after, state)


def _replayed(captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any], state: State) -> Values:
    captured.inputs.copy_in(args, kwargs)
    captured.backend.replay(captured.graph)
    captured.backend.synchronize()
    after = [(name, leaf) for name, leaf in captured.inputs.leaves if _tensor(leaf)]
    return _values(captured.outputs, after, state)


def _values(outputs: Any, inputs: list[tuple[str, Any]], state: State) -> Values:
    found, _ = flatten(outputs)
    return Values(
        tuple((name, copied(leaf)) for name, leaf in found),
        tuple((name, copied(leaf)) for name, leaf in inputs),
        tuple(state.now()),
    )


def _own(captured: Captured) -> dict[StorageWeakRef, int]:
    """Static inputs, and outputs created in the graph's pool, each with the byte to overwrite it with."""
    recording = captured.backend.recording()
    inputs = [tensor for _, tensor in captured.inputs.tensors]
    own = {reference: tensor for tensor in inputs if (reference := storage_reference(tensor)) is not None}
    for _, tensor in captured.output_tensors():
        reference = storage_reference(tensor)
        if reference is None or reference in own or captured.outside(reference):
            continue
        if pool_at(recording, tensor.untyped_storage().data_ptr()) == captured.pool:
            own[reference] = tensor
    return {reference: _byte(tensor.dtype) for reference, tensor in own.items()}


def _byte(dtype: torch.dtype) -> int:
    """NaN if the type has it, otherwise a value that is safe as an index and as a bool."""
    if dtype.is_floating_point or dtype.is_complex:
        return POISON
    return 1 if dtype is torch.bool else 0


def _poison(captured: Captured, own: Mapping[StorageWeakRef, int]) -> int:
    """Overwrite what the next replay must write itself."""
    for reference, byte in own.items():
        _bytes(reference).fill_(byte)
    return captured.backend.poison_free(captured.pool)


def _repeats(values: Sequence[Values]) -> bool:
    """Whether several calls gave the same outputs."""
    first = dict(values[0].outputs)
    return len(values) > 1 and all(
        not differs(value, first.get(name), 0, 0) for one in values[1:] for name, value in one.outputs if _tensor(value)
    )


def _stale(actual: Any, expected: Any) -> bool:
    if not _tensor(actual) or not actual.is_floating_point() or not _tensor(expected):
        return False
    return actual.shape == expected.shape and bool((actual.isnan() & ~expected.isnan()).any())


def _tensor(leaf: object) -> bool:
    return is_a(leaf, torch.Tensor)


def _bytes(reference: StorageWeakRef) -> torch.Tensor:
    found = storage_bytes(reference)
    return torch.empty(0, dtype=torch.uint8) if found is None else found
