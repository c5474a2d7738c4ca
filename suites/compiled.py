"""``python -m suites.compiled``: compile the native parts for the torch in use, two at a time.

Before the first tests, so that none waits for it and their times are their own. What cannot be compiled is named; tests
that need it say the same, or are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cudamem_testing.recorders.build import (
    CARD_RECORDER,
    COLLECTOR_WATCH,
    CPU_RECORDER,
    Library,
    RecorderUnavailable,
    compiled,
)
from cudamem_testing.simulated import native as simulated
from cudamem_testing.snapshots import native as snapshots
from cudamem_testing.snapshots.whatif import model

#: Those that take longest first.
PARTS = (
    simulated.LIBRARY,
    simulated.ENGINE,
    CPU_RECORDER,
    COLLECTOR_WATCH,
    CARD_RECORDER,
    model.LIBRARY,
    snapshots.LIBRARY,
)


def problem(library: Library) -> str | None:
    """Why it could not be compiled; ``None`` if it was, now or before."""
    try:
        compiled(library=library)
    except RecorderUnavailable as reason:
        return f"{library.title} was not compiled: {reason}"
    return None


def main(parts: Sequence[Library] = PARTS) -> None:
    """Compile those that are missing, and print what could not be."""
    with ThreadPoolExecutor(2) as threads:
        for said in filter(None, threads.map(problem, parts)):
            print(said)


if __name__ == "__main__":
    main()
