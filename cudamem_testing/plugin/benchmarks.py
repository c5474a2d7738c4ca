"""Tests of pytest-benchmark: their memory beside their times (run/benchmarks.py).

``pytest-benchmark compare`` loads no plugins of pytest, only the conftest.py in the current folder:

.. code-block:: python

    from cudamem_testing.plugin.benchmarks import pytest_benchmark_group_stats

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest
from pytest_benchmark import plugin

from cudamem_testing.run.benchmarks import BenchmarkMemory, Groups, with_memory

if TYPE_CHECKING:
    from cudamem_testing.run.session import Session


class Benchmarks:
    """Has the ``benchmark`` fixture of measured tests measure memory, and shows it."""

    def __init__(self, session: Session) -> None:
        self._memory = BenchmarkMemory(session)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Measure what the fixture times."""
        made = yield
        if fixturedef.argname == "benchmark":
            self._memory.measure(made)
        return made

    @pytest.hookimpl(wrapper=True, optionalhook=True)
    def pytest_benchmark_group_stats(self, config: pytest.Config) -> Generator[None, Groups, Groups]:
        """Show memory in the table of the run."""
        return with_memory((yield), _compared(config))


def pytest_benchmark_group_stats(config: pytest.Config | None, benchmarks: Any, group_by: str) -> Groups:
    """The groups of pytest-benchmark with memory after the names: for the conftest.py that its command reads."""
    groups: Groups = plugin.pytest_benchmark_group_stats(config, benchmarks, group_by)  # type: ignore[no-untyped-call]
    return with_memory(groups, _compared(config))


def _compared(config: pytest.Config | None) -> dict[Any, Any]:
    """Benchmarks of the files that the run is compared with, by path."""
    return getattr(getattr(config, "_benchmarksession", None), "compared_mapping", {})
