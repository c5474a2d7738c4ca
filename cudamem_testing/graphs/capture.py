"""Captures a function as a CUDA graph, and records what the assertions need.

The order works on every torch: static inputs are copied, the function warms up on the capturing stream,
its leftovers are freed, garbage is collected, and then the function runs once while the stream records; no collection
runs inside. The capture equals that of ``torch.cuda.graph``: what the assertions need is recorded in the last call of
the warm-up. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cudamem_testing.graphs.backend import Backend, Graph
from cudamem_testing.graphs.capture_diagnosis import look_again, look_at_warm_up
from cudamem_testing.graphs.captured import Captured
from cudamem_testing.graphs.failure import LONGEST_ERROR, CaptureError, first_look
from cudamem_testing.graphs.inputs import StaticInputs
from cudamem_testing.graphs.lint import lint as run_lint
from cudamem_testing.graphs.liveness import Reads
from cudamem_testing.graphs.outer import ExternalState, Named, roots_of
from cudamem_testing.graphs.places import CapturePlaces, module_names
from cudamem_testing.graphs.plan import Plan
from cudamem_testing.graphs.pools import Pools, pools_of
from cudamem_testing.graphs.reasons import EMPTY, NESTED_SAID, rule_of
from cudamem_testing.graphs.report import LintReport
from cudamem_testing.graphs.sides import storage_reference
from cudamem_testing.guards import collect_garbage
from cudamem_testing.model.errors import drop_tracebacks, first_cause
from cudamem_testing.model.pools import PoolUse
from cudamem_testing.model.stacks import Locator
from cudamem_testing.objects.names import type_word
from cudamem_testing.safe_access import find_in_class, type_name
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.torch_api.graphs import expired
from cudamem_testing.torch_api.modes import current_node, noted, tensors
from cudamem_testing.torch_api.trees import flatten

__tracebackhide__ = hide_wrong_arguments

ERROR_MODES = ("global", "thread_local", "relaxed")


class _Notes:
    """What a run of the function does, operator by operator."""

    def __init__(self, reads: Reads, count: Callable[[], int | None] = lambda: None) -> None:
        self._reads, self._count = reads, count
        self.backward: set[str] = set()
        self.launched: list[tuple[str, int]] = []
        self._before: int | None = None

    def called(self, name: str, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        self.backward.add(current_node())
        self._reads.called(name, inputs, written)
        self._before = self._count()

    def returned(self, name: str, outputs: Sequence[torch.Tensor]) -> None:
        self._reads.returned(name, outputs)
        after = None if self._before is None else self._count()
        if self._before is not None and after is not None:
            self.launched.append((name, after - self._before))


def capture(
    backend: Backend,
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    warmup: int = 3,
    pool: Any = None,
    stream: Any = None,
    capture_error_mode: str = "global",
    checks: bool = True,
    operators: bool = False,
    lint: bool = False,
    root: str = "",
    owner: str = "",
) -> Captured:
    """Capture ``function(*args, **kwargs)``.

    Args:
        backend: the device.
        function: a function, a method or a module.
        args: tensors on the device become static inputs (copies); generators are registered with the graph.
        kwargs: keyword arguments, the same way.
        warmup: calls before the capture, on the stream that captures.
        pool: a handle, or the ``pool`` of another capture, to share memory with.
        stream: the stream to capture on; by default one for all captures of the backend.
        capture_error_mode: ``global``, ``thread_local`` or ``relaxed``, as for ``torch.cuda.graph``.
        checks: collect garbage before the capture, and record in the last warm-up call which tensors are read, for
            the assertions that need it. Without warm-up the capture itself is traced.
        operators: trace the capture, to know which operator launched which nodes. A few formulas of torch's autograd
            take another path while traced, so it is not the default.
        lint: run the lint first, on the same tensors, and compare.
        root: the project's folder, for the reported lines.
        owner: named as the owner of pools that a failed capture leaves, such as a test's name.

    Raises:
        CaptureError: if the capture fails, or its warm-up for a reason that would break the capture; the process can
            capture again.
        RuntimeError: inside another capture.
        ValueError: for a wrong ``warmup`` or ``capture_error_mode``.
    """
    _refuse(warmup, capture_error_mode)
    if backend.here()[1]:
        raise RuntimeError(f"{type_word(function)} cannot be captured here: {NESTED_SAID}")
    kwargs, outer = {**(kwargs or {})}, sys.exc_info()[1]
    places = CapturePlaces(Locator(root))
    roots, codes = roots_of(function, args, kwargs, places.is_project)
    places.names = module_names(("" if value is function else name, value) for name, value in roots)
    inputs = StaticInputs(args, kwargs, backend.device)
    report = run_lint(function, *inputs.fresh(args, kwargs), root=root) if lint else None
    plan = Plan(backend, function, next(iter(codes), None), inputs, pool, stream, capture_error_mode)
    reads = Reads(lambda: places.of_frame(sys._getframe(1), _END).line, lambda: places.stack(sys._getframe(1)))
    seen = _Notes(reads)
    try:
        left = _warm_up(plan, warmup, ExternalState(roots).storages if checks else (), seen if checks else None)
    except Exception as error:
        _warm_up_failed(plan, error, places, outer)
        raise
    inputs.copy_in(args, kwargs)
    notes: list[str] = []
    named: Named = {}
    if checks:
        collect_garbage()
        living = [text for reference, text in left.items() if not expired(reference)]
        notes += [f"outputs of the warm-up are still live: {', '.join(living[:3])}"] if living else []
        picture = ExternalState(roots)
        reads.adopt(tensor for _, tensor in picture.tensors)
        named = picture.storages_by_name()
        del picture  # it holds what the function reaches
    before = pools_of(backend.recording())
    graph = backend.new_graph()
    watching = _Notes(reads, backend.node_count) if operators or (checks and not warmup) else None
    if watching is not None:
        backend.node_count()  # load what it needs outside the capture
    failed: Exception | None = None
    try:
        outputs = plan.record(graph, None if watching is None else noted(watching))
    except Exception as error:
        failed = error
    except BaseException:
        backend.recover(graph)
        raise
    if failed is not None:  # not in the handler: up to Python 3.10 that holds the traceback, whose frames hold the pool
        _fail(plan, graph, failed, places, seen.backward, before, (owner, report), outer)
    after = pools_of(backend.recording())
    if checks:
        reads.created(backend.stacks([read.address for read in reads.reads()]))
        notes += [f"{EMPTY.happens}: {EMPTY.advice}"] if backend.size(graph) == 0 else []
    growth = after.of(backend.pool(graph)).reserved - before.of(backend.pool(graph)).reserved
    return Captured(
        backend,
        graph,
        function,
        inputs,
        outputs,
        reads if checks or operators else None,
        places,
        named=named,
        launched=watching.launched if watching is not None else (),
        growth=growth,
        notes=(*notes, *_strangers(outputs), *_disagreement(report)),
        lint=report,
    )


#: Frames outside this function belong to the caller.
_END = capture.__code__


def _refuse(warmup: int, capture_error_mode: str) -> None:
    if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
        raise ValueError(f"warmup={warmup!r} is not a number of calls")
    if capture_error_mode not in ERROR_MODES:
        raise ValueError(f"capture_error_mode={capture_error_mode!r} is not one of {', '.join(ERROR_MODES)}")


def _warm_up(
    plan: Plan, warmup: int, known: Collection[StorageWeakRef], notes: _Notes | None
) -> dict[StorageWeakRef, str]:
    """Call the function, tracing the last call; its results must be freed once garbage is collected."""
    left: dict[StorageWeakRef, str] = {}
    own = {*known, *(storage_reference(tensor) for _, tensor in plan.inputs.tensors)}
    with plan.backend.warming(plan.stream):
        for number in range(1, warmup + 1):
            with noted(notes) if notes is not None and number == warmup else contextlib.nullcontext():
                outputs = plan.call()
            left.update(_storages(outputs, own))
            outputs = None
    return left


def _storages(outputs: Any, own: Collection[StorageWeakRef | None]) -> Iterator[tuple[StorageWeakRef, str]]:
    """The storages of outputs, each with a description of its tensor, except those that existed before."""
    for tensor in tensors((outputs,)):
        reference = storage_reference(tensor)
        if reference is not None and reference not in own:
            yield reference, f"{str(tensor.dtype).removeprefix('torch.')}{[*tensor.shape]}"


def _fail(
    plan: Plan,
    graph: Graph,
    error: Exception,
    places: CapturePlaces,
    backward: Collection[str],
    before: Pools,
    told: tuple[str, LintReport | None],
    outer: BaseException | None,
) -> NoReturn:
    """Make the process able to capture again, and explain what happened."""
    cause = first_cause(error, outer)
    first, said = first_look(cause, places, Plan.call.__code__, plan.code), str(cause)
    del cause
    drop_tracebacks(error, outer)
    collect_garbage()
    unusable, seen = "", None
    orphans: tuple[PoolUse, ...] = ()
    try:
        plan.backend.recover(graph)
    except RuntimeError as lost:
        unusable = " ".join(str(lost).split())[:LONGEST_ERROR]
    else:
        seen = look_again(plan, places, backward, said) if first.unclear else None
        known = {use.pool for use in before.private}
        orphans = tuple(use for use in pools_of(plan.backend.recording()).private if use.pool not in known)
    failure = first.failure(type_word(plan.function), seen)
    raise CaptureError(replace(failure, orphans=orphans, owner=told[0], lint=told[1], unusable=unusable)) from None


def _warm_up_failed(plan: Plan, error: Exception, places: CapturePlaces, outer: BaseException | None) -> None:
    """Explain a warm-up that failed for a reason that would break the capture too; raise other exceptions unchanged."""
    first = first_look(first_cause(error, outer), places, Plan.call.__code__, plan.code)
    if rule_of(first.said, first.clues) is not None:
        failure = first.failure(type_word(plan.function), look_at_warm_up(plan, places))
        raise CaptureError(replace(failure, step="warm-up")) from error


def _strangers(outputs: Any) -> Iterator[str]:
    """Outputs that torch treats as one value, although they may contain tensors."""
    for name, leaf in flatten(outputs)[0]:
        if find_in_class(type(leaf), "__dataclass_fields__") is not None:
            yield (
                f"output{name} is a {type_name(leaf)}, which torch treats as one value: its tensors are neither "
                "copied nor compared; return tensors, or register the class with torch.utils._pytree"
            )


def _disagreement(report: LintReport | None) -> Iterator[str]:
    """Notes for a capture that succeeded although the lint expected a failure."""
    for finding in report.findings if report is not None else ():
        if finding.breaks:
            yield f"the lint expected a failure that did not happen: {finding.text}"
