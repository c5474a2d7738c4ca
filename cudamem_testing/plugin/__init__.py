"""The pytest plugin.

Loading it must cost next to nothing: this module imports neither torch nor the rest of the package. The session that
measures is made only when the run was asked to account for every test, or when a collected test carries one of the
markers or fixtures. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from cudamem_testing.model.options import flag_of
from cudamem_testing.model.settings import Settings
from cudamem_testing.plugin import keys, markers
from cudamem_testing.plugin.fixtures import (
    cuda_memory,
    graph_capture,
    memory_profile,
    memory_snapshot,
    operator_memory,
    reference_cycles,
)
from cudamem_testing.plugin.run_coverage import Collected
from cudamem_testing.plugin.settings import (
    OF_MEASURED_TESTS,
    accounts_early,
    add_options,
    measures_cpu_early,
    read_settings,
    runs_tests,
    simulated_early,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["cuda_memory", "graph_capture", "memory_profile", "memory_snapshot", "operator_memory", "reference_cycles"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the flags and their ini names."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Have torch imported without full collections, and the CPU recorder placed before tensors (recorders/early.py)."""
    if accounts_early(early_config):
        from cudamem_testing.guards.imports import WholeImport, own_imports

        if measures_cpu_early(early_config):
            with own_imports():
                from cudamem_testing.recorders.early import EarlyRecorder

            early = early_config.stash[keys.EARLY] = EarlyRecorder()
            early_config.add_cleanup(early.close)
            early.start()
        else:
            early_config.add_cleanup(WholeImport("torch").start())
    cards = simulated_early(early_config)
    if cards is not None:
        from cudamem_testing.plugin.simulation import simulate

        early_config.add_cleanup(simulate(early_config, cards))


def pytest_configure(config: pytest.Config) -> None:
    """Read the settings; refuse wrong ones before anything is collected."""
    for line in markers.LINES:
        config.addinivalue_line("markers", line)
    settings = config.stash[keys.SETTINGS] = read_settings(config)
    collected = config.stash[keys.COLLECTED] = Collected()
    config.pluginmanager.register(collected, "cudamem-collected")
    if settings.gpus and hasattr(config, "workerinput"):
        _choose_card(config, limited=settings.gpus == "fraction")
    if "expected" in settings.update or settings.reports:
        _expect(config, accept="expected" in settings.update)
    if settings.on:
        _start(config, settings)
    elif _distributes(config) or (settings.reports and not hasattr(config, "workerinput")):
        _collect(config, settings)


