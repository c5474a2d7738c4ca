"""Categories: what each version of each storage is for.

The profiler does not record what a tensor is for. Two things show it: what the Python tracer saw of modules and
optimizers, and the shape of the data flow. Each pass below adds what it alone can know, the most certain first;
:data:`PASSES` is their order, and with it the precedence: **the first pass that names a content wins, except that a
category of a whole tensor (gradient, parameter, optimizer state) overrides earlier ones.** Such a tensor keeps its
category: a parameter stays one through every step.

The scheme is that of torch's own ``_memory_profiler`` and gives its results. What is new is the cost: contents are
numbered (:mod:`.contents`), a category is a bit in a table, what torch repeats until nothing changes is one search.

==================  ===================================================================================
GRADIENT            seen as a ``.grad``, by the engine, a module or an optimizer
TEMPORARY           made and dropped inside one operator
PARAMETER           seen in a module or optimizer; or updated with gradients and used in the forward pass
INPUT               contributes to a gradient or meets a parameter, and depends on neither
ACTIVATION          computed from inputs and parameters outside of the backward pass
OPTIMIZER_STATE     seen in an optimizer
AUTOGRAD_DETAIL     made by the backward pass, and none of the above
==================  ===================================================================================

Everything else is unknown (``None``), and so is everything in a trace without a gradient, a module or an optimizer.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.show.notebook import InNotebook
from cudamem_testing.trace.contents import MOST_VERSIONS, Contents, find_contents
from cudamem_testing.trace.flow import MEMORY
from cudamem_testing.trace.gradients import find_gradients, find_owners
from cudamem_testing.trace.graph import DataFlow
from cudamem_testing.trace.records import Operator, Signature, Storage, Trace


class Category(Enum):
    """What memory is for. The values are bits of the passes' table."""

    PARAMETER = 2
    OPTIMIZER_STATE = 4
    INPUT = 8
    TEMPORARY = 16
    ACTIVATION = 32
    GRADIENT = 64
    AUTOGRAD_DETAIL = 128

    def __str__(self) -> str:
        return self.name


UNKNOWN = "unknown"
"""The word for an unknown category in texts and pictures."""
COMPILED = (
    "compiled code ran ({names}): it shows no modules, nor all operators, so what it reads and computes is unknown "
    "unless an optimizer or a gradient shows it"
)
_COMPILED_NAMES = ("Torch-Compiled Region", "CompiledFunction")
"""What the annotations around compiled code begin with."""

_NONE, _HIDDEN = 1, 256
"""Not known yet; cannot be known."""
_PARAMETER, _STATE, _INPUT, _TEMPORARY, _ACTIVATION, _GRADIENT, _DETAIL = (category.value for category in Category)
BY_BIT: dict[int, Category | None] = {_NONE: None, _HIDDEN: None, **{category.value: category for category in Category}}
"""The category of a bit."""


@dataclass(frozen=True, slots=True, eq=False)
class Categories(InNotebook):
    """The category of every version of every storage of a data flow."""

    flow: DataFlow
    contents: Contents = field(repr=False)
    bits: tuple[int, ...] = field(repr=False)
    """The category of each content."""
    whole: dict[int, int] = field(repr=False)
    """Of whole tensors."""
    notes: tuple[str, ...] = ()
    """What cannot be known."""

    def of(self, storage: Storage, version: int = 0) -> Category | None:
        """The category of a version; ``None`` where it is unknown."""
        number = self.contents.numbers.get(storage.index * MOST_VERSIONS + version)
        if number is None:
            return BY_BIT[self.whole.get(self.contents.tensor_of[storage.index], _NONE)]
        return BY_BIT[self.bits[number]]

    def __getitem__(self, label: str) -> Category | None:
        """The category of ``T3(v1)``, or of the last version of ``T3`` or of a name.

        Raises:
            KeyError: if there is no such name.
        """
        storage, version = self.flow.resolve(label)
        return self.of(storage, self.last_version(storage) if version is None else version)

    def last_version(self, storage: Storage) -> int:
        """The last version that a node has of a storage."""
        version = 0
        while self.contents.number(storage, version + 1) >= 0:
            version += 1
        return version

    def snapshot(self) -> dict[tuple[Storage, int], Category | None]:
        """Every version that a node has, and tensors that only a module or an optimizer showed, by storage."""
        found: dict[tuple[Storage, int], Category | None] = {}
        storages = self.flow.trace.storages
        for key, number in self.contents.numbers.items():
            index, version = divmod(key, MOST_VERSIONS)
            found[storages[index], version] = BY_BIT[self.bits[number]]
        for storage in storages:
            if (storage, 0) not in found and (bit := self.whole.get(self.contents.tensor_of[storage.index])):
                found[storage, 0] = BY_BIT[bit]
        return dict(sorted(found.items(), key=lambda item: (item[0][0].index, item[0][1])))

    def text(self, **options: Any) -> str:
        """Operators with the categories of what they take and leave; options as in ``render_categories``."""
        from .category_text import render_categories

        return render_categories(self, **options)

    def __str__(self) -> str:
        return self.text()


