"""Graphed callables: checked before graphing, and compared with eager ones after. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cudamem_testing.graphs.backend import Backend
from cudamem_testing.graphs.capture import capture
from cudamem_testing.graphs.captured import GraphError
from cudamem_testing.graphs.differs import copied, differs
from cudamem_testing.graphs.failure import CaptureError, Failure, first_look
from cudamem_testing.graphs.inputs import fresh_copy
from cudamem_testing.graphs.obstacles import NO_GRADIENT, Obstacle, ObstacleError, name_of_callable, obstacles
from cudamem_testing.graphs.places import CapturePlaces
from cudamem_testing.graphs.pools import pool_at, pools_of
from cudamem_testing.guards import CollectorPaused, collect_garbage, without_warning
from cudamem_testing.model.errors import drop_tracebacks, first_cause
from cudamem_testing.model.pools import Pool
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Locator
from cudamem_testing.objects.names import name_of
from cudamem_testing.safe_access import is_a
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.torch_api.modes import tensors
from cudamem_testing.torch_api.trees import flatten, leaves, mapped

__tracebackhide__ = hide_wrong_arguments

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
#: Differences that one message names.
MOST = 5
TWICE = (
    "graphed callables cannot be differentiated twice: compute the second derivative with the callable "
    "before it was graphed"
)
STATIC_ADVICE = "   do: give each parameter its .grad before the first backward, and zero it with set_to_none=False"
#: torch 2.11 warns so for every graphed callable: the graphs keep the nodes that add to ``.grad``, made on their
#: stream.
OTHER_STREAM = "The AccumulateGrad node's stream does not match the stream"


@dataclass(frozen=True, slots=True)
class CallableMemory:
    """Memory of one callable: bytes that its pool kept after graphing, and bytes of its parameters."""

    name: str
    pool: int
    parameters: int

    def __str__(self) -> str:
        return f"{self.name}: {format_size(self.pool)} in pools, {format_size(self.parameters)} of parameters"


class GraphedCallables:
    """Graphed callables with their eager twins.

    ``callables`` are the graphed ones; modules among them are the given modules with another ``forward``. The twins are
    copies made before graphing, so both can be trained side by side.
    """

    def __init__(
        self,
        backend: Backend,
        callables: tuple[Callable[..., Any], ...],
        twins: tuple[Callable[..., Any], ...],
        sample_args: tuple[tuple[Any, ...], ...],
        memory: tuple[CallableMemory, ...],
        remarks: tuple[Obstacle, ...],
        pool: Pool,
    ) -> None:
        self.callables, self.memory, self.remarks, self.pool = callables, memory, remarks, pool
        self._backend, self._twins, self._samples = backend, twins, sample_args

    def __call__(self, *args: Any) -> Any:
        """Call the first one."""
        return self.callables[0](*args)

    def assert_matches_eager(
        self,
        steps: int = 5,
        optimizer: MakeOptimizer | None = None,
        inputs: Callable[[int], Sequence[Sequence[Any]]] | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        accumulate: int = 2,
    ) -> None:
        """Fail if outputs, gradients of inputs or of parameters differ from the eager twins in a step of training.

        Each step runs all callables forward and backward ``accumulate`` times on new inputs, compares, and takes a
        step of the optimizer. Gradients of parameters add up in separate memory, which each step allocates again:
        without it torch uses the graph's memory as ``.grad``, see :meth:`assert_static_grads`.

        Args:
            steps: how many steps.
            optimizer: creates an optimizer from parameters; by default SGD with momentum. Not called without
                parameters.
            inputs: positional arguments of each callable for a step; by default random numbers like the samples.
            rtol: relative tolerance, by default that of ``torch.testing.assert_close``.
            atol: absolute tolerance.
            accumulate: backward passes before each step of the optimizer.

        Raises:
            GraphError: an ``AssertionError`` with what differs first.
        """
        __tracebackhide__ = True
        make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))
        sides = [(side, _parameters(side)) for side in (self._twins, self.callables)]
        optimizers = [make([one for _, one in named]) if named else None for _, named in sides]
        for step in range(1, steps + 1):
            for _, named in sides:
                for _, parameter in named:
                    parameter.grad = torch.zeros_like(parameter)
            for part in range(accumulate):
                given = self._inputs(step, part) if inputs is None else inputs(step)
                state = self._backend.random_state()
                results = []
                for side, _ in sides:
                    self._backend.set_random_state(state)
                    results.append(_pass(side, given))
                self._compare(f"step {step}", results, rtol, atol)
            gradients = [[(f"gradient of {name}", one.grad) for name, one in named] for _, named in sides]
            self._compare(f"step {step}", gradients, rtol, atol)
            for one in optimizers:
                if one is not None:
                    one.step()
            values = [[(f"{name} after the step", one.detach()) for name, one in named] for _, named in sides]
            self._compare(f"step {step}", values, rtol, atol)

    def assert_static_grads(self) -> None:
        """Fail if a parameter's ``.grad`` is in the pool of the graphs, where the next backward overwrites it.

        torch puts it there when ``.grad`` is ``None`` before a backward of graphed callables. As long as each backward
        is followed by a step of the optimizer this is harmless; gradients accumulated over several would be wrong.

        Raises:
            GraphError: with the names.
        """
        __tracebackhide__ = True
        recording = self._backend.recording()
        lines = [
            f"   {name}.grad {name_of(parameter.grad)}"
            for name, parameter in _parameters(self.callables)
            if parameter.grad is not None
            and pool_at(recording, parameter.grad.untyped_storage().data_ptr()) == self.pool
        ]
        if lines:
            head = f"{count(len(lines), 'gradient')} in the pool of the graphs, which the next backward overwrites:"
            raise GraphError("\n".join((head, *lines, STATIC_ADVICE)))

    def _inputs(self, step: int, part: int) -> list[tuple[Any, ...]]:
        generator = torch.Generator().manual_seed(1000 * step + part)

        def like(leaf: Any) -> Any:
            if not is_a(leaf, torch.Tensor) or not leaf.is_floating_point():
                return leaf
            new = torch.randn(leaf.shape, generator=generator, dtype=torch.float32).to(leaf.device, leaf.dtype)
            return new.requires_grad_() if leaf.requires_grad else new

        return [mapped(like, args) for args in self._samples]

    def _compare(
        self, when: str, sides: Sequence[Sequence[tuple[str, Any]]], rtol: float | None, atol: float | None
    ) -> None:
        __tracebackhide__ = True
        wrong = []
        for (name, wanted), (_, got) in zip(*sides, strict=True):
            text = differs(got, wanted, rtol, atol)
            if text:
                wrong.append(f"   {name}: {text}")
        if wrong:
            more = [f"   ... and {len(wrong) - MOST} more"] if len(wrong) > MOST else []
            raise GraphError("\n".join((f"graphed and eager differ in {when}:", *wrong[:MOST], *more)))

    def __str__(self) -> str:
        lines = [f"{count(len(self.callables), 'graphed callable')}"]
        return "\n".join((*lines, *map(str, self.memory), *(f"note: {remark}" for remark in self.remarks)))


def graphed(
    backend: Backend,
    callables: Callable[..., Any] | tuple[Callable[..., Any], ...],
    sample_args: tuple[Any, ...],
    *,
    sample_kwargs: Sequence[Mapping[str, Any]] = (),
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Any = None,
    double_backward: bool = False,
    root: str = "",
    owner: str = "",
) -> GraphedCallables:
    """Check the callables, graph them, and keep eager twins.

    A tuple is graphed on one pool in its order. The graph of a module has the module's current mode (train or eval),
    and the module runs eagerly in the other mode. ``root`` and ``owner`` are as for ``capture``.

    Raises:
        CaptureError: if the capture of one fails, forward or backward; the process can capture again.
        ObstacleError: with all obstacles, before anything is captured.
    """
    outer = sys.exc_info()[1]
    several = callables if isinstance(callables, tuple) else (callables,)
    samples = sample_args if isinstance(callables, tuple) else (sample_args,)
    with without_warning(OTHER_STREAM):
        found = obstacles(
            several, samples, sample_kwargs, allow_unused_input=allow_unused_input, double_backward=double_backward
        )
        if any(one.blocks for one in found):
            raise ObstacleError(found)
        twins = tuple(copy.deepcopy(one) if is_a(one, torch.nn.Module) else one for one in several)
        handle = backend.new_pool() if pool is None else pool
        collect_garbage()
        known = {use.pool for use in pools_of(backend.recording()).private}
        sizes = [_reserved(backend, handle)]
        failed: RuntimeError | None = None
        with CollectorPaused():
            try:
                made = backend.make_graphed_callables(
                    several,
                    samples,
                    num_warmup_iters,
                    allow_unused_input,
                    handle,
                    lambda: sizes.append(_reserved(backend, handle)),
                )
            except RuntimeError as error:
                failed = error
            if failed is not None:  # not in the handler: up to Python 3.10 that holds the traceback, as in ``capture``
                failure = _failure(backend, several, samples, failed, outer, root)
                orphans = tuple(use for use in pools_of(backend.recording()).private if use.pool not in known)
                raise CaptureError(replace(failure, orphans=orphans, owner=owner)) from None
    without = {one.callable for one in found if one.text == NO_GRADIENT}
    memory = _memory(several, sizes, without)
    return GraphedCallables(backend, made, twins, tuple(map(tuple, samples)), memory, found, handle)


def _failure(
    backend: Backend,
    several: Sequence[Callable[..., Any]],
    samples: Sequence[Sequence[Any]],
    error: RuntimeError,
    outer: BaseException | None,
    root: str,
) -> Failure:
    """Free what torch captured, and find the callable whose capture fails: its forward, or with its backward."""
    first = first_look(first_cause(error, outer), CapturePlaces(Locator(root)), graphed.__code__)
    drop_tracebacks(error, outer)
    collect_garbage()
    backend.recover(backend.new_graph())
    for at, (one, args) in enumerate(zip(several, samples, strict=True)):
        name = name_of_callable(one, at, len(several))
        for function, told in ((one, name), (_with_backward(one), f"{name} with its backward")):
            try:
                capture(backend, function, args, warmup=1, checks=False, root=root).reset()
            except CaptureError as found:
                return replace(found.failure, function=told)
    return first.failure("graphed callables")


def _with_backward(function: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any) -> Any:
        outputs = [one for one in tensors(leaves(function(*args))) if one.requires_grad]
        inputs = [one for one in (*tensors(args), *(one for _, one in _parameters((function,)))) if one.requires_grad]
        weights = [torch.ones_like(one) for one in outputs]
        return torch.autograd.grad(outputs, inputs, weights, allow_unused=True) if outputs else ()

    return both


def _memory(
    several: Sequence[Callable[..., Any]], sizes: Sequence[int], without: Collection[str]
) -> tuple[CallableMemory, ...]:
    """What each capture added: forwards in the order of the callables, then backwards in reverse order."""
    names = [name_of_callable(one, at, len(several)) for at, one in enumerate(several)]
    order = [*names, *(name for name in reversed(names) if name not in without)]
    grown: dict[str, int] = dict.fromkeys(names, 0)
    for name, before, after in zip(order, sizes, sizes[1:], strict=False):
        grown[name] += after - before
    parameters = [sum(parameter.nbytes for _, parameter in _parameters((one,))) for one in several]
    return tuple(CallableMemory(*one) for one in zip(names, grown.values(), parameters, strict=True))


def _reserved(backend: Backend, pool: Pool) -> int:
    """Bytes of the pool. Other graphs may free theirs meanwhile."""
    return pools_of(backend.recording()).of(pool).reserved


def _parameters(side: Sequence[Callable[..., Any]]) -> list[tuple[str, torch.nn.Parameter]]:
    modules = [(at, one) for at, one in enumerate(side) if is_a(one, torch.nn.Module)]
    prefix = len(side) > 1
    return [
        (f"callables[{at}].{name}" if prefix else name, parameter)
        for at, module in modules
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    ]


def _pass(side: Sequence[Callable[..., Any]], given: Sequence[Sequence[Any]]) -> list[tuple[str, Any]]:
    """Forward of all, then backward of all; outputs and gradients of inputs, copied."""
    __tracebackhide__ = True
    inputs = [mapped(_leaf, tuple(args)) for args in given]
    outputs = [function(*args) for function, args in zip(side, inputs, strict=True)]
    losses = [one.float().square().mean() for one in tensors(leaves(outputs)) if one.requires_grad]
    values = [(f"output{name}", copied(leaf)) for name, leaf in flatten(outputs)[0]]
    if losses:
        try:
            with without_warning(OTHER_STREAM):
                torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if "once_differentiable" in str(error):
                raise GraphError(TWICE) from error
            raise
    found = [(f"gradient of input{name}", copied(leaf.grad)) for name, leaf in flatten(inputs)[0] if _wants(leaf)]
    return values + found


def _leaf(leaf: Any) -> Any:
    return fresh_copy(leaf) if is_a(leaf, torch.Tensor) else leaf


def _wants(leaf: Any) -> bool:
    return is_a(leaf, torch.Tensor) and leaf.requires_grad
