"""Capture a function as a CUDA graph, with what the assertions need noted beside it.

The order is the one that works on every torch: static inputs are copied, the function warms up on the capturing stream,
what that left dies, garbage is collected, and then the function runs once while the stream records; no collection runs
inside. PYTEST_DONT_REWRITE
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
from cudamem_testing.graphs.captured import Captured
from cudamem_testing.graphs.failure import CaptureError, explain
from cudamem_testing.graphs.inputs import StaticInputs
from cudamem_testing.graphs.lint import lint as run_lint
from cudamem_testing.graphs.liveness import Reads
from cudamem_testing.graphs.outer import Picture, roots_of
from cudamem_testing.graphs.places import Places, module_names
from cudamem_testing.graphs.pools import Pools, pools_of
from cudamem_testing.graphs.report import LintReport
from cudamem_testing.graphs.sides import storage_reference
from cudamem_testing.guards import collect_garbage, collector_paused
from cudamem_testing.model.stacks import Locator
from cudamem_testing.objects import type_word
from cudamem_testing.torch_api.modes import noted, tensors

ERROR_MODES = ("global", "thread_local", "relaxed")


class _Notes:
    """What a capture does, operator by operator."""

    def __init__(self, reads: Reads, nodes: Callable[[], int | None]) -> None:
        self._reads, self._nodes = reads, nodes
        self.launched: list[tuple[str, int]] = []
        self._before: int | None = None

    def called(self, name: str, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        self._reads.called(name, inputs, written)
        self._before = self._nodes()

    def returned(self, name: str, outputs: Sequence[torch.Tensor]) -> None:
        self._reads.returned(name, outputs)
        after = self._nodes()
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
        checks: note which tensors are read, for the assertions that need it; costs microseconds for each operator.
        lint: run the lint first, on the same tensors, and compare.
        root: the project's folder, for the lines that are told.
        owner: who is to blame for what a failed capture leaves, such as the name of the test.

    Raises:
        CaptureError: when the capture fails; the process can capture again.
        ValueError: for a wrong ``warmup`` or ``capture_error_mode``.
    """
    _refuse(warmup, capture_error_mode)
    kwargs = {**(kwargs or {})}
    places = Places(Locator(root))
    roots, _ = roots_of(function, args, kwargs, places.is_project)
    places.names = module_names(("" if value is function else name, value) for name, value in roots)
    inputs = StaticInputs(args, kwargs, backend.device)
    report = run_lint(function, *inputs.fresh(args, kwargs), root=root) if lint else None
    left = _warm_up(backend, function, inputs, warmup, stream, Picture(roots).storages)
    inputs.copy_in(args, kwargs)
    collect_garbage()
    living = [text for reference, text in left.items() if not reference.expired()]  # type: ignore[no-untyped-call]
    notes = [f"outputs of the warm-up live on: {', '.join(living[:3])}"] if living else []
    before = pools_of(backend.recording())
    reads = Reads(
        lambda: places.of_frame(sys._getframe(1), capture.__code__).line, lambda: places.stack(sys._getframe(1))
    )
    graph = backend.new_graph()
    for _, leaf in inputs.leaves:
        if isinstance(leaf, torch.Generator):
            backend.register(graph, leaf)
    noter = _Notes(reads, backend.node_count)
    try:
        with (
            collector_paused(),
            backend.capturing(graph, pool, stream, capture_error_mode),
            noted(noter) if checks else contextlib.nullcontext(),
        ):
            outputs = function(*inputs.arguments[0], **inputs.arguments[1])
    except BaseException as error:
        _fail(backend, graph, error, places, reads, function, before, owner, report)
    after = pools_of(backend.recording())
    if checks:
        reads.created(backend.stacks([read.address for read in reads.reads()]))
    growth = after.of(backend.pool(graph)).reserved - before.of(backend.pool(graph)).reserved
    return Captured(
        backend,
        graph,
        function,
        inputs,
        outputs,
        reads if checks else None,
        places,
        launched=noter.launched,
        growth=growth,
        notes=(*notes, *_disagreement(report)),
        lint=report,
    )


def _refuse(warmup: int, capture_error_mode: str) -> None:
    if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
        raise ValueError(f"warmup={warmup!r} is not a number of calls")
    if capture_error_mode not in ERROR_MODES:
        raise ValueError(f"capture_error_mode={capture_error_mode!r} is not one of {', '.join(ERROR_MODES)}")


def _warm_up(
    backend: Backend,
    function: Callable[..., Any],
    inputs: StaticInputs,
    warmup: int,
    stream: Any,
    known: Collection[StorageWeakRef],
) -> dict[StorageWeakRef, str]:
    """Call the function; what it returned must be dead once garbage is collected."""
    left: dict[StorageWeakRef, str] = {}
    own = {*known, *(storage_reference(tensor) for _, tensor in inputs.tensors)}
    with backend.warming(stream):
        for _ in range(warmup):
            for tensor in tensors((function(*inputs.arguments[0], **inputs.arguments[1]),)):
                reference = storage_reference(tensor)
                if reference is not None and reference not in own:
                    left[reference] = f"{str(tensor.dtype).removeprefix('torch.')}{[*tensor.shape]}"
            tensor = torch.empty(0)
    return left


def _fail(
    backend: Backend,
    graph: Graph,
    error: BaseException,
    places: Places,
    reads: Reads,
    function: Callable[..., Any],
    before: Pools,
    owner: str,
    report: LintReport | None,
) -> NoReturn:
    if not isinstance(error, Exception):
        backend.recover(graph)
        raise error
    failure = explain(type_word(function), error, places, reads.operators)
    _let_go(error)
    collect_garbage()
    backend.recover(graph)
    known = {use.pool for use in before.private}
    orphans = tuple(use for use in pools_of(backend.recording()).private if use.pool not in known)
    raise CaptureError(replace(failure, orphans=orphans, owner=owner, lint=report)) from None


def _let_go(error: BaseException) -> None:
    """Frames of the failed capture hold tensors of its pool, which would keep the pool."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        pending += [one.__cause__, one.__context__]
        one.__traceback__ = None


def _disagreement(report: LintReport | None) -> Iterator[str]:
    """A capture that worked although the lint said otherwise."""
    for finding in report.findings if report is not None else ():
        if finding.breaks:
            yield f"the lint expected a failure that did not come: {finding.text}"