class Board:
    """What the passes know so far: a bit for each content, and their input."""

    def __init__(self, flow: DataFlow, witnesses: bool = True) -> None:
        self.trace = flow.trace
        self.witnesses = witnesses
        self.nodes = flow.nodes
        self.contents = find_contents(flow.nodes, flow.trace)
        self.bits = [_NONE] * len(self.contents.tensors)
        self.whole: dict[int, int] = {}
        self.owners = find_owners(flow.trace)
        self.compiled = find_compiled(flow.trace)
        self._by_tensor: dict[int, list[int]] = {}
        for number, tensor in enumerate(self.contents.tensors):
            if tensor in self._by_tensor:
                self._by_tensor[tensor].append(number)
            else:
                self._by_tensor[tensor] = [number]

    @cached_property
    def dependent(self) -> set[int]:
        """What :func:`depends_on_gradient` finds from the gradients and parameters that were seen."""
        return depends_on_gradient(self)

    def name_tensors(self, tensors: Iterable[int], bit: int) -> None:
        """Set the category of whole tensors; it overrides everything."""
        for tensor in tensors:
            self.whole[tensor] = bit
            for number in self._by_tensor.get(tensor, ()):
                self.bits[number] = bit

    def name_contents(self, numbers: Iterable[int], bit: int) -> None:
        """Set the category of contents that have none yet."""
        bits = self.bits
        for number in numbers:
            if bits[number] == _NONE:
                bits[number] = bit

    def tensors(self, storages: Iterable[Storage | None]) -> Iterator[int]:
        """The tensors of storages."""
        return (self.contents.tensor_of[storage.index] for storage in storages if storage is not None)


def find_gradients_and_temporaries(board: Board) -> None:
    """The certain cases: gradients that were seen, and temporaries, which live inside one node."""
    gradients = find_gradients(board.trace, board.owners)
    board.name_tensors(board.tensors(gradient.storage for gradient in gradients), _GRADIENT)
    if board.witnesses:
        board.name_tensors(board.tensors(board.trace.gradients), _GRADIENT)
    board.name_contents(board.contents.intermediates, _TEMPORARY)


def find_seen_parameters(board: Board) -> None:
    """Parameters that the tracer saw in a module or an optimizer."""
    for _, owner in board.owners:
        board.name_tensors(board.tensors(parameter.storage for parameter in owner.parameters), _PARAMETER)


def hide_compiled(board: Board) -> None:
    """Later passes name what compiled code reads, and all that is computed from it, only as whole tensors.

    It calls the modules' code without the modules, and kernels of its own without the dispatcher. A parameter that
    nothing else shows looks like an input there.
    """
    spans = [(call.start, call.end) for call in board.compiled]
    if not spans:
        return
    bits, hidden = board.bits, bytearray(len(board.bits))
    nodes = (node for node in board.nodes if node.name is not MEMORY)
    for node, (reads, writes, backward) in zip(nodes, board.contents.work, strict=True):
        compiled = any(start <= node.start < end for start, end in spans)
        if compiled or any(hidden[number] for number in reads):
            for number in (reads if compiled else ()) + writes:
                if bits[number] == _NONE:
                    hidden[number] = 1
                    bits[number] = _NONE if backward else _HIDDEN  # what the backward pass makes is known as such


def find_inputs(board: Board) -> None:
    """What contributes to the model's computation and does not come from it.

    In a training loop nearly everything depends on a gradient sooner or later: parameters through their updates,
    optimizer state with them, activations through the parameters. Tensors that never do come from outside. A tensor
    depends on a gradient if any of its versions does: the first step reads parameters that no gradient has changed
    yet, and they are not inputs.

    Of the other tensors, only those count that are used with a parameter or a gradient, directly or through results.
    Those that the backward pass made are details of autograd.
    """
    dependent = board.dependent
    contributes = bytearray(bit in (_GRADIENT, _PARAMETER) for bit in board.bits)
    made_backward: set[int] = set()
    for reads, writes, backward in reversed(board.contents.work):
        touched = reads + writes
        for number in touched:
            if contributes[number]:
                for one in touched:
                    contributes[one] = 1
                break
        if backward:
            made_backward.update(writes)
    tensors = board.contents.tensors
    board.name_contents(
        (
            number
            for number, contributing in enumerate(contributes)
            if contributing and number not in made_backward and tensors[number] not in dependent
        ),
        _INPUT,
    )


