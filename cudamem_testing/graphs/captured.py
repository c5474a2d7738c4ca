"""A captured graph: replays it, and asserts that replays are correct. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cudamem_testing.graphs.backend import Backend, Graph
from cudamem_testing.graphs.compare import ReplayComparison, compare
from cudamem_testing.graphs.inputs import StaticInputs
from cudamem_testing.graphs.liveness import Read, Reads, dead
from cudamem_testing.graphs.nodes import Level, LevelError, NodeList, ordered, with_operators
from cudamem_testing.graphs.outer import ExternalState, Named, roots_of
from cudamem_testing.graphs.places import CapturePlaces
from cudamem_testing.graphs.pools import Pools, judge_pool, pool_at, pools_of
from cudamem_testing.graphs.report import LintReport
from cudamem_testing.graphs.sides import storage_reference
from cudamem_testing.model.pools import Pool
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Stack
from cudamem_testing.objects.names import name_of, type_word
from cudamem_testing.records.expected.check import assert_text
from cudamem_testing.records.expected.lines import compare_lines
from cudamem_testing.safe_access import is_a
from cudamem_testing.show.notebook import InNotebook
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.torch_api.trees import flatten, mapped
from cudamem_testing.wording.limits import broken

__tracebackhide__ = hide_wrong_arguments

RESET = "this graph was reset: capture the function again"
UNCHECKED = "the capture noted no reads: capture with checks=True"


class GraphError(AssertionError):
    """A captured graph does not do what it should."""


class Captured(InNotebook):
    """A graph with its static inputs and outputs.

    ``outputs`` are the static outputs: every replay overwrites them. ``growth`` is what the capture added to its pool
    in bytes. ``notes`` say what was unusual about the capture.
    """

    def __init__(
        self,
        backend: Backend,
        graph: Graph,
        function: Callable[..., Any],
        inputs: StaticInputs,
        outputs: Any,
        reads: Reads | None,
        places: CapturePlaces,
        *,
        named: Named,
        launched: Sequence[tuple[str, int]] = (),
        growth: int = 0,
        notes: Sequence[str] = (),
        lint: LintReport | None = None,
    ) -> None:
        self.backend, self.graph, self.function = backend, graph, function
        self.inputs, self.outputs, self.lint = inputs, outputs, lint
        self.growth, self.notes = growth, tuple(notes)
        self.pool: Pool = backend.pool(graph)
        self._reads, self._places, self._launched = reads, places, launched
        self._named = named
        self._handed: list[tuple[int, str, weakref.ref[torch.Tensor], torch.Tensor]] = []
        self._replays = 0
        self.live = True
        self._replayed_dead: Stack | None = None

    def replay(self, *args: Any, **kwargs: Any) -> Any:
        """Replay with new inputs, or with the last ones if none are given; returns copies of the outputs.

        Raises:
            InputError: if the inputs do not match those of the capture.
        """
        self._run(args, kwargs)
        return mapped(lambda leaf: leaf.clone() if is_a(leaf, torch.Tensor) else leaf, self.outputs)

    __call__ = replay

    def views(self, *args: Any, **kwargs: Any) -> Any:
        """The same, but returns views of the static outputs, which the next replay overwrites."""
        self._run(args, kwargs)
        leaves, _ = flatten(self.outputs)
        names = iter([name for name, _ in leaves])

        def view(leaf: Any) -> Any:
            name = next(names)
            if not is_a(leaf, torch.Tensor):
                return leaf
            shown = leaf.detach()
            self._handed.append((self._replays, f"output{name}", weakref.ref(shown), leaf.detach().clone()))
            return shown

        return mapped(view, self.outputs)

    def reset(self) -> None:
        """Free the graph, its outputs and its memory; calling it again does nothing."""
        if self.live:
            self.outputs, self.live = None, False
            self._handed.clear()
            self.backend.reset(self.graph)

    def assert_matches_eager(
        self,
        inputs: Sequence[Any] | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        replays: int = 3,
    ) -> ReplayComparison:
        """Fail if replays and the function compute different results.

        A graph whose memory was freed is not replayed: it could read anything there, even an index that crashes
        the CUDA context. It fails as in :meth:`assert_inputs_alive`.

        Args:
            inputs: sets of positional inputs, each a tuple (or the one input); by default those of the capture.
            rtol: relative tolerance, by default that of ``torch.testing.assert_close`` for each type.
            atol: absolute tolerance.
            replays: replays of each set, compared with the same number of calls.

        Raises:
            GraphError: an ``AssertionError`` with what differs.
            ValueError: for options with which nothing would be compared.
        """
        __tracebackhide__ = True
        _refuse(replays, rtol, atol)
        self.assert_inputs_alive()
        sets = [self.inputs.fresh(*self.inputs.arguments)[0]] if inputs is None else [_tuple(one) for one in inputs]
        if not sets:
            raise ValueError("no inputs to compare for")
        found = compare(self, sets, rtol, atol, replays)
        if found.differences:
            raise GraphError(str(found))
        return found

    def assert_no_allocations(self, replays: int = 10) -> None:
        """Fail if replays allocate.

        Raises:
            GraphError: with how much.
            ValueError: when ``replays`` is not a number of replays.
        """
        __tracebackhide__ = True
        _refuse(replays)
        self._alive()
        self.backend.synchronize()
        before = self.backend.allocations()
        for _ in range(replays):
            self.backend.replay(self.graph)
        self.backend.synchronize()
        after = self.backend.allocations()
        made, segments = after.allocations - before.allocations, after.segments - before.segments
        if made or segments:
            raise GraphError(
                f"{count(replays, 'replay')} made {count(made, 'allocation')} and took {count(segments, 'segment')}: "
                f"{format_size(after.allocated - before.allocated)} more allocated, "
                f"{format_size(after.reserved - before.reserved)} more reserved"
            )

    def assert_inputs_alive(self) -> None:
        """Fail if memory that the graph reads or writes has been freed since the capture.

        Raises:
            GraphError: with the lines that allocated it, used it in the capture, freed it, and replayed without it.
        """
        __tracebackhide__ = True
        self._alive()
        gone = self.dead_reads()
        if gone:
            again = self._replayed_dead
            told = f"replayed since at {again.line}" if again is not None else "not replayed since"
            head = f"{count(len(gone), 'freed tensor')} used by the graph, {told}:"
            raise GraphError("\n".join((head, *map(str, gone))))

    def assert_params_current(self) -> None:
        """Fail if a parameter, buffer or other tensor that the graph uses has been replaced by another one.

        Raises:
            GraphError: with the names.
        """
        __tracebackhide__ = True
        self._alive()
        self._checked()
        now = self._picture().storages_by_name()
        lines = []
        for path, (reference, text) in self._named.items():
            later = now.get(path)
            if self.outside(reference) and (later is None or later[0] != reference):
                what = "is gone" if later is None else f"is another tensor now: {later[1]}"
                lines.append(f"   {''.join(path)} {what} (captured: {text})")
        if lines:
            head = f"{count(len(lines), 'tensor')} of the graph not current; replays still use the captured memory:"
            raise GraphError("\n".join((head, *lines)))

    def assert_outputs_not_overwritten(self) -> None:
        """Fail if a later replay changed an output of ``views`` that is still in use.

        Raises:
            GraphError: with the outputs.
        """
        __tracebackhide__ = True
        self._alive()
        lines = []
        for replay, name, reference, content in self._handed:
            kept = reference()
            if kept is not None and not torch.equal(_as_bytes(kept), _as_bytes(content)):
                lines.append(f"   {name} of replay {replay} was overwritten by replay {self._replays}: {name_of(kept)}")
        if lines:
            raise GraphError("\n".join(("outputs that are still in use were overwritten; copy them:", *lines)))

    def assert_static_grads(self) -> None:
        """Fail if a ``.grad`` is in the graph's pool, where the next replay overwrites it.

        Raises:
            GraphError: with the names.
        """
        __tracebackhide__ = True
        self._alive()
        recording = self.backend.recording()
        lines = []
        for name, tensor in self._leaf_tensors():
            gradient = tensor.grad
            if gradient is not None and pool_at(recording, gradient.untyped_storage().data_ptr()) == self.pool:
                lines.append(f"   {name}.grad {name_of(gradient)}")
        if lines:
            head = f"{count(len(lines), 'gradient')} in the graph's pool, which the next replay overwrites:"
            advice = "   do: give each parameter its .grad before the capture, and zero it in place"
            raise GraphError("\n".join((head, *lines, advice)))

    def assert_pool(self, limit: object) -> None:
        """Fail if the graph's pool keeps more than ``limit`` (bytes, or text such as ``"512MiB"``).

        Raises:
            GraphError: with both sizes.
            ValueError: if ``limit`` is not a size.
        """
        __tracebackhide__ = True
        breach = judge_pool(self.pools(), self.pool, limit)
        if breach is not None:
            raise GraphError(broken(breach))

    def assert_nodes(
        self, expected: str | Mapping[str, str] | None = None, level: Level = "kinds", *, edges: bool = False
    ) -> None:
        """Compare the graph's nodes with the text written at the call; see :meth:`NodeList.text`.

        Raises:
            TextMismatchError: an ``AssertionError`` with a diff.
            LevelError: if this graph does not have the level.
        """
        __tracebackhide__ = True
        assert_text(self.nodes().text(level, edges=edges), expected, depth=2, compare=compare_lines)

    @property
    def replays(self) -> int:
        """How many times it was replayed through this object."""
        return self._replays

    def nodes(self) -> NodeList:
        """The nodes of the graph, with the operators that launched them if the capture counted them."""
        self._alive()
        return ordered(with_operators(self.backend.nodes(self.graph), self._launched))

    def pools(self) -> Pools:
        """All pools of the device now."""
        return pools_of(self.backend.recording())

    def reads(self) -> tuple[Read, ...]:
        """The outside storages that the graph uses, in their current state."""
        return self._checked().reads()

    def dead_reads(self) -> tuple[Read, ...]:
        """Outside storages whose memory was freed."""
        gone = [read for read in self._checked().reads() if read.dead]
        if not gone:
            return ()
        recording = self.backend.recording()
        return dead(gone, lambda address: pool_at(recording, address) == self.pool)

    def written(self) -> list[StorageWeakRef]:
        """Live outside storages that the graph writes, except the static inputs."""
        own = {storage_reference(tensor) for _, tensor in self.inputs.tensors}
        return [reference for reference in self._checked().written() if reference not in own]

    def outside(self, reference: StorageWeakRef) -> bool:
        """Whether the graph uses a storage that was created outside it."""
        return self._checked().outside(reference)

    def output_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """The static outputs that are tensors, by name."""
        return [(f"output{name}", leaf) for name, leaf in flatten(self.outputs)[0] if is_a(leaf, torch.Tensor)]

    def _run(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._alive()
        if args or kwargs:
            self.inputs.copy_in(args, kwargs)
        if self._reads is not None and self._replayed_dead is None and self._reads.some_died():
            self._replayed_dead = self._places.stack(sys._getframe(2))
        self._replays += 1
        self.backend.replay(self.graph)

    def _alive(self) -> None:
        if not self.live:
            raise GraphError(RESET)

    def _checked(self) -> Reads:
        if self._reads is None:
            raise LevelError(UNCHECKED)
        return self._reads

    def _picture(self) -> ExternalState:
        roots, _ = roots_of(self.function, *self.inputs.arguments, self._places.is_project)
        return ExternalState(roots)

    def _leaf_tensors(self) -> list[tuple[str, torch.Tensor]]:
        return [("".join(path), tensor) for path, tensor in self._picture().tensors if tensor.is_leaf]

    def __str__(self) -> str:
        lines = [
            f"graph of {type_word(self.function)} in pool {self.pool}: {format_size(self.growth)} added by its capture"
        ]
        return "\n".join((*lines, *(f"note: {note}" for note in self.notes)))


def _refuse(replays: object, *tolerances: object) -> None:
    if isinstance(replays, bool) or not isinstance(replays, int) or replays < 1:
        raise ValueError(f"replays={replays!r} is not a number of replays")
    for name, value in zip(("rtol", "atol"), tolerances, strict=False):
        if value is not None and (not isinstance(value, (int, float)) or not value >= 0):
            raise ValueError(f"{name}={value!r} is not a tolerance")


def _tuple(one: Any) -> tuple[Any, ...]:
    return one if isinstance(one, tuple) else (one,)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
