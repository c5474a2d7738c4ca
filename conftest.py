"""Shared by all suites: the modules of the package are imported before an inner pytest runs.

An in-process inner run drops the modules that it was first to import. Those of the package must not be among them,
since their classes would then exist twice, nor those of torch, some of which cannot be imported a second time; so
modules of installed packages stay. What is large (torch's compiler, transformers) is imported by the first test that
needs it: a full collection of garbage takes three times as long once both are there.

Profiles of hypothesis, by ``HYPOTHESIS_PROFILE``: ``ci`` (10 examples, the same each time) in ``make test``, ``all``
(25, the same each time) in the second part of ``make test-all``, ``full`` (1,000 random ones) in ``make test-full``.
"""

from __future__ import annotations

import collections
import gc
import importlib
import os
import pkgutil
import sys
import sysconfig
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from _pytest import pytester

import cudamem_testing

pytest_plugins = ["pytester", "suites.durations"]

hypothesis.settings.register_profile("few", max_examples=5, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=10, deadline=None, derandomize=True)
hypothesis.settings.register_profile("all", max_examples=25, deadline=None, derandomize=True)
hypothesis.settings.register_profile("full", max_examples=1000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
#: Suites whose tests take five seconds or more in other processes, the longest first: at the end one worker would wait
#: for the other. In the second part of ``make test-all`` a worker takes the next file when it has ended one.
LONG = (
    "suites/run/test_zoo.py",
    "suites/test_guide.py",
    "suites/recorders/test_stress.py",
    "suites/plugin/test_large_heap.py",
    "suites/snapshots/test_whatif_card.py",
    "suites/simulated/test_tour.py",
    "suites/plugin/test_ranks.py",
    "suites/plugin/test_stable_causes.py",
    "suites/plugin/test_off.py",
    "suites/test_readme.py",
    "suites/simulated/test_simulated.py",
    "suites/simulated/test_zoo.py",
    "suites/simulated/test_plugin.py",
    "suites/test_spread.py",
    "suites/plugin/test_xdist_modes.py",
    "suites/plugin/test_xdist_recorded.py",
    "suites/recorders/test_native_process.py",
)
#: What the second part of ``make test-all`` runs.
SLOW_PART = "slow or hypothesis"
#: Suites that walk the heap a lot: they run before others have loaded the compiler and transformers.
FIRST = ("suites/cycles/", "suites/test_guards.py", "suites/test_unfinalized.py", "suites/objects/")


def pytest_configure(config: pytest.Config) -> None:
    """Import the package and torch, but not in a process that only hands out the tests to workers."""
    if config.getoption("dist", "no") != "no":
        return
    import torch

    torch.set_num_threads(1)
    pytester.SysModulesSnapshot = KeepingSnapshot
    for module in pkgutil.walk_packages(cudamem_testing.__path__, "cudamem_testing."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def is_installed(name: str) -> bool:
    """Whether a module belongs to the interpreter or to an installed package.

    One without a file goes with its parent; one that somebody made by hand is none.
    """
    module = sys.modules[name]
    file = getattr(module, "__file__", None)
    places = [file] if file else [*getattr(module, "__path__", ())]  # of a folder without a file of its own
    if places:
        return places[0].startswith(INSTALLED)
    parent = name.rpartition(".")[0]
    if parent in sys.modules:
        return is_installed(parent)
    return getattr(module, "__spec__", None) is not None


class KeepingSnapshot(pytester.SysModulesSnapshot):
    """Restores the modules as they were, but keeps those of installed packages that were imported meanwhile."""

    def __init__(self, preserve: Callable[[str], bool] | None = None) -> None:
        super().__init__(preserve)
        self.before = {*sys.modules}

    def restore(self) -> None:
        """Restore them."""
        # First: what the path of a folder is depends on the modules around it.
        new = [name for name in dict(sys.modules) if name not in self.before]
        installed = {name: sys.modules[name] for name in new if is_installed(name)}
        super().restore()
        for name, module in installed.items():
            sys.modules.setdefault(name, module)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage: modules and tests stay, and each collection would read them all."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if collects:
            gc.enable()


class Backwards(pytest.Dir):
    """A folder of tests from its last entry to its first."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        """Its entries, sorted backwards."""
        return [*super().collect()][::-1]


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Let every other worker begin at the last file: each rewrites half of the files, and reads what others wrote."""
    odd = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579"
    return Backwards.from_parent(parent, path=path) if odd else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of tests in which nothing is slow when only that runs."""
    skipped = config.getoption("markexpr") == SLOW_PART and collection_path.name.startswith("test_")
    return True if skipped and not may_be_slow(collection_path) else None


def may_be_slow(file: Path) -> bool:
    """Whether a file of tests names a mark of the slow part, or what gives it."""
    text = file.read_text(encoding="utf-8")
    return "slow" in text or "hypothesis" in text


def is_hypothesis_test(item: pytest.Item) -> bool:
    """Whether hypothesis runs a test, and so marks it."""
    return isinstance(item, pytest.Function) and hypothesis.is_hypothesis_test(item.obj)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long suites first, and those that walk the heap before those that make it large.

    The others follow in the order of their files, in which not every worker collects them.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow") or is_hypothesis_test(item)}
    missed = sorted(str(path) for path in slow if not may_be_slow(path))
    if missed:
        raise pytest.UsageError(f"make test-all would leave out slow tests of {', '.join(missed)}: name the mark there")
    items.sort(key=lambda item: item.path)
    items.sort(key=lambda item: [item.nodeid.startswith(one) for one in (*LONG, *FIRST)], reverse=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs more cards than there are; with ``CUDAMEM_REQUIRE_GPU``, fail where there is none at all.

    And what simulates a card where none can be.
    """
    import torch

    if torch.version.cuda is not None and item.get_closest_marker("simulated_card"):
        pytest.skip("no card is simulated in a build with CUDA")
    mark = item.get_closest_marker("gpu")
    if mark is None:
        return
    needed = mark.kwargs.get("count", mark.args[0] if mark.args else 1)
    found = torch.cuda.device_count()
    if found < needed:
        reason = f"needs {needed} CUDA device(s), found {found}"
        if os.environ.get("CUDAMEM_REQUIRE_GPU") and needed <= 1:
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that ended the CUDA context takes no other with it: its worker is replaced; without one the run stops."""
    import torch

    done = yield
    if torch.cuda.is_initialized() and not _context_lives():
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(1)  # the reports of the test are sent; the run tells of it as of a crash, and goes on
        item.session.shouldstop = f"the CUDA context ended in {item.nodeid}"
    return done


def _context_lives() -> bool:
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


@pytest.fixture
def no_callbacks() -> Iterator[None]:
    """The collector has no callbacks: that of hypothesis is written in Python, which drops what signals raise in it."""
    others = [*gc.callbacks]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = others


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Records a measured figure, or a fact, in words; they are listed at the end of the run, equal ones counted."""
    return lambda text: record_property("figure", text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the figures of tests that passed."""
    passed = [report for report in terminalreporter.stats.get("passed", ()) if report.when == "call"]
    told = collections.Counter(text for report in passed for name, text in report.user_properties if name == "figure")
    if told:
        terminalreporter.section("figures")
        for text, times in sorted(told.items()):
            terminalreporter.write_line(f"{times} x {text}" if times > 1 else text)
