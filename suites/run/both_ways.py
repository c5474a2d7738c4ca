"""Every answer that known places give is compared with that of a search of the whole heap.

A pytest plugin for runs of their own: ``-p suites.run.both_ways``. A difference raises inside the verdict, which then
says that the test could not be judged. The last lines of the run say how many questions were answered in each file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from cudamem_testing.objects.places import KnownPlaces
from cudamem_testing.objects.search import HolderResult, find_holders

COUNTS: defaultdict[str, Counter[str]] = defaultdict(Counter)
RUNNING = [""]
"""The file of the running test."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """A test begins."""
    RUNNING[0] = item.path.name


@pytest.fixture(scope="session", autouse=True)
def _both_ways() -> Iterator[None]:
    find = KnownPlaces.find

    def compared(self: KnownPlaces, addresses: Iterable[int], **options: Any) -> dict[int, HolderResult] | None:
        wanted, counts = [*addresses], COUNTS[RUNNING[0]]
        found = find(self, wanted, **options)
        counts["asked"] += bool(wanted)
        if found is None:
            return None
        counts["answered"] += 1
        whole = find_holders(wanted, budget_seconds=60)
        if found != whole:  # reading labels makes dictionaries of objects, which lengthen chains: now they are there
            found, whole = find(self, wanted, **options), find_holders(wanted, budget_seconds=60)
        if found != whole:
            counts["wrong"] += 1
            raise AssertionError(f"known places differ: {found} is {whole}")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KnownPlaces, "find", compared)
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many questions there were."""
    for file, counts in COUNTS.items():
        terminalreporter.write_line(
            f"known places of {file}: {counts['answered']} of {counts['asked']} answered, {counts['wrong']} wrong"
        )
