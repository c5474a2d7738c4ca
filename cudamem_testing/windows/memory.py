"""Windows, budgets and hard limits, inside a test or without pytest.

.. code-block:: python

    with Memory.on("auto") as memory:
        with memory.window("decode") as window:
            model.generate(...)
        print(window.peak_growth)

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar, overload

from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import parse_selection
from cudamem_testing.model.entered import Blocks, NotEnteredError, Result
from cudamem_testing.model.failing import Sweep, Wanted
from cudamem_testing.model.findings import Finding
from cudamem_testing.model.growth import Growth
from cudamem_testing.model.limits import budget as parse_limits
from cudamem_testing.model.scaling import Scaling
from cudamem_testing.model.sizes import count, parse_size
from cudamem_testing.model.windows import Window
from cudamem_testing.recorders.choose import Recorders, missing
from cudamem_testing.show.usage import hide_wrong_arguments, refuse_unknown
from cudamem_testing.windows.analysis import Analysis
from cudamem_testing.windows.failing import FailAllocation
from cudamem_testing.windows.grow import measure_growth
from cudamem_testing.windows.judge import Judge
from cudamem_testing.windows.measuring import Measuring
from cudamem_testing.windows.regions import Limited, OpenWindow, Region
from cudamem_testing.windows.scale import measure_scaling
from cudamem_testing.windows.tracker import Tracker

__tracebackhide__ = hide_wrong_arguments

R = TypeVar("R", bound="OpenWindow | Limited | FailAllocation")
S = TypeVar("S", bound=Result)


class Memory:
    """Windows, budgets and hard limits over a tracker.

    ``told`` is called with each window that ends, and with the findings of a budget that it broke; it returns whether
    the budget is enforced. ``name`` is its name in the code, ``place`` what the name of each window begins
    with, and ``ranks`` has processes measured that start inside a block.
    """

    records = False
    """Whether stacks and events are recorded, for evidence."""

    def __init__(
        self,
        tracker: Tracker,
        told: Callable[[Sequence[Window], Sequence[Finding]], bool] | None = None,
        judge: Judge | None = None,
        analysis: Analysis | None = None,
        name: str = "memory",
        place: Callable[[], str] = str,
        ranks: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        self.judge = judge or Judge()
        self._analysis = analysis or Analysis()
        self.tracker = tracker
        self.place = place
        self._ranks = ranks
        self.tell = told or (lambda windows, findings: True)
        self.entered: list[Region] = []
        self.blocks = Blocks()
        self._name = name

    @classmethod
    def on(cls, device: str = "auto") -> Measuring[Memory]:
        """Measure a selection of devices (as ``--cudamem-device``) in a block: ``with Memory.on("cpu") as memory:``.

        Raises:
            ValueError: as the block begins, for an unknown device, and for one that is not on this machine.
            NotEnteredError: at the end, if a window, a budget or a limit was created but not entered, or not left, or
                a growth or a scaling was measured and not read.
        """
        return Measuring(cls._measured(device), device)

    @classmethod
    @contextmanager
    def _measured(cls, device: str) -> Iterator[Memory]:
        recorders = Recorders(parse_selection(device), record=cls.records)
        try:
            opened = recorders.open()
            if not opened:
                raise ValueError(missing(device if isinstance(device, str) else str(device)))
            for recorder in opened:
                recorder.wake(limited=True)
                recorder.read_and_reset_peaks()  # what is measured begins here
            tracker = Tracker(opened)
            memory = cls(tracker, judge=cls.judge_of(tracker), analysis=cls.analysis_of(tracker))
            try:
                yield memory
            finally:
                problems = memory.close()
            if problems:
                raise NotEnteredError("\n".join(problems))
        finally:
            recorders.close()

    @classmethod
    def judge_of(cls, tracker: Tracker) -> Judge:
        """The judge of a tracker's budgets."""
        return Judge()

    @classmethod
    def analysis_of(cls, tracker: Tracker) -> Analysis:
        """Reads the records of a tracker."""
        return Analysis()

    def __repr__(self) -> str:
        devices = ", ".join(str(one.device) for one in self.tracker.recorders) or "nothing"
        inside = f", inside {count(len(self.entered), 'region')}" if self.entered else ""
        return f"<{self._name}: measures {devices}{inside}>"

    def close(self) -> list[str]:
        """End regions that were entered and never left, so that no limit outlives its test.

        Returns a line for each of them, for each that was not entered and each result not read: they checked nothing.
        """
        problems = self.blocks.problems
        self.blocks.clear()
        while self.entered:
            self.entered.pop().abandon()
        return problems

    def window(self, name: str) -> OpenWindow:
        """Measure a region: ``with memory.window("decode") as window``. Windows nest.

        Raises:
            ValueError: for an empty name, and a name of a test's own windows.
        """
        return self._made(OpenWindow(self, name), "window")

    def budget(
        self,
        *,
        peak: object = None,
        reserved: object = None,
        retained: object = None,
        allocations: object = None,
        retries: object = None,
        fragmentation: object = None,
        at_least: object = None,
        device: object = None,
        absolute: bool = False,
        name: str = "budget",
        **unknown: object,
    ) -> OpenWindow:
        """Measure a region and hold it to limits, which may be computed at run time (``peak=3 * param_bytes``).

        The arguments are those of the marker ``memory_budget``. The region raises :class:`OverBudget` at its end when
        a limit is broken; other exceptions from inside pass unchanged.

        Raises:
            LimitError: for wrong arguments.
            TypeError: for unknown ones.
            ValueError: for a name that :meth:`window` refuses.
        """
        refuse_unknown(self.budget, unknown)
        limits = parse_limits(
            peak=peak,
            reserved=reserved,
            retained=retained,
            allocations=allocations,
            retries=retries,
            fragmentation=fragmentation,
            at_least=at_least,
            device=device,
            absolute=absolute,
            source="budget(...)",
        )
        return self._made(OpenWindow(self, name, (limits,)), "budget")

    def limit(self, size: object, device: object = None) -> Limited:
        """Fail allocations that would take more than ``size`` bytes above the current level.

        They raise ``torch.OutOfMemoryError`` at the allocating line. On CPU the limit is exact and holds for every
        thread; on CUDA the allocator enforces it when it needs another segment, and an excess within existing
        segments is found at the end of the region, which then raises :class:`OverBudget`. Limits nest; the earlier one
        is restored afterwards, in any order, also after an error.

        Raises:
            ValueError: for a malformed size or device, or a device that is not measured.
        """
        bytes_ = parse_size(size)
        return self._made(Limited(self, bytes_, self.tracker.chosen(device)), "limit")

    def fail_allocation(
        self, *, above: object = None, nth: object = None, at: object = None, device: object = None
    ) -> FailAllocation:
        """Fail an allocation of a region on purpose: ``with memory.fail_allocation(at="model.py:88") as failure``.

        ``above="1GiB"`` fails each request of more than so many bytes, ``nth=5`` the fifth of the region, ``at`` the
        first at a line of code; together they must all hold. It raises ``torch.OutOfMemoryError`` where memory is
        requested, on every thread; on a card behind the operator that allocated, whose result is dropped.
        ``failure.assert_freed()`` says afterwards whether the memory of the first try was free in the next one.

        Raises:
            ValueError: for wrong arguments, and a line without code.
            NothingFailed: at the end of a region in which no allocation failed.
            RuntimeError: in the region's ``with``, if nothing can be made to fail here.
        """
        wanted = Wanted.parse(above, nth, at)
        recorder = self.tracker.chosen(device)[0]
        region = FailAllocation(self, recorder, wanted, self._analysis.first_try)
        return self._made(region, "fail_allocation")

    def fail_each_allocation(
        self,
        step: Callable[[], object],
        *,
        check: Callable[[], object] | None = None,
        sample: int | None = None,
        seconds: float | None = 60.0,
        progress: Callable[[str], object] | None = None,
        gradients: object = None,
        device: object = None,
        **state: object,
    ) -> Sweep:
        """Run a step once for each of its allocations, with that one failing, and check that the step recovers.

        After each failure nothing may be retained or kept by a cycle, and torch's modes, hooks and locks must be as
        before. Objects given by name (``model=model, optimizer=optimizer``) must have changed completely or not at
        all; the gradients of ``gradients`` as well. ``check()`` must hold: it returns ``False`` or raises otherwise.
        Then a run without a failure must work. The largest ``sample`` of allocations is tried, one of each distinct
        stack first, for at most ``seconds``; ``progress`` is called with a line now and then.

        Raises:
            DoesNotRecover: with a finding for each place that does not recover.
            ValueError: if the step allocates nothing, or for wrong arguments.
            RuntimeError: if nothing can be made to fail here.
        """
        __tracebackhide__ = True
        if sample is not None and (type(sample) is not int or sample < 1):
            raise ValueError(f"sample={sample!r}: write a whole number from 1")
        if self._analysis.sweep is None:
            raise RuntimeError("no allocation can be made to fail here: nothing is recorded")
        return self._analysis.sweep(
            self.tracker.chosen(device)[0],
            step,
            check=check,
            sample=sample,
            seconds=seconds,
            progress=progress,
            gradients=gradients,
            state=state,
        )

    def growth(self, step: Callable[[], object], steps: int = 20, warmup: int = 3, device: object = None) -> Growth:
        """Measure whether a repeated step keeps memory: ``memory.growth(lambda: train(batch)).assert_plateau()``.

        Raises:
            ValueError: for fewer than 4 steps, or a device that is not measured.
        """
        recorder = self.tracker.chosen(device)[0]
        growth = measure_growth(self.tracker, recorder, step, steps, warmup, self._analysis.growth)
        return self._result(growth, "growth", ".assert_plateau()")

    @overload
    def scaling(self, function: Callable[[int], object], sizes: Sequence[int], *, device: object = None) -> Scaling: ...
    @overload
    def scaling(
        self,
        function: Callable[..., object],
        sizes: Sequence[int] | None = None,
        *,
        device: object = None,
        **variables: Sequence[int] | None,
    ) -> Scaling: ...
    def scaling(
        self,
        function: Callable[..., object],
        sizes: Sequence[int] | None = None,
        *,
        device: object = None,
        **variables: Sequence[int] | None,
    ) -> Scaling:
        """How the peak grows with the input: ``memory.scaling(attend, [256, 512, 1024]).assert_peak("O(n)")``.

        The function is called with each size. With variables it is called by name,
        ``memory.scaling(step, batch=[1, 2, 4], sequence=[128, 256, 512])``: one is varied at a time, the others at
        their smallest. Sizes that are ``None`` are chosen.

        Raises:
            ValueError: for fewer than three sizes, sizes that do not rise, or a device that is not measured.
            RuntimeError: if the peak of the device is unknown.
        """
        if sizes is not None and variables:
            raise ValueError(f"sizes and {', '.join(variables)} were given: write sizes=, or variables by name")
        recorder = self.tracker.chosen(device)[0]
        chosen = variables or {"n": sizes}
        scaling = measure_scaling(self.tracker, recorder, function, chosen, self._analysis.lines, named=bool(variables))
        return self._result(scaling, "scaling", '.assert_peak("O(n)")')

    def ranks(self) -> AbstractContextManager[None]:
        """Measure processes that start inside the block with ``subprocess`` and ask for it, such as those of torchrun.

        They ask with ``with cudamem_testing.rank():``; what they took and left is in the report of the test. Processes
        of ``multiprocessing`` need neither.

        Raises:
            RuntimeError: outside of a test that is measured.
        """
        if self._ranks is None:
            raise RuntimeError("ranks() needs a measured test: use the fixture cuda_memory")
        return self._ranks()

    def statistics(self, device: object = None) -> Counters:
        """The counters of a device (of the first measured one by default); zeros before CUDA is initialised."""
        recorder = self.tracker.chosen(device)[0]
        return self.tracker.read(recorder)

    def _made(self, block: R, verb: str) -> R:
        self.blocks.add(f"{self._name}.{verb}(...)", block)
        return block

    def _result(self, result: S, verb: str, check: str) -> S:
        result.handed_out()
        self.blocks.add(f"{self._name}.{verb}(...)", result=result, check=check)
        return result