def find_updated_parameters(board: Board) -> None:
    """Parameters that no module or optimizer showed, such as tensors that are updated by hand.

    A parameter is used with an input, outside of the backward pass, before any gradient shows up; it contributes to a
    gradient; and it depends on one, as it is updated. Momentum lacks the first, the mean of a batch norm the last.
    """
    bits, work = board.bits, board.contents.work
    forward = bytearray(bit == _INPUT for bit in bits)
    candidates: set[int] = set()
    for reads, writes, backward in work:
        if backward:
            continue
        meets_input = False
        for number in reads:
            if bits[number] == _GRADIENT:
                break
            meets_input = meets_input or bool(forward[number])
        else:
            if meets_input and not any(bits[number] == _GRADIENT for number in writes):
                for number in writes:
                    forward[number] = 1
                candidates.update(number for number in reads if not forward[number])
    if not candidates:
        return
    used = bytearray(bit == _GRADIENT for bit in bits)
    taken = bytearray(len(bits))
    for reads, writes, _ in reversed(work):
        for number in writes:
            if used[number]:
                for one in reads:
                    used[one] = taken[one] = 1
                break
    tensors = board.contents.tensors
    found = {tensors[number] for number in candidates if taken[number]}
    board.name_tensors(found & board.dependent, _PARAMETER)


def find_activations(board: Board) -> None:
    """Search the forward pass from the inputs for what is computed from inputs, activations and parameters alone."""
    bits = board.bits
    required = _INPUT | _ACTIVATION
    allowed = required | _PARAMETER | _TEMPORARY
    for reads, writes, backward in board.contents.work:
        if backward or not writes:
            continue
        seen = 0
        for number in reads:
            seen |= bits[number]
        if seen & required and not seen & ~allowed:
            for number in writes:
                if bits[number] == _NONE:
                    bits[number] = _ACTIVATION


def find_optimizer_state(board: Board) -> None:
    """State that the tracer saw in an optimizer."""
    for _, owner in board.owners:
        for parameter in owner.parameters:
            board.name_tensors(board.tensors(storage for _, storage in parameter.state), _STATE)
    if board.witnesses:
        board.name_tensors(board.tensors(board.trace.states), _STATE)


def find_autograd_detail(board: Board) -> None:
    """What else the backward pass writes, except tensors whose category is known."""
    bits, before = board.bits, board.contents.before
    for _, writes, backward in board.contents.work:
        if backward:
            for number in writes:
                if bits[number] == _NONE and (before[number] < 0 or bits[before[number]] & (_NONE | _DETAIL)):
                    bits[number] = _DETAIL


PASSES: tuple[Callable[[Board], None], ...] = (
    find_gradients_and_temporaries,
    find_seen_parameters,
    hide_compiled,
    find_inputs,
    find_updated_parameters,
    find_activations,
    find_optimizer_state,
    find_autograd_detail,
)
"""In the order in which they run."""


def depends_on_gradient(board: Board) -> set[int]:
    """Tensors of which some version depends, or will depend, on a gradient or a parameter.

    A search from gradients and parameters along the nodes. The graph of tensors, unlike that of versions, has cycles,
    so one pass in the order of the nodes is not enough.
    """
    tensors, bits = board.contents.tensors, board.bits
    readers: dict[int, list[tuple[int, ...]]] = {}
    found: set[int] = set()
    for reads, writes, _ in board.contents.work:
        for number in reads:
            tensor = tensors[number]
            if tensor in readers:
                readers[tensor].append(writes)
            else:
                readers[tensor] = [writes]
            if bits[number] & (_GRADIENT | _PARAMETER):
                found.add(tensor)
    pending = deque(found)
    while pending:
        for writes in readers.get(pending.popleft(), ()):
            for number in writes:
                tensor = tensors[number]
                if tensor not in found:
                    found.add(tensor)
                    pending.append(tensor)
    return found


def categories(flow: DataFlow, *, witnesses: bool = True) -> Categories:
    """The categories of a data flow.

    Args:
        flow: the data flow.
        witnesses: use what was read from the objects themselves; without it the results are those of torch's analysis.
    """
    with CollectorPaused():
        board = Board(flow, witnesses)
        for find in PASSES:
            find(board)
    return Categories(flow, board.contents, tuple(board.bits), board.whole, _notes(board.compiled))


def find_compiled(trace: Trace) -> list[Operator]:
    """The annotations around compiled code of the forward pass."""
    known: dict[Signature, bool] = {}
    found = []
    for event in trace.events:
        if type(event) is Operator:
            signature = event.signature
            if signature not in known:
                known[signature] = signature.name.startswith(_COMPILED_NAMES)
            if known[signature] and not event.scope.backward:
                found.append(event)
    return found


def _notes(compiled: Iterable[Operator]) -> tuple[str, ...]:
    names = dict.fromkeys(call.name for call in compiled)
    return (COMPILED.format(names=", ".join(names)),) if names else ()
