"""The object behind the fixture ``graph_capture``: captures of one test on one device.

::

    graphs = GraphCapture()
    captured = graphs(step, x)
    captured.assert_matches_eager()

Outside pytest it is the same. What it captured is reset by :meth:`close`. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cudamem_testing.graphs.backend import Backend
from cudamem_testing.graphs.callables import GraphedCallables, graphed
from cudamem_testing.graphs.capture import capture
from cudamem_testing.graphs.captured import Captured
from cudamem_testing.graphs.cuda import CudaBackend
from cudamem_testing.graphs.lint import lint
from cudamem_testing.graphs.pools import CaptureStep, Pools, Sharing, pools_of
from cudamem_testing.graphs.report import LintReport
from cudamem_testing.model.entered import Blocks
from cudamem_testing.show.usage import hide_wrong_arguments

__tracebackhide__ = hide_wrong_arguments


class UnavailableError(RuntimeError):
    """No device can capture graphs; the text says why."""


def _refuse(reason: str) -> object:
    raise UnavailableError(reason)


class GraphCapture:
    """Captures functions, and graphs callables.

    Args:
        backend: the device, by default the current CUDA device.
        root: the project's folder, by default the current one.
        owner: named as the owner of a pool that a failed capture leaves, such as a test's name.
        unavailable: called with the reason if nothing can be captured; by default it raises.
    """

    def __init__(
        self,
        backend: Backend | None = None,
        *,
        root: str | None = None,
        owner: str = "",
        unavailable: Callable[[str], object] = _refuse,
    ) -> None:
        self._given = backend
        self._root = os.getcwd() if root is None else root
        self._owner, self._unavailable = owner, unavailable
        self.captured: list[Captured] = []
        """What was captured so far."""
        self.blocks = Blocks()

    def __call__(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        warmup: int = 3,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        checks: bool = True,
        operators: bool = False,
        lint: bool = False,
        **kwargs: Any,
    ) -> Captured:
        """Capture ``function(*args, **kwargs)``; see :func:`cudamem_testing.graphs.capture.capture`.

        If the function has a keyword argument with one of these names, bind it with ``functools.partial``.

        Raises:
            CaptureError: if the capture fails.
            UnavailableError: without a CUDA device (the fixture skips the test instead).
        """
        captured = capture(
            self._backend(),
            function,
            args,
            kwargs,
            warmup=warmup,
            pool=pool,
            stream=stream,
            capture_error_mode=capture_error_mode,
            checks=checks,
            operators=operators,
            lint=lint,
            root=self._root,
            owner=self._owner,
        )
        self.captured.append(captured)
        return captured

    def check(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> LintReport:
        """The lint: one call of the function, without a capture; needs no card."""
        report = lint(function, args, kwargs, root=self._root)
        report.handed_out()
        self.blocks.add("graph_capture.check(...)", result=report, check=".assert_clean()")
        return report

    def callables(
        self,
        callables: Callable[..., Any] | tuple[Callable[..., Any], ...],
        sample_args: tuple[Any, ...],
        *,
        sample_kwargs: Sequence[Mapping[str, Any]] = (),
        num_warmup_iters: int = 3,
        allow_unused_input: bool = False,
        pool: Any = None,
        double_backward: bool = False,
    ) -> GraphedCallables:
        """Graphed callables, checked first; see :func:`cudamem_testing.graphs.callables.graphed`.

        Raises:
            CaptureError: if a capture fails.
            ObstacleError: with all obstacles.
            UnavailableError: without a CUDA device (the fixture skips the test instead).
        """
        return graphed(
            self._backend(),
            callables,
            sample_args,
            sample_kwargs=sample_kwargs,
            num_warmup_iters=num_warmup_iters,
            allow_unused_input=allow_unused_input,
            pool=pool,
            double_backward=double_backward,
            root=self._root,
            owner=self._owner,
        )

    def pool_handle(self) -> Any:
        """A handle of a pool that several captures can share."""
        return self._backend().new_pool()

    def is_current_stream_capturing(self) -> bool:
        """Whether the current stream records instead of running, for code that must then behave differently."""
        return self._backend().here()[1]

    def pools(self) -> Pools:
        """The private pools of the device now, with their bytes."""
        return pools_of(self._backend().recording())

    def sharing(self, function: Callable[..., Any], sizes: Iterable[tuple[str, tuple[Any, ...]]]) -> Sharing:
        """Capture a function for several inputs twice: with a pool for each, and all on one pool in the given order.

        All graphs live until everything is measured, then they are reset. ``sizes`` are names and positional arguments,
        the largest first for good sharing.
        """
        backend, named = self._backend(), [*sizes]
        grown: list[list[int]] = []
        for pool in (None, backend.new_pool()):
            made = [capture(backend, function, args, pool=pool, checks=False, root=self._root) for _, args in named]
            grown.append([one.growth for one in made])
            for one in reversed(made):
                one.reset()
        rows = zip(named, *grown, strict=True)
        return Sharing(tuple(CaptureStep(name, separate, shared) for (name, _), separate, shared in rows))

    def close(self) -> None:
        """Reset every graph that was captured through this object."""
        while self.captured:
            captured = self.captured.pop()
            if captured.live:
                captured.reset()

    def _backend(self) -> Backend:
        if self._given is None:
            self._given = CudaBackend(root=self._root)
        reason = self._given.unavailable()
        if reason is not None:
            self._unavailable(reason)
        return self._given
