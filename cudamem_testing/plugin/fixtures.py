"""Fixtures: thin shells over classes that work without pytest. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cudamem_testing.plugin import keys

if TYPE_CHECKING:
    from cudamem_testing.cycles.collect import ReferenceCycles
    from cudamem_testing.graphs.session import GraphCapture
    from cudamem_testing.operators.recording import OperatorMemory
    from cudamem_testing.run.session import Session
    from cudamem_testing.snapshots.moments import Snapshots
    from cudamem_testing.trace.profile import MemoryProfile
    from cudamem_testing.windows.memory import Memory


def _about_arguments(excinfo: Any) -> bool:
    from cudamem_testing.show.usage import hide_wrong_arguments

    return hide_wrong_arguments(excinfo)


__tracebackhide__ = _about_arguments


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


@pytest.fixture
def cuda_memory(request: pytest.FixtureRequest) -> Iterator[Memory]:
    """Windows, in-test budgets and hard limits: ``with cuda_memory.window("decode") as w``."""
    from cudamem_testing.model.entered import add_new
    from cudamem_testing.run.memory import Memory, memory_of

    session = _prepared(request)
    running = session.running if session is not None else None
    problems: list[str] = []
    if session is None or running is None:
        with Memory.on(str(request.config.stash[keys.SETTINGS].device)) as memory:
            _each_example(request, lambda: add_new(problems, memory.close()))
            yield memory
    else:
        ranks = request.config.pluginmanager.getplugin("cudamem-session").watch_ranks().asked_for
        own = memory_of(session, running, ranks)
        _each_example(request, lambda: add_new(problems, own.close()))
        yield own
        add_new(problems, own.close())
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
    from cudamem_testing.run.region import CycleBlocks

    session = _prepared(request)
    blocks = CycleBlocks(None if session is None or session.cycles is None else session.cycles.region)
    handed_out = blocks.handed_out
    _each_example(request, handed_out.end)
    _each_example(request, handed_out.clear)
    yield blocks.record
    handed_out.end()
    handed_out.clear()
    _refuse(request, handed_out.problems)


@pytest.fixture
def memory_profile(request: pytest.FixtureRequest) -> Iterator[Callable[..., MemoryProfile]]:
    """Record a call, or a block, and analyse it: data flow, categories, timeline and peak of its tensors.

    Without a function, arguments are those of ``MemoryProfile``: ``memory_profile(dispatched=True)``.
    """
    from cudamem_testing.run.profiles import Profiles

    session = _prepared(request)
    budgets = session is not None and session.running is not None and session.running.budgets
    explains = bool(budgets) or "cuda_memory" in request.fixturenames  # a broken budget says what the memory was for
    device, root = request.config.stash[keys.SETTINGS].device, str(request.config.rootpath)
    profiles = Profiles(session, device, root, explains=explains)
    handed_out = profiles.handed_out
    _each_example(request, handed_out.end)
    _each_example(request, handed_out.clear)
    with profiles.leaving, _outcome(request) as outcome:
        yield profiles.record
        handed_out.end()
        if session is not None and session.evidence.curves is not None:
            session.evidence.curves.profiled(session.running, handed_out.made)
    handed_out.clear()
    _refuse(request, handed_out.problems, outcome)


@pytest.fixture
def operator_memory(request: pytest.FixtureRequest) -> Iterator[Callable[..., OperatorMemory]]:
    """What each operator of a block allocates, by module and phase: tables, expected text, limits, files, a picture."""
    from cudamem_testing.run.operator_memories import OperatorMemories, exhibit_operators

    session = _prepared(request)
    memories = OperatorMemories()
    _each_example(request, memories.handed_out.end)
    _each_example(request, memories.handed_out.clear)
    yield memories.record
    memories.handed_out.end()
    exhibit_operators(session, memories.handed_out.made)
    _refuse(request, memories.handed_out.problems)


@pytest.fixture
def graph_capture(request: pytest.FixtureRequest) -> Iterator[GraphCapture]:
    """Capture functions as CUDA graphs and assert that replays are right; ``graph_capture.check`` needs no card."""
    from cudamem_testing.plugin.items import skip
    from cudamem_testing.run.graph_captures import GraphCaptures

    captures = GraphCaptures(str(request.config.rootpath), request.node.nodeid, unavailable=skip)
    _each_example(request, captures.end)
    with _outcome(request) as outcome:
        yield captures.graphs
    session = request.config.stash.get(keys.SESSION, None)
    captures.exhibit(session)
    captures.end()
    _refuse(request, captures.problems, outcome)
