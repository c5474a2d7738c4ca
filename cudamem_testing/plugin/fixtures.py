"""Fixtures: thin shells over classes that work without pytest. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from cudamem_testing.plugin import keys
from cudamem_testing.show.usage import hide_wrong_arguments

if TYPE_CHECKING:
    from cudamem_testing.cycles.collect import ReferenceCycles
    from cudamem_testing.graphs import GraphCapture
    from cudamem_testing.operators.recording import OperatorMemory
    from cudamem_testing.run.session import Session
    from cudamem_testing.snapshots.moments import Snapshots
    from cudamem_testing.trace.profile import MemoryProfile
    from cudamem_testing.windows.memory import Memory
    from cudamem_testing.windows.tracker import Tracker


__tracebackhide__ = hide_wrong_arguments
PROFILE, OPERATORS = (f".{check}(), or another assert_ method," for check in ("assert_categories", "assert_by_module"))


def _prepared(request: pytest.FixtureRequest) -> Session | None:
    """The session with running recorders; ``None`` if no test is being measured."""
    session = request.config.stash.get(keys.SESSION, None)
    if session is None or session.running is None:
        return None
    session.prepare()
    return session


class _Outcome:
    """Notices whether a test fails or is skipped in its call, also where no session measures it."""

    def __init__(self, item: pytest.Item) -> None:
        self.failed = False
        self._item = item

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Notice it."""
        self.failed |= item is self._item and call.excinfo is not None


@contextmanager
def _outcome(request: pytest.FixtureRequest) -> Iterator[_Outcome]:
    outcome = _Outcome(request.node)
    request.config.pluginmanager.register(outcome)
    try:
        yield outcome
    finally:
        request.config.pluginmanager.unregister(outcome)


def _refuse(request: pytest.FixtureRequest, problems: Sequence[str], outcome: _Outcome | None = None) -> None:
    """Fail a test whose blocks checked nothing, unless it has failed for another reason, or was skipped."""
    session = request.config.stash.get(keys.SESSION, None)
    failed = session is not None and session.running is not None and session.running.failure is not None
    if problems and not failed and not (outcome is not None and outcome.failed):
        pytest.fail("\n".join(f"cudamem: {problem}" for problem in problems), pytrace=False)


def _each_example(request: pytest.FixtureRequest, reset: Callable[[], object]) -> None:
    """Do something before each example of hypothesis, so that the fixture keeps nothing of the one before."""
    request.node.stash.setdefault(keys.EACH_EXAMPLE, []).append(reset)


def _add_new(problems: list[str], found: Sequence[str]) -> None:
    """Add what was not found before: each example has the same problems."""
    before = {*problems}
    problems += [one for one in found if one not in before]


@pytest.fixture
def cuda_memory(request: pytest.FixtureRequest) -> Iterator[Memory]:
    """Windows, in-test budgets and hard limits: ``with cuda_memory.window("decode") as w``."""
    from cudamem_testing.windows.memory import Memory

    session = _prepared(request)
    running = session.running if session is not None else None
    problems: list[str] = []
    if session is None or running is None:
        from cudamem_testing.run.memory import Memory as Measured

        with Measured.on(str(request.config.stash[keys.SETTINGS].device)) as memory:
            _each_example(request, lambda: _add_new(problems, memory.close()))
            yield memory
    else:
        from cudamem_testing.run.analysis import analysis

        grown = session.leaks.grown if session.leaks else None
        reads = analysis(session.evidence, session.tracker, grown, running.add)
        place = partial(getattr, running, "place")
        ranks = request.config.pluginmanager.getplugin("cudamem-session").watch_ranks().asked_for
        memory = Memory(
            session.tracker, running.add, session.judge, reads, name="cuda_memory", place=place, ranks=ranks
        )
        _each_example(request, lambda: _add_new(problems, memory.close()))
        yield memory
        _add_new(problems, memory.close())
    _refuse(request, problems)


@pytest.fixture
def memory_snapshot(request: pytest.FixtureRequest) -> Snapshots:
    """Allocator snapshots: ``take()``, ``live()``, ``peak()``, ``compare(before, after)``, ``write`` and ``read``."""
    from cudamem_testing.snapshots.moments import Snapshots

    session = _prepared(request)
    if session is None:
        pytest.fail("memory_snapshot: request it as a test argument, not while the test runs", pytrace=False)
    return Snapshots(session.tracker, request.config.rootpath, session.owners.names)


@pytest.fixture
def reference_cycles(request: pytest.FixtureRequest) -> Iterator[Callable[[], ReferenceCycles]]:
    """Find the cycles that are made in a block, which ``assert_none`` and ``assert_cycle`` judge."""
    from cudamem_testing.cycles.collect import ReferenceCycles
    from cudamem_testing.model.entered import Blocks

    session = _prepared(request)
    make = ReferenceCycles if session is None or session.cycles is None else session.cycles.region
    made: list[ReferenceCycles] = []
    blocks = Blocks()
    problems: list[str] = []

    def record() -> ReferenceCycles:
        made.append(make())
        blocks.add("reference_cycles()", made[-1], made[-1], ".assert_none()")
        return made[-1]

    def end() -> None:
        _add_new(problems, blocks.problems)
        for cycles in reversed(made):
            if cycles.entered and not cycles.left:
                cycles.__exit__(None, None, None)  # the check of the test itself continues
        made.clear()
        blocks.clear()

    _each_example(request, end)
    yield record
    end()
    _refuse(request, problems)


