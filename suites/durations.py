"""How long tests take, in processor time: recorded by ``make test``, held to a limit by a test of ``make test-all``.

The time of a test is that of its process, of all threads, and of the processes that it waited for: seconds on a clock
would count what else the machine does. Processors differ as well, and one processor from minute to minute with what its
neighbours do. So each process that runs tests also times a fixed piece of work, the reference, every few seconds: where
it takes longer than where the limit was set, the limit is as much longer. Where it takes less, the limit stays: the
tests also start processes and read files, which need not be faster by as much, and ``make test`` promises minutes.

Each report carries its part to the process that started the workers, which writes the sum of each test into pytest's
cache. So the test that reads it has fresh times of the whole run, from all workers: ``make test-all`` is
``make test`` and then a run of the rest.
"""

from __future__ import annotations

import collections
import gc
import os
import statistics
import time
from collections.abc import Generator, Mapping, Sequence

import pytest

from suites import forked

#: Seconds of processor time of all tests of ``make test`` together, where the reference takes no longer than where this
#: was set. Two cores have 480 s in four minutes, of which the tour, on one of them, takes 40 s, and the start of
#: processes 40 s.
LIMIT_S = 304.0
#: Seconds that the reference took there.
REFERENCE_S = 0.19
#: By how much of the limit the tests may be over it before that is a failure.
TOLERATED = 1 / 3
SLOWEST = 10
#: Seconds of processor time of a process between two times of the reference.
REFERENCE_EVERY_S = 10.0
CACHED = "suites/processor_time"


def over_limit(tests: Mapping[str, float], reference: Sequence[float], limit_s: float = LIMIT_S) -> str | None:
    """What to say when the tests take more than the limit and a third, with the slowest of them; else ``None``.

    Args:
        tests: Seconds of processor time by the id of the test.
        reference: Seconds that the reference took, each time.
        limit_s: Seconds that all tests may take where the reference takes at most ``REFERENCE_S``.
    """
    total = sum(tests.values())
    if not reference:
        return (
            f"the tests of make test took {total:.0f} s of processor time, but the reference was not timed beside "
            "them, so they cannot be compared with their limit: run make test again"
        )
    slower = max(1.0, statistics.median(reference) / REFERENCE_S)
    if total <= limit_s * slower * (1 + TOLERATED):
        return None
    slowest = sorted(tests.items(), key=lambda one: (-one[1], one[0]))[:SLOWEST]
    machine = f" on this machine, which is {slower:.2f} times as slow as where it was set" if slower > 1.0 else ""
    title = (
        f"the tests of make test took {total:.0f} s of processor time, more than their limit of "
        f"{limit_s * slower:.0f} s and a third{machine}: make the slowest cheaper, or mark them slow"
    )
    return "\n".join([title, *(f"{seconds:8.1f} s  {name}" for name, seconds in slowest)])


def processor_time() -> float:
    """Seconds of this process, of its ended children, and of those that were forked for it, user and system."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system + forked.processor_time()


def reference() -> int:
    """A fixed piece of work like that of most tests: the interpreter makes, counts, sorts and reads small objects.

    They are more than a processor's caches hold, as the heap of the tests is.
    """
    words = [f"word {number * 7_919 % 5_003}" for number in range(60_000)]
    counts = collections.Counter(words)
    nodes = [{"number": number, "word": word} for number, word in enumerate(words)]
    nodes.sort(key=lambda node: (counts[node["word"]], node["word"], -node["number"]))
    return sum(node["number"] * place for place, node in enumerate(nodes))


def reference_s() -> float:
    """Seconds of processor time of the reference, without collections: they would read the heap of the tests."""
    collects = gc.isenabled()
    gc.disable()
    try:
        begun = time.process_time()
        reference()
        return time.process_time() - begun
    finally:
        if collects:
            gc.enable()


class Timing:
    """Gives each report its processor time, and what the reference took before the test, if it was its turn."""

    def __init__(self) -> None:
        self.begun = 0.0
        self.due = 0.0
        self.reference: list[float] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Time the reference when it is due; note when the test begins."""
        self.begun = processor_time()
        if self.begun >= self.due:
            self.reference.append(reference_s())
            self.begun = processor_time()
            self.due = self.begun + REFERENCE_EVERY_S
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give each report the time since the last one."""
        report = yield
        now = processor_time()
        report.processor_s, self.begun = now - self.begun, now
        report.reference_s, self.reference = self.reference, []
        return report


class Recording:
    """Sums the parts that the reports of each test carry."""

    def __init__(self) -> None:
        self.tests: collections.defaultdict[str, float] = collections.defaultdict(float)
        self.reference: list[float] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a part; a worker that died sent a report without one."""
        self.tests[report.nodeid] += getattr(report, "processor_s", 0.0)
        self.reference += getattr(report, "reference_s", ())

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write them."""
        cache = getattr(session.config, "cache", None)
        if cache is None:
            raise pytest.UsageError(
                "--record-durations writes into pytest's cache, which -p no:cacheprovider turns off"
            )
        tests = {name: round(seconds, 3) for name, seconds in self.tests.items()}
        cache.set(CACHED, {"tests": tests, "reference": [round(seconds, 4) for seconds in self.reference]})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the flag of ``make test``."""
    text = "write the processor time of each test into the cache, for the test that holds their sum to a limit"
    parser.addoption("--record-durations", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Time in each process that runs tests; record in the one that has all reports."""
    if not config.getoption("--record-durations"):
        return
    config.pluginmanager.register(Timing(), "durations of tests")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recording(), "recorded durations")
