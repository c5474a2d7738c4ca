"""Why runs failed beside their measured tests, in lines for people. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence

from cudamem_testing.show.printable import one_line

SHOWN = 5


def failure_lines(failures: Sequence[str], most: int = SHOWN) -> list[str]:
    """A line for each of the first failures, and one with the number of the others."""
    rest = [f"failed: {len(failures) - most} more"] if len(failures) > most else []
    return [*(one_line(f"failed: {one}") for one in failures[:most]), *rest]
