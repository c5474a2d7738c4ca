"""Shared by all suites: torch and every module of the package are imported before an inner pytest runs.

An in-process inner run drops modules that it was first to import; torch, its compiler (which checkpointing and the
profiler import, and which cannot be imported twice) and the package must not be among them.
"""

from __future__ import annotations

import collections
import importlib
import os
import pkgutil
from collections.abc import Callable, Generator

import hypothesis
import pytest
import torch
import torch._inductor

import cudamem_testing

pytest_plugins = ["pytester"]

torch.set_num_threads(1)
for module in pkgutil.walk_packages(cudamem_testing.__path__, "cudamem_testing."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

hypothesis.settings.register_profile("few", max_examples=5, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=35, deadline=None, derandomize=True)
hypothesis.settings.register_profile("full", max_examples=1000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs more cards than there are; with ``CUDAMEM_REQUIRE_GPU``, fail where there is none at all."""
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
    done = yield
    if torch.cuda.is_initialized() and not _context_lives():
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(1)  # the reports of the test are sent; the run tells of it as of a crash, and goes on
        item.session.shouldstop = f"the CUDA context ended in {item.nodeid}"
    return done


def _context_lives() -> bool:
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


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