@pytest.fixture
def memory_profile(request: pytest.FixtureRequest) -> Iterator[Callable[..., MemoryProfile]]:
    """Record a call, or a block, and analyse it: data flow, categories, timeline and peak of its tensors.

    Without a function, arguments are those of ``MemoryProfile``: ``memory_profile(dispatched=True)``.
    """
    from cudamem_testing.model.entered import Blocks
    from cudamem_testing.run.recording import recording
    from cudamem_testing.static import type_name
    from cudamem_testing.trace.profile import MemoryProfile

    session = _prepared(request)
    made, blocks, leaving = [], Blocks(), ExitStack()
    problems: list[str] = []
    budgets = session is not None and session.running is not None and session.running.budgets
    explains = budgets or "cuda_memory" in request.fixturenames  # a broken budget says what the memory was for
    trackers: list[Tracker] = []
    if session is not None:
        trackers, made = [session.tracker], session.evidence.profiles

    def record(function: Callable[..., object] | None = None, /, *args: Any, **kwargs: Any) -> MemoryProfile:
        options = kwargs if function is None else {}
        unknown = sorted({*options} - {"collect", "dispatched"})
        if unknown:
            raise TypeError(
                f"memory_profile() as a block has no argument {', '.join(unknown)}: it takes collect, dispatched; name "
                f"tensors in the block with p.name({unknown[0]}=...), or give a function: memory_profile(step, ...)"
            )
        if function is not None and not callable(function):
            raise TypeError(
                f"memory_profile() records a function, or a block without one: {type_name(function)} is not callable"
            )
        if not trackers:
            trackers.append(leaving.enter_context(recording(request.config.stash[keys.SETTINGS].device)))
        root = str(request.config.rootpath)
        profile = MemoryProfile(tracker=trackers[0], root=root, compared=session is not None, **options)
        made.append(profile)
        blocks.add("memory_profile(...)", profile, None if explains else profile, PROFILE)
        return profile if function is None else profile(function, *args, **kwargs)

    def end() -> None:
        _add_new(problems, blocks.problems)
        for profile in made:
            if not profile.left and profile.entered:
                profile.__exit__(None, None, None)
        blocks.clear()

    _each_example(request, end)
    _each_example(request, made.clear)
    with leaving, _outcome(request) as outcome:
        yield record
        end()
        if session is not None and session.evidence.curves is not None:
            session.evidence.curves.profiled(session.running, made)
    made.clear()
    _refuse(request, problems, outcome)


@pytest.fixture
def operator_memory(request: pytest.FixtureRequest) -> Iterator[Callable[..., OperatorMemory]]:
    """What each operator of a block allocates, by module and phase: tables, expected text, limits, files, a picture."""
    from cudamem_testing.model.entered import Blocks
    from cudamem_testing.operators.recording import OperatorMemory

    session = _prepared(request)
    made: list[OperatorMemory] = []
    blocks = Blocks()
    problems: list[str] = []

    def record(*args: Any, **kwargs: Any) -> OperatorMemory:
        unknown = sorted({*kwargs} - {"model", "device", "say"})
        if unknown:
            raise TypeError(f"operator_memory() has no argument {', '.join(unknown)}: it takes model, device")
        made.append(OperatorMemory(*args, **kwargs))
        blocks.add("operator_memory(...)", made[-1], made[-1], OPERATORS)
        return made[-1]

    def end() -> None:
        _add_new(problems, blocks.problems)
        for memory in reversed(made):
            memory.__exit__(None, None, None)  # one that was entered and never left
        blocks.clear()

    _each_example(request, end)
    _each_example(request, made.clear)
    yield record
    end()
    if session is not None and session.evidence.curves is not None:
        for memory in made:
            session.evidence.curves.exhibit(session.running, "Operators", memory.summary)
            session.evidence.curves.exhibit(session.running, "Modules", partial(memory.by_module, 3))
    _refuse(request, problems)


@pytest.fixture
def graph_capture(request: pytest.FixtureRequest) -> Iterator[GraphCapture]:
    """Capture functions as CUDA graphs and assert that replays are right; ``graph_capture.check`` needs no card."""
    from cudamem_testing.graphs import GraphCapture

    root = str(request.config.rootpath)
    graphs = GraphCapture(root=root, owner=request.node.nodeid, unavailable=pytest.skip)
    problems: list[str] = []

    def end() -> None:
        _add_new(problems, graphs.blocks.problems)
        graphs.blocks.clear()
        graphs.close()

    _each_example(request, end)
    with _outcome(request) as outcome:
        yield graphs
    session = request.config.stash.get(keys.SESSION, None)
    if session is not None and session.evidence.curves is not None:
        from cudamem_testing.graphs.description import describe

        for captured in graphs.captured:
            session.evidence.curves.exhibit(session.running, "Captured graph", partial(describe, captured))
    end()
    _refuse(request, problems, outcome)
