"""Every answer that known places give is compared with that of a search of the whole heap.

A pytest plugin for runs of their own: ``-p suites.run.both_ways``. A difference raises inside the verdict, which then
says that the test could not be judged. The last line of the run says how many questions were answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from cudamem_testing.objects import HolderResult, KnownPlaces, find_holders

COUNTS: Counter[str] = Counter()


@pytest.fixture(scope="session", autouse=True)
def _both_ways() -> Iterator[None]:
    find = KnownPlaces.find

    def compared(self: KnownPlaces, addresses: Iterable[int], **options: Any) -> dict[int, HolderResult] | None:
        wanted = [*addresses]
        found = find(self, wanted, **options)
        COUNTS["asked"] += bool(wanted)
        if found is None:
            return None
        COUNTS["answered"] += 1
        whole = find_holders(wanted, budget_seconds=60)
        if found != whole:  # reading labels makes dictionaries of objects, which lengthen chains: now they are there
            found, whole = find(self, wanted, **options), find_holders(wanted, budget_seconds=60)
        if found != whole:
            COUNTS["wrong"] += 1
            raise AssertionError(f"known places differ: {found} is {whole}")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KnownPlaces, "find", compared)
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many questions there were."""
    terminalreporter.write_line(
        f"known places: {COUNTS['answered']} of {COUNTS['asked']} answered, {COUNTS['wrong']} wrong"
    )
