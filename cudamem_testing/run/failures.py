"""Lines about what fails a run besides its measured tests. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudamem_testing.model.records import RunRecord

#: Exit codes of pytest that tests explain; every other one needs a reason.
PASSED, TESTS_FAILED, NO_TESTS = 0, 1, 5


class FailureLines:
    """Collects them; without them the report would look like that of a passed run."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}
        self._down: dict[str, str] = {}

    def add(self, line: str) -> None:
        """Add another one."""
        self._lines[line] = None

    def crashed(self, nodeid: str, worker: str, text: str) -> None:
        """A process ended while it ran a test; ``text`` is the report of pytest-xdist or pytest-forked."""
        self._down.pop(worker, None)
        line = reason(text)
        self.add(line if nodeid in line else f"{nodeid}: {line}")

    def not_collected(self, nodeid: str, text: str) -> None:
        """A file or a class could not be collected."""
        self.add(f"{nodeid or '.'} could not be collected: {reason(text)}")

    def interrupted(self, message: str, name: str) -> None:
        """The run was stopped by an error of some name."""
        self.add(f"interrupted: {reason(message) or name}")

    def internal_error(self, message: str, described: str) -> None:
        """An error outside of any test; that of a worker arrives as the text of its traceback."""
        self.add(f"internal error: {reason(message) if 'E  ' in message else reason(described)}")

    def ended_early(self, worker: str, error: str) -> None:
        """A worker has crashed; if a test ran there, a report of that test follows."""
        self._down[worker] = error

    def unmeasured(self, nodeid: str, outcome: str) -> None:
        """A test without a record has ended."""
        if outcome in ("failed", "error"):
            self.add(f"{nodeid} {'failed' if outcome == 'failed' else 'had an error'} and was not measured")

    def of_run(self, run: RunRecord, status: int) -> tuple[str, ...]:
        """All lines; a generic one if nothing else explains pytest's exit code."""
        found = [*self._lines, *(f"worker {name!r} ended early: {error}" for name, error in self._down.items())]
        explained = status in (PASSED, NO_TESTS) or (status == TESTS_FAILED and run.has_failing_tests)
        if not explained and not found:
            found.append(f"pytest ended with status {int(status)}")
        return tuple(found)


def reason(text: str) -> str:
    """The line of a traceback's text that names the error; the first line of another text."""
    lines = text.strip().splitlines() or [""]
    return next((line[1:].strip() for line in map(str.strip, lines) if line.startswith("E  ")), lines[0].strip())