def pytest_report_header(config: pytest.Config) -> list[str] | None:
    """One line, only when the run is accounted for; and what has taken seconds so far."""
    settings = config.stash[keys.SETTINGS]
    if not settings.on:
        return None
    from cudamem_testing.report.header import header

    early = config.stash.get(keys.EARLY, None)
    lines = [*config.stash.get(keys.SIMULATION, ()), *(() if early is None else early.said)]
    return [header(settings), *(f"cudamem: {line}" for line in lines)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check every marker, and start measuring if a marker or a fixture asks for it."""
    settings = config.stash[keys.SETTINGS]
    try:
        carriers, misspelt = markers.find(items)
        _check_markers(carriers, [*misspelt.values()] if settings.on else [], settings)
        config.stash.setdefault(keys.PROBLEMS, []).extend(f"NOT CHECKED: {line}" for line in misspelt.values())
        config.stash[keys.MISSPELT] = frozenset(misspelt)
        if carriers.pop(markers.OVERRIDE) and settings.simulated is None:
            markers.skip_without_cards(items)
        _begin(config, settings, items, len({item for some in carriers.values() for item in some}))
    except pytest.UsageError as error:
        if hasattr(config, "workeroutput"):  # the controller reports it: an error of a worker would be called a crash
            config.workeroutput[keys.USAGE_OUTPUT] = str(error)
        raise


def _check_markers(carriers: Mapping[str, Sequence[pytest.Item]], problems: list[str], settings: Settings) -> None:
    """Read what the markers say: one message names every bad test and argument, after the problems so far."""
    if any(carriers.values()):
        from cudamem_testing.plugin.marked import problems_of

        problems += problems_of(carriers, settings.budget if settings.on else None)
    if problems:  # every test of a class, or parameter of a function, has the same marker
        raise pytest.UsageError("cudamem: " + "\ncudamem: ".join(dict.fromkeys(problems)))


def _begin(config: pytest.Config, settings: Settings, items: list[pytest.Item], marked: int) -> None:
    """Start measuring if a test asks for it; refuse flags that would then do nothing."""
    if not settings.enforce:
        config.stash[keys.UNENFORCED] = marked
        if hasattr(config, "workeroutput"):
            config.workeroutput[keys.UNENFORCED_OUTPUT] = marked
    if keys.SESSION not in config.stash and ((marked and settings.enforce) or _asks(items, markers.FIXTURES)):
        _start(config, settings)
    if _asks(items, markers.TEXT_FIXTURES):
        _expect(config, accept=False)
        if keys.SESSION not in config.stash:
            from cudamem_testing.plugin.expected_report import Mismatches

            config.pluginmanager.register(Mismatches(), "cudamem-mismatches")
    _expect_examples(config, items)
    if _has_requirements(config, settings) and runs_tests(config):
        from cudamem_testing.plugin.requirements import of_selected_tests

        problems = of_selected_tests(config, settings, items)
        if problems:
            raise pytest.UsageError("cudamem: " + "\ncudamem: ".join(problems))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in which a test applied one of our markers to itself, because it was not read."""
    config = session.config
    problems = config.stash.setdefault(keys.PROBLEMS, [])
    items = [] if session.exitstatus == pytest.ExitCode.USAGE_ERROR else getattr(session, "items", [])
    late, misspelt = markers.applied_late(items, config.stash.get(keys.MISSPELT, frozenset()))
    strict = config.stash[keys.SETTINGS].on
    problems += [*late, *(line if strict else f"NOT CHECKED: {line}" for line in misspelt)]
    late += misspelt if strict else []
    if late:
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
    if hasattr(config, "workeroutput"):
        config.workeroutput[keys.PROBLEMS_OUTPUT] = [problems, bool(late)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report markers that check nothing; with ``--no-cudamem``, that it wins and how many markers were not enforced."""
    for line in dict.fromkeys(config.stash.get(keys.PROBLEMS, ())):
        terminalreporter.write_line(f"cudamem: {line}")
    number = config.stash.get(keys.UNENFORCED, 0)
    asked = [flag_of(name) for name in ("cudamem", "cudamem_audit") if config.getoption(name)]
    both = asked if config.getoption("no_cudamem") else []
    if number or both:
        from cudamem_testing.wording.runs import switched_off

        terminalreporter.write_line(f"cudamem: {switched_off(number, both)}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Restore the process."""
    session = config.stash.get(keys.SESSION, None)
    if session is not None:
        session.close()


def _choose_card(config: pytest.Config, *, limited: bool) -> None:
    """Let a worker of pytest-xdist see one card, before anything uses CUDA; ``limited`` to its share of the card."""
    from cudamem_testing.recorders.cards import use_worker_card

    worker = str(config.workerinput["workerid"]).removeprefix("gw")  # type: ignore[attr-defined]
    workers = int(config.workerinput.get("workercount", 1))  # type: ignore[attr-defined]
    try:
        for undo in use_worker_card(int(worker), workers, limited=limited):
            config.add_cleanup(undo)
    except RuntimeError:
        problem = "--cudamem-gpus: a conftest file uses CUDA when it is imported, so each worker sees every card"
        config.stash.setdefault(keys.PROBLEMS, []).append(f"NOT CHECKED: {problem}")


def _start(config: pytest.Config, settings: Settings) -> None:
    from cudamem_testing.guards.imports import own_imports

    with own_imports():
        from cudamem_testing.plugin.start import start

        hooks = start(config, settings)
        _expect(config, accept=False)
        if hasattr(config, "workerinput"):
            from cudamem_testing.plugin.worker import Worker

            config.pluginmanager.register(Worker(config, hooks), "cudamem-worker")
        elif not config.pluginmanager.hasplugin("cudamem-collector"):
            _collect(config, settings)


def _expect(config: pytest.Config, *, accept: bool) -> None:
    from cudamem_testing.plugin.expected import ExpectedText

    if not config.pluginmanager.hasplugin("cudamem-expected"):
        distributed = hasattr(config, "workerinput") or _distributes(config)
        keep = config.stash[keys.SETTINGS].reports
        plugin = ExpectedText(accept=accept, distributed=distributed, keep=keep)
        config.pluginmanager.register(plugin, "cudamem-expected")
        if keep:
            from cudamem_testing.plugin.expected_report import CheckedText

            config.pluginmanager.register(CheckedText(plugin.session, config.rootpath), "cudamem-checked")


def _collect(config: pytest.Config, settings: Settings) -> None:
    from cudamem_testing.plugin.collector import Collector

    config.pluginmanager.register(Collector(config, settings), "cudamem-collector")


def _expect_examples(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Prepare for tests of hypothesis, if there are any."""
    if "hypothesis" in sys.modules:
        from cudamem_testing.plugin.given import Given, has_examples

        if any(map(has_examples, items)):
            config.pluginmanager.register(Given(), "cudamem-given")


def _has_requirements(config: pytest.Config, settings: Settings) -> bool:
    """Whether a flag may do nothing without a marker, or needs a card: few runs have one."""
    flags = (config.getoption(name) is not None for name in ("cudamem_baseline", *OF_MEASURED_TESTS))
    card = not isinstance(settings.device, str) and settings.device.has_segments
    alone = settings.repeat > 1 or bool(settings.update) or settings.prune or any(flags)
    return card or settings.gpus is not None or (not settings.on and alone)


def _asks(items: list[pytest.Item], fixtures: frozenset[str]) -> bool:
    return any(fixtures.intersection(markers.fixture_names(item)) for item in items)


def _distributes(config: pytest.Config) -> bool:
    """Whether this is the controller of pytest-xdist, which runs no test itself."""
    return not hasattr(config, "workerinput") and getattr(config.option, "dist", "no") != "no"
