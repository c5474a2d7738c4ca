"""How long tests take, in processor time: recorded by ``make test``, held to a limit by a test of ``make test-all``.

The time of a test is that of its process, of all threads, and of the processes that it waited for: seconds on a clock
would count what else the machine does. Each report carries its part to the process that started the workers, which
writes the sum of each test into pytest's cache. So the test that reads it has fresh times of the whole run, whatever
worker ran what: ``make test-all`` is ``make test`` and then a run of the rest.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Generator, Mapping

import pytest

#: Of all tests of ``make test`` together, in seconds of processor time.
LIMIT_S = 300.0
#: By how much of the limit the tests may be over it before that is a failure, since processors differ: up to 400 s. Two
#: cores have 480 s in four minutes, of which the tour, on one of them, takes 40 s, and the start of processes 40 s.
TOLERATED = 1 / 3
SLOWEST = 10
CACHED = "suites/durations"
BEGUN: pytest.StashKey[float] = pytest.StashKey()


def over_limit(durations: Mapping[str, float], limit_s: float = LIMIT_S) -> str | None:
    """What to say when the tests take more than the limit and a third, with the slowest of them; else ``None``.

    Args:
        durations: Seconds of processor time by the id of the test.
        limit_s: Seconds that all of them may take.
    """
    total = sum(durations.values())
    if total <= limit_s * (1 + TOLERATED):
        return None
    slowest = sorted(durations.items(), key=lambda one: (-one[1], one[0]))[:SLOWEST]
    title = (
        f"the tests of make test took {total:.0f} s of processor time, more than their limit of {limit_s:.0f} s "
        "and a third: make the slowest cheaper, or mark them slow"
    )
    return "\n".join([title, *(f"{seconds:8.1f} s  {name}" for name, seconds in slowest)])


def processor_time() -> float:
    """Seconds of this process and of its ended children, user and system."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


class Recording:
    """Sums the parts that the reports of each test carry."""

    def __init__(self) -> None:
        self.durations: collections.defaultdict[str, float] = collections.defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a part; a worker that died sent a report without one."""
        self.durations[report.nodeid] += getattr(report, "processor_s", 0.0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write them."""
        cache = getattr(session.config, "cache", None)
        if cache is None:
            raise pytest.UsageError(
                "--record-durations writes into pytest's cache, which -p no:cacheprovider turns off"
            )
        cache.set(CACHED, {name: round(seconds, 3) for name, seconds in self.durations.items()})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the flag of ``make test``."""
    text = "write the processor time of each test into the cache, for the test that holds their sum to a limit"
    parser.addoption("--record-durations", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that has all reports."""
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recording(), "durations")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note when a test begins."""
    item.stash[BEGUN] = processor_time()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give each report the time since the last one."""
    report = yield
    now = processor_time()
    report.processor_s = now - item.stash[BEGUN]
    item.stash[BEGUN] = now
    return report
